"""How much nonsense, and how many frames, one client may send."""

from __future__ import annotations

from app.errors import RateLimited

LONG_FRAME = 16 * 1024  # characters that count as one frame more
BURST_SECONDS = 4  # a client may be silent for so long and then send it all at once


class Patience:
    """Counts wrong frames in a row, and all frames against a rate; times are monotonic seconds."""

    __slots__ = ("_bad", "_most_bad", "_per_second", "_tokens", "_tokens_seconds")

    def __init__(self, *, bad_frames: int, frames_per_second: int, now: float) -> None:
        self._most_bad = bad_frames
        self._bad = 0
        self._per_second = frames_per_second
        self._tokens = float(BURST_SECONDS * frames_per_second)
        self._tokens_seconds = now

    def frame(self, now: float, characters: int = 0) -> None:
        """One more frame has come; a long one counts as several, for reading it takes time.

        Raises:
            RateLimited: they come too fast.
        """
        most = float(BURST_SECONDS * self._per_second)
        gained = (now - self._tokens_seconds) * self._per_second
        self._tokens = min(most, self._tokens + gained)
        self._tokens_seconds = now
        cost = 1 + characters // LONG_FRAME
        if self._tokens < cost:
            raise RateLimited(f"at most {self._per_second} frames a second")
        self._tokens -= cost

    def good(self) -> None:
        """A message was understood: what was wrong before is forgiven."""
        self._bad = 0

    def bad(self) -> bool:
        """A frame was wrong; True when it was one too many."""
        self._bad += 1
        return self._bad >= self._most_bad
