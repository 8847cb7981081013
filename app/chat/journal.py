"""What a session has said last, kept for a client that lost its connection.

A delta of a few characters would take some 150 bytes as a finished frame. Kept as its UTF-8 and
one offset it takes about ten, so that thousands of sessions can each keep a whole answer.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import pairwise

from app.chat import frames
from app.errors import InvalidFrame, SessionNotFound

OFFSET_BYTES = 4


class _Run:
    """Deltas of one turn with consecutive numbers, from `first` on."""

    __slots__ = ("_ends", "_text", "first", "prefix")

    def __init__(self, prefix: str, first: int) -> None:
        self.prefix = prefix
        self.first = first
        self._text = bytearray()
        self._ends = array("I")

    @property
    def last(self) -> int:
        return self.first + len(self._ends) - 1

    @property
    def size(self) -> int:
        return len(self._text) + OFFSET_BYTES * len(self._ends)

    def add(self, text: bytes) -> None:
        self._text += text
        self._ends.append(len(self._text))

    def drop_older_half(self) -> None:
        half = max(1, len(self._ends) // 2)
        cut = self._ends[half - 1]
        del self._text[:cut]
        self._ends = array(self._ends.typecode, (end - cut for end in self._ends[half:]))
        self.first += half

    def replay(self, after: int) -> Iterator[str]:
        """Frames beyond `after`, made as they are asked for from a copy made now."""
        skip = max(0, after + 1 - self.first)
        start = self._ends[skip - 1] if skip else 0
        text, offsets = bytes(self._text[start:]), [start, *self._ends[skip:]]
        prefix, number = self.prefix, self.first + skip

        def make() -> Iterator[str]:
            for seq, (begin, end) in enumerate(pairwise(offsets), number):
                yield frames.delta(prefix, seq, text[begin - start : end - start].decode())

        return make()


class _Whole:
    """A frame that is kept as it was sent."""

    __slots__ = ("_frame", "first")

    def __init__(self, frame: str, seq: int) -> None:
        self._frame = frame
        self.first = seq

    @property
    def last(self) -> int:
        return self.first

    @property
    def size(self) -> int:
        return len(self._frame)

    def replay(self, after: int) -> Iterator[str]:
        return iter((self._frame,))


class Journal:
    """Numbered frames, oldest dropped beyond `most_bytes` (text and offsets; roughly counted)."""

    __slots__ = ("_dropped", "_entries", "_most_bytes", "_size")

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._entries: list[_Run | _Whole] = []
        self._size = 0
        self._dropped = 0

    def whole(self, seq: int, frame: str) -> None:
        """Keep a frame as it is."""
        self._entries.append(_Whole(frame, seq))
        self._grow(len(frame))

    def delta(self, seq: int, prefix: str, text: str) -> None:
        """Keep a delta; `prefix` is the object that `frames.delta_prefix` made for its turn."""
        last = self._entries[-1] if self._entries else None
        if not isinstance(last, _Run) or last.prefix is not prefix:
            last = _Run(prefix, seq)
            self._entries.append(last)
        data = text.encode()
        last.add(data)
        self._grow(len(data) + OFFSET_BYTES)

    def forget(self, through: int) -> None:
        """Drop what was said up to frame `through`, the last of a turn."""
        while self._entries and self._entries[0].last <= through:
            self._drop_oldest()

    def after(self, seq: int) -> Iterator[str]:
        """The frames beyond `seq`, in order.

        Raises:
            SessionNotFound: some of them are no longer kept.
            InvalidFrame: no frame with the number `seq` was ever sent.
        """
        newest = self._entries[-1].last if self._entries else self._dropped
        if seq > newest:
            raise InvalidFrame(f"the session's last frame is {newest}", param="after")
        if seq < self._dropped:
            raise SessionNotFound(f"frames up to {self._dropped} are no longer kept")
        missed = [entry.replay(seq) for entry in self._entries if entry.last > seq]
        return (frame for frames_of_entry in missed for frame in frames_of_entry)

    def _grow(self, size: int) -> None:
        self._size += size
        while self._size > self._most_bytes:
            oldest = self._entries[0]
            if len(self._entries) == 1 and isinstance(oldest, _Run) and oldest.last > oldest.first:
                before = oldest.size
                oldest.drop_older_half()
                self._dropped = oldest.first - 1
                self._size -= before - oldest.size
            else:
                self._drop_oldest()

    def _drop_oldest(self) -> None:
        oldest = self._entries.pop(0)
        self._dropped = oldest.last
        self._size -= oldest.size
