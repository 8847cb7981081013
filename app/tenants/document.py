"""YAML with line numbers, and only as much of YAML as a list of tenants needs.

Aliases (a few lines of them unfold to gigabytes), tags, a second document and names that are no
text are refused here, so that whoever reads the tree meets only words, items and fields.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import yaml

# libyaml is ten times as fast, but not part of every build of PyYAML.
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

TAGS = "tags (!name) are not read: leave it out"
DEEPEST = 8
"""Levels of nesting; a tenant's limits are on the fourth."""


@dataclass(frozen=True, slots=True)
class Word:
    """A scalar as it was written; only a `quoted` one is certainly text."""

    line: int
    text: str
    quoted: bool


@dataclass(frozen=True, slots=True)
class Items:
    """A list."""

    line: int
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Field:
    """One name of a mapping and what stands behind it; `line` is the name's."""

    line: int
    node: Node


@dataclass(frozen=True, slots=True)
class Fields:
    """A mapping; `repeated` are the lines of names that stood there before."""

    line: int
    fields: dict[str, Field]
    repeated: tuple[tuple[str, int], ...]


Node = Word | Items | Fields


class DocumentError(ValueError):
    """The text cannot be read beyond `line`."""

    def __init__(self, line: int, text: str) -> None:
        super().__init__(text)
        self.line = line
        self.text = text


def read_document(text: str) -> Node | None:
    """The tree of `text`; None where it holds nothing but comments.

    Raises:
        DocumentError: it is no YAML, or more of YAML than is read here.
    """
    try:
        return _document(yaml.parse(text, Loader=LOADER))
    except yaml.MarkedYAMLError as error:
        line = 1 if error.problem_mark is None else error.problem_mark.line + 1
        raise DocumentError(line, f"this is no YAML: {error.problem}") from None
    except yaml.reader.ReaderError as error:
        line = _line_of_byte(text, int(error.position))
        raise DocumentError(line, "a character that YAML does not allow") from None


def _line_of_byte(text: str, position: int) -> int:
    return text.encode()[:position].count(b"\n") + 1


def _document(events: Iterator[yaml.Event]) -> Node | None:
    root: Node | None = None
    documents = 0
    for event in events:
        if isinstance(event, yaml.DocumentStartEvent):
            documents += 1
            if documents > 1:
                raise DocumentError(_line(event), "a second document begins here: write one")
        elif isinstance(event, yaml.NodeEvent):
            root = _node(event, events, depth=1)
    return None if isinstance(root, Word) and is_empty(root) else root


def _node(event: yaml.Event, events: Iterator[yaml.Event], depth: int) -> Node:
    if isinstance(event, yaml.AliasEvent):
        raise DocumentError(_line(event), "aliases (*name) are not read: write it out")
    if depth > DEEPEST:
        raise DocumentError(_line(event), "nested deeper than any field of a tenant")
    if isinstance(event, yaml.ScalarEvent):
        plain, quoted = event.implicit
        if not plain and not quoted:
            raise DocumentError(_line(event), TAGS)
        return Word(_line(event), event.value, quoted=not plain)
    if not isinstance(event, yaml.CollectionStartEvent):
        raise DocumentError(_line(event), "an unexpected end")
    if not event.implicit:
        raise DocumentError(_line(event), TAGS)
    if isinstance(event, yaml.SequenceStartEvent):
        return _items(event, events, depth)
    return _fields(event, events, depth)


def _items(start: yaml.Event, events: Iterator[yaml.Event], depth: int) -> Items:
    items = []
    while not isinstance(event := next(events), yaml.SequenceEndEvent):
        items.append(_node(event, events, depth + 1))
    return Items(_line(start), tuple(items))


def _fields(start: yaml.Event, events: Iterator[yaml.Event], depth: int) -> Fields:
    fields: dict[str, Field] = {}
    repeated = []
    while not isinstance(event := next(events), yaml.MappingEndEvent):
        name = _node(event, events, depth + 1)
        if not isinstance(name, Word):
            raise DocumentError(name.line, "a field's name is one word")
        node = _node(next(events), events, depth + 1)
        if name.text in fields:
            repeated.append((name.text, name.line))
        else:
            fields[name.text] = Field(name.line, node)
    return Fields(_line(start), fields, tuple(repeated))


def _line(event: yaml.Event) -> int:
    return 1 if event.start_mark is None else event.start_mark.line + 1


def is_empty(node: Node) -> bool:
    """Whether nothing was written, or YAML's word for nothing."""
    return (
        isinstance(node, Word)
        and not node.quoted
        and node.text in ("", "~", "null", "Null", "NULL")
    )
