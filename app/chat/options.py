"""The sampling options of a chat: read from a frame, laid over earlier ones, bounded by limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.chat.text import read_text
from app.engine.api import Options
from app.errors import FairgateError, InvalidFrame, InvalidRequest

MOST_STOPS, LONGEST_STOP = 16, 256
SEED_BOUND = 2**63  # what the engine's random generators take


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenOptions:
    """The options that a frame names; None where it leaves them to what was said before."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop: tuple[str, ...] | None = None
    seed: int | None = None

    def over(self, earlier: GivenOptions) -> GivenOptions:
        """These options where they are given, `earlier` ones elsewhere."""

        def pick(name: str) -> Any:
            mine = getattr(self, name)
            return getattr(earlier, name) if mine is None else mine

        return GivenOptions(**{name: pick(name) for name in self.__slots__})

    def resolve(self, *, default_tokens: int, most_tokens: int | None) -> Options:
        """What the engine is asked: the default where nothing is given, never above the limit."""
        tokens = self.max_tokens
        if tokens is None:
            tokens = default_tokens if most_tokens is None else most_tokens
        if most_tokens is not None:
            tokens = min(tokens, most_tokens)
        return Options(
            max_tokens=tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            stop=self.stop or (),
            seed=self.seed,
        )


def read_options(fields: Mapping[str, Any]) -> GivenOptions:
    """The `options` of a frame; unknown ones are ignored.

    Raises:
        InvalidFrame: an option of the wrong kind.
        InvalidRequest: one outside its range.
    """
    given = fields.get("options")
    if given is None:
        return GivenOptions()
    if not isinstance(given, dict):
        raise InvalidFrame("`options` must be an object", param="options")
    return GivenOptions(
        max_tokens=_whole(given, "max_tokens", 1, 2**31),
        temperature=_number(given, "temperature", 0.0, 2.0),
        top_p=_number(given, "top_p", 0.0, 1.0, above=True),
        stop=_stop(given),
        seed=_whole(given, "seed", -SEED_BOUND, SEED_BOUND),
    )


def _whole(given: Mapping[str, Any], name: str, least: int, bound: int) -> int | None:
    value = given.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool):
        raise _wrong_option(InvalidFrame, name, "be a whole number")
    if not least <= value < bound:
        raise _wrong_option(InvalidRequest, name, f"be from {least} to {bound - 1}")
    return value


def _number(
    given: Mapping[str, Any], name: str, least: float, most: float, *, above: bool = False
) -> float | None:
    value = given.get(name)
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise _wrong_option(InvalidFrame, name, "be a number")
    if not least <= value <= most or (above and value == least):
        first = "above" if above else "from"
        raise _wrong_option(InvalidRequest, name, f"be {first} {least:g} to {most:g}")
    return float(value)


def _stop(given: Mapping[str, Any]) -> tuple[str, ...] | None:
    value = given.get("stop")
    if value is None:
        return None
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise _wrong_option(InvalidFrame, "stop", "be a string or a list of strings")
    if len(stops) > MOST_STOPS or not all(0 < len(stop) <= LONGEST_STOP for stop in stops):
        rule = f"hold at most {MOST_STOPS} strings of 1 to {LONGEST_STOP} characters"
        raise _wrong_option(InvalidRequest, "stop", rule)
    return tuple(read_text(stop, "options.stop") for stop in stops)


def _wrong_option(kind: type[FairgateError], name: str, rule: str) -> FairgateError:
    return kind(f"`options.{name}` must {rule}", param=f"options.{name}")
