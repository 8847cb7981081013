"""Settings: `FAIRGATE_*` from the environment and `.env`, read once, at the top.

Nothing below `gateway.py` and `server.py` sees the `Settings` object: rooms get values. Model and
engine are not set here but by vLLM's own flags on the command line.
"""

from __future__ import annotations

import difflib
import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from dotenv import dotenv_values
from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

PREFIX = "FAIRGATE_"
ENV_FILE = ".env"

ORIGIN = re.compile(r"https?://[^/\s*?#@]+")

Port = Annotated[int, Field(ge=1, le=65535)]
Seconds = Annotated[float, Field(ge=0, le=86_400)]
Milliseconds = Annotated[float, Field(gt=0, le=3_600_000)]


class Settings(BaseSettings):
    """Every setting of the gateway, validated and frozen; the descriptions are `.env.example`'s."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_file=ENV_FILE,
        env_file_encoding="utf-8",
        env_ignore_empty=True,
        frozen=True,
        extra="ignore",  # unknown_names() looks for misspelt ones; other lines of .env are not ours
    )

    host: str = Field(default="127.0.0.1", description="address of the API port")
    port: Port = Field(default=8000, description="the API port")
    ops_host: str = Field(default="127.0.0.1", description="address of the ops port")
    ops_port: Port = Field(default=9000, description="the ops port: /livez, /readyz, /metrics")

    tenants_file: Path | None = Field(
        default=None,
        description="YAML file of the tenants and their keys; none: everyone is tenant default",
    )
    allow_anonymous: bool = Field(
        default=False,
        description="without a tenants file, serve anyone also on an address that is not loopback",
    )
    allowed_origins: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(),
        description="browser origins (scheme://host[:port], comma-separated) that may call us",
    )

    redis_url: SecretStr | None = Field(
        default=None,
        description="redis:// URL where replicas share limits per minute; none: each counts alone",
    )
    redis_away: Literal["allow", "refuse"] = Field(
        default="allow",
        description="while that Redis is away: allow (no limits per minute hold) or refuse (503)",
    )

    drain_seconds: Seconds = Field(
        default=60, description="seconds that running answers get to end after SIGTERM"
    )
    drain_delay_seconds: Seconds = Field(
        default=0, description="seconds after SIGTERM with readiness 503 but still serving new work"
    )
    resume_seconds: Seconds = Field(
        default=0,
        description="seconds a chat goes on without its socket, to be resumed; 0: not at all",
    )
    stream_commit_seconds: Seconds = Field(
        default=10, description="seconds a streamed answer waits before it sends its status line"
    )
    keep_alive_seconds: Seconds = Field(
        default=75,
        description="seconds an idle HTTP connection is kept; longer than your proxy's",
    )
    ping_seconds: Annotated[float, Field(gt=0, le=3600)] = Field(
        default=20, description="seconds between WebSocket pings; a peer silent for as long is gone"
    )
    max_body_bytes: Annotated[int, Field(ge=1024)] = Field(
        default=8 * 1024 * 1024, description="largest HTTP request body in bytes"
    )
    max_frame_bytes: Annotated[int, Field(ge=1024)] = Field(
        default=1024 * 1024, description="largest WebSocket message in bytes"
    )

    cache_dir: Path | None = Field(
        default=None, description="folder for the embedded model; default the user's cache folder"
    )

    cache_salt: SecretStr | None = Field(
        default=None,
        description="secret behind each tenant's prefix cache; default a new one at every start",
    )

    log_format: Literal["auto", "text", "json"] = Field(
        default="auto", description="auto (text on a terminal, else json), text or json"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="debug, info, warning or error"
    )
    log_content: bool = Field(
        default=False, description="log prompts and answers too: for debugging, never in production"
    )

    @field_validator("allowed_origins", mode="before")
    @classmethod
    def _split_origins(cls, value: Any) -> Any:
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value

    @field_validator("allowed_origins")
    @classmethod
    def _real_origins(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for origin in value:
            if not ORIGIN.fullmatch(origin):
                msg = f"{origin!r} is no origin: write scheme://host or scheme://host:port"
                raise ValueError(msg)
        return value

    @model_validator(mode="after")
    def _ports_differ(self) -> Self:
        if self.port == self.ops_port and self.host == self.ops_host:
            msg = "FAIRGATE_PORT and FAIRGATE_OPS_PORT are the same: give them two ports"
            raise ValueError(msg)
        return self

    def shown(self) -> dict[str, Any]:
        """The effective values for the log, secrets masked."""
        return self.model_dump(mode="json")


class SettingsError(ValueError):
    """The settings cannot be used; `problems` has one readable line each."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


def load_settings() -> Settings:
    """Read environment and `.env`.

    Raises:
        SettingsError: with every problem found, unknown names and the nearest known one included.
    """
    problems: list[str] = []
    try:
        problems += unknown_names()
        settings = Settings()
    except ValidationError as error:
        problems += [_readable(detail) for detail in error.errors()]
        raise SettingsError(problems) from None
    except UnicodeDecodeError:
        raise SettingsError([f"{ENV_FILE} is not UTF-8: save it as UTF-8"]) from None
    if problems:
        raise SettingsError(problems)
    return settings


def check() -> list[str]:
    """Every problem with the settings, one line each; none means that `serve` would accept them."""
    try:
        load_settings()
    except SettingsError as error:
        return error.problems
    return []


def unknown_names() -> list[str]:
    """One line for each `FAIRGATE_*` of the environment or of `.env` that is no setting."""
    known = [PREFIX + name.upper() for name in Settings.model_fields]
    return [
        f"{name}: no such setting; {_nearest(name, known)}"
        for name in sorted({*os.environ, *dotenv_values(ENV_FILE)})
        if name.upper().startswith(PREFIX) and name.upper() not in known
    ]


def _nearest(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name.upper(), known, n=1, cutoff=0)
    return f"did you mean {near[0]}?"


def _readable(detail: Any) -> str:
    if not detail["loc"]:
        return str(detail["msg"]).removeprefix("Value error, ")
    name = PREFIX + str(detail["loc"][0]).upper().removeprefix(PREFIX)
    return f"{name}: {str(detail['msg']).removeprefix('Value error, ')}"
