"""How a text beyond the context is taken apart and put together again: rooms, groups, levels.

Each part gets a summary of at most `part_room` tokens. At least two such summaries fit into one
merge beside its instructions and its own room, so every level has at most half the texts of the
one before: the number of calls is finite, and known in advance from the number of parts.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.errors import ContextLengthExceeded

# A part of more tokens is summarised too coarsely by small models; a very long text gets larger
# parts, where the context allows, rather than more than 64 of them.
_PART_TOKENS = 3072
_MANY_PARTS = 64

_PART_ROOM_TOKENS = 256
_LEAST_ROOM_TOKENS = 8

# Between two summaries in a merge, and for tokens that meet differently in a prompt than alone.
_SEPARATOR_TOKENS = 4
_SLACK_TOKENS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Overheads:
    """Tokens of each kind of prompt without its text: template and instructions."""

    part: int
    merge: int
    final: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Tokens, all of them: what each kind of call may be given and may give back."""

    overheads: Overheads
    part_tokens: int
    part_room: int
    merge_tokens: int
    final_tokens: int
    final_room: int

    def merges(self, parts: int) -> list[int]:
        """How many merges there are at each level between the parts and the final text."""
        levels = []
        while parts > self.final_tokens // self.summary_tokens:
            parts = -(-parts // (self.merge_tokens // self.summary_tokens))
            levels.append(parts)
        return levels

    @property
    def summary_tokens(self) -> int:
        """The most that one summary takes in a merge."""
        return self.part_room + _SEPARATOR_TOKENS

    def tokens(self, parts: list[int]) -> int:
        """The most that all calls take, prompts and output, for parts of so many tokens."""
        total = sum(parts) + len(parts) * (self.overheads.part + self.part_room)
        texts = len(parts)
        for merges in self.merges(len(parts)):
            total += texts * self.summary_tokens
            total += merges * (self.overheads.merge + self.part_room)
            texts = merges
        return total + texts * self.summary_tokens + self.overheads.final + self.final_room


def shape_of(context: int, overheads: Overheads, wanted_room: int, text_tokens: int) -> Shape:
    """The shape for a text of about `text_tokens` and a final summary of `wanted_room`.

    Raises:
        ContextLengthExceeded: the context is too small even for that.
    """
    left_part = context - overheads.part - _SLACK_TOKENS
    left_merge = context - overheads.merge - _SLACK_TOKENS
    left_final = context - overheads.final - _SLACK_TOKENS
    final_room = min(wanted_room, left_final // 3)
    part_room = min(
        _PART_ROOM_TOKENS,
        left_part // 4,
        left_merge // 3 - _SEPARATOR_TOKENS,
        (left_final - final_room) // 2 - _SEPARATOR_TOKENS,
    )
    if part_room < _LEAST_ROOM_TOKENS or final_room < _LEAST_ROOM_TOKENS:
        raise ContextLengthExceeded(
            f"the text is about {text_tokens:,} tokens and the model's context of {context:,} is "
            "too small to summarise it in parts beside these instructions: send a shorter text",
            param="text",
        )
    return Shape(
        overheads=overheads,
        part_tokens=min(left_part - part_room, max(_PART_TOKENS, text_tokens // _MANY_PARTS)),
        part_room=part_room,
        merge_tokens=left_merge - part_room,
        final_tokens=left_final - final_room,
        final_room=final_room,
    )
