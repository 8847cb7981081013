"""What one chat socket may do and hold."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatLimits:
    """Bounds of every chat socket; tenants' own limits come on top.

    `max_frame_bytes` must be the server's own limit too: it closes 1009 while a larger frame still
    arrives. `resume_seconds` 0 turns resuming off: a turn then ends with its socket.
    `stall_seconds` is how long one send may wait for a reader; `bad_frames` how many frames in a
    row may be wrong before the socket closes 1008; `replay_bytes` how much of what was said last a
    session keeps for a client that lost its connection.
    """

    max_frame_bytes: int = 1024 * 1024
    hello_seconds: float = 10.0
    default_max_tokens: int = 1024
    plain_max_tokens: int = 128
    resume_seconds: float = 120.0
    idle_seconds: float = 3600.0
    stall_seconds: float = 30.0
    closing_seconds: float = 3.0
    bad_frames: int = 20
    frames_per_second: int = 50
    connections: int = 20_000
    detached_sessions: int = 1000
    replay_bytes: int = 256 * 1024

    def __post_init__(self) -> None:
        """Refuse what no socket could live with."""
        for name in ("max_frame_bytes", "default_max_tokens", "plain_max_tokens", "bad_frames"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        for name in ("hello_seconds", "idle_seconds", "stall_seconds", "closing_seconds"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0")
        if self.resume_seconds < 0 or self.frames_per_second < 1 or self.connections < 1:
            raise ValueError("resume_seconds, frames_per_second or connections is too small")
