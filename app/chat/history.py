"""The conversation so far, by turns, so that the oldest can be forgotten whole."""

from __future__ import annotations

from collections.abc import Iterable

from app.engine.api import Message


class History:
    """Turns in order, each beginning with what the user said; the system message stands apart."""

    __slots__ = ("_system", "_turns")

    def __init__(self, system: str | None = None, messages: Iterable[Message] = ()) -> None:
        self._system = None if system is None else Message(role="system", content=system)
        self._turns: list[list[Message]] = []
        for message in messages:
            if message.role == "user" or not self._turns:
                self._turns.append([])
            self._turns[-1].append(message)

    def __len__(self) -> int:
        """Turns, not messages."""
        return len(self._turns)

    def messages(self, content: str, *, without: int = 0) -> list[Message]:
        """The conversation with `content` said next, `without` so many of the oldest turns."""
        messages = [] if self._system is None else [self._system]
        for turn in self._turns[without:]:
            messages.extend(turn)
        messages.append(Message(role="user", content=content))
        return messages

    def sizes(self) -> list[int]:
        """Characters without 0, 1, 2, ... of the oldest turns, down to the system message alone."""
        size = 0 if self._system is None else len(self._system.content)
        sizes = [size]
        for turn in reversed(self._turns):
            size += sum(len(message.content) for message in turn)
            sizes.append(size)
        return sizes[::-1]

    def forget(self, turns: int) -> None:
        """Drop so many of the oldest turns for good."""
        del self._turns[:turns]

    def add(self, content: str, answer: str) -> None:
        """Keep a turn: what the user said and what was answered."""
        user = Message(role="user", content=content)
        self._turns.append([user, Message(role="assistant", content=answer)])
