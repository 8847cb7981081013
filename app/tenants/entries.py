"""The entries of the tenants file: the tree of its text to tenants, noting every problem."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar

from app.tenants import values
from app.tenants.document import Fields, Node, is_empty
from app.tenants.model import Limits, Tenant, Tenants
from app.tenants.values import Wrong

Value = TypeVar("Value")

ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
RESERVED_ID = "unknown"
"""The metrics' name for whoever has no tenant."""

HASH = re.compile(r"sha256:[0-9a-f]{64}")
HASH_OF_NOTHING = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
HOW_TO_HASH = (
    "the file holds no keys, only `sha256:` and the 64 hex digits of each one's SHA-256; "
    "`printf %s KEY | sha256sum` prints them, `python -m app key new` makes a new key and its line"
)

LONGEST_MODEL_CHARACTERS = 256
WEIGHTS = (1e-6, 1e6)
"""The least and the most of a weight that is not 0: beyond them no share means anything."""

TOP_FIELDS = ("tenants", "defaults")
SHARED_FIELDS = ("weight", "class", "models", "limits")
TENANT_FIELDS = ("id", "keys", *SHARED_FIELDS, "admin")

count = partial(values.whole, least=0)
at_least_one = partial(values.whole, least=1)
LIMITS: dict[str, Callable[[Node], Any]] = {
    "queued": count,
    "running": at_least_one,  # with none running, whoever waits would wait for ever
    "connections": count,
    "wait_seconds": values.number,
    "request_seconds": partial(values.number, above_zero=True),
    "requests_per_minute": at_least_one,
    "tokens_per_minute": at_least_one,
    "output_tokens": at_least_one,
}


class Reading:
    """One reading of a document; `problems` are pairs of line and text, in no order."""

    def __init__(self) -> None:
        self.problems: list[tuple[int, str]] = []
        self._by_id: dict[str, Tenant] = {}
        self._by_key: dict[str, Tenant] = {}
        self._id_lines: dict[str, int] = {}
        self._key_lines: dict[str, int] = {}

    def tenants(self, document: Node) -> Tenants:
        """All tenants; of no use where there are problems."""
        top = self._fields(document, "the file", TOP_FIELDS)
        if top is not None:
            self._all(top)
        return Tenants(MappingProxyType(self._by_id), MappingProxyType(self._by_key))

    def _all(self, top: Fields) -> None:
        shared: dict[str, Any] = {}
        if "defaults" in top.fields and not is_empty(top.fields["defaults"].node):
            defaults = self._fields(top.fields["defaults"].node, "defaults", SHARED_FIELDS)
            shared = {} if defaults is None else self._shared(defaults)
        if "tenants" not in top.fields:
            self._note(top.line, "tenants is missing: it needs at least one tenant")
            return
        field = top.fields["tenants"]
        entries = () if is_empty(field.node) else self._value(values.items, field.node, "tenants")
        if entries == ():
            self._note(field.line, "tenants is empty: it needs at least one tenant")
        for entry in entries or ():
            fields = self._fields(entry, "a tenant", TENANT_FIELDS)
            if fields is not None:
                self._one(fields, shared)

    def _one(self, fields: Fields, shared: dict[str, Any]) -> None:
        id_ = self._id(fields)
        own = self._shared(fields)
        limits = {**shared.get("limits", {}), **own.get("limits", {})}
        admin = False
        if "admin" in fields.fields:
            admin = self._value(values.flag, fields.fields["admin"].node, "admin") or False
        merged = {**shared, **own, "limits": Limits(**limits)}
        tenant = Tenant(id=id_ or "", admin=admin, **merged)
        if id_ is not None:
            self._by_id[id_] = tenant
        self._keys(fields, tenant)

    def _shared(self, fields: Fields) -> dict[str, Any]:
        """What `defaults` and a tenant may both say, where it is said, as arguments of `Tenant`."""
        found: dict[str, Any] = {}
        readers: dict[str, tuple[str, Callable[[Node], Any]]] = {
            "weight": ("weight", _weight),
            "class": ("work_class", _work_class),
            "models": ("models", _models),
            "limits": ("limits", self._limits),
        }
        for name, (argument, reader) in readers.items():
            if name in fields.fields:
                try:
                    found[argument] = reader(fields.fields[name].node)
                except Wrong as wrong:
                    self._note(wrong.line, f"{name} {wrong.text}")
        return found

    def _limits(self, node: Node) -> dict[str, Any]:
        fields = None if is_empty(node) else self._fields(node, "limits", tuple(LIMITS))
        given: dict[str, Any] = {}
        for name, field in {} if fields is None else fields.fields.items():
            if name in LIMITS:
                nothing = is_empty(field.node)  # no limit, where the defaults say one
                given[name] = None if nothing else self._value(LIMITS[name], field.node, name)
        return given

    def _id(self, fields: Fields) -> str | None:
        if "id" not in fields.fields:
            self._note(fields.line, "a tenant without id")
            return None
        line = fields.fields["id"].line
        id_ = self._value(values.text, fields.fields["id"].node, "id")
        if id_ is None:
            return None
        if not ID.fullmatch(id_):
            self._note(line, f"id {values.short(id_)!r} is not 1 to 64 of A-Z a-z 0-9 . _ -")
        elif id_ == RESERVED_ID:
            self._note(
                line, f"id {id_!r} is what metrics call callers without a tenant: take another"
            )
        elif id_ in self._id_lines:
            self._note(line, f"id {id_!r} is already taken in line {self._id_lines[id_]}")
        else:
            self._id_lines[id_] = line
            return id_
        return None

    def _keys(self, fields: Fields, tenant: Tenant) -> None:
        if "keys" not in fields.fields:
            self._note(fields.line, "a tenant without keys: say `keys: []` if nobody shall use it")
            return
        for node in self._value(values.items, fields.fields["keys"].node, "keys") or ():
            hash_ = self._value(_key_hash, node, "keys:")
            if hash_ is None:
                continue
            other = self._by_key.setdefault(hash_, tenant)
            if hash_ in self._key_lines:
                whose = "here" if other is tenant else f"by tenant {other.id or '?'}"
                self._note(
                    node.line, f"keys: used {whose} already, in line {self._key_lines[hash_]}"
                )
            else:
                self._key_lines[hash_] = node.line

    def _fields(self, node: Node, what: str, known: tuple[str, ...]) -> Fields | None:
        fields = self._value(values.fields, node, what)
        if fields is None:
            return None
        for name, line in fields.repeated:
            first = fields.fields[name].line
            self._note(line, f"{values.short(name)!r} stands here again, first in line {first}")
        for name, field in fields.fields.items():
            if name not in known:
                near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0)[0]
                unknown = f"{values.short(name)!r} is no field of {what}"
                self._note(field.line, f"{unknown}; did you mean {near!r}?")
        return fields

    def _value(self, reader: Callable[[Node], Value], node: Node, name: str) -> Value | None:
        try:
            return reader(node)
        except Wrong as wrong:
            self._note(wrong.line, f"{name} {wrong.text}")
            return None

    def _note(self, line: int, text: str) -> None:
        self.problems.append((line, text))


def _weight(node: Node) -> float:
    weight = values.number(node)
    least, most = WEIGHTS
    if weight and not least <= weight <= most:
        raise Wrong(node.line, f"must be 0 (background) or from {least:g} to {most:g}")
    return weight


def _work_class(node: Node) -> str:
    work_class = values.text(node)
    if work_class not in ("interactive", "batch"):
        raise Wrong(node.line, f"must be interactive or batch, not {values.described(node)}")
    return work_class


def _models(node: Node) -> frozenset[str] | None:
    if is_empty(node):
        return None
    models = frozenset(values.text(item) for item in values.items(node))
    if not models:
        raise Wrong(node.line, "is empty: leave it out for every model")
    if any(not 0 < len(model) <= LONGEST_MODEL_CHARACTERS for model in models):
        raise Wrong(node.line, "has a name that is empty or too long")
    return models


def _key_hash(node: Node) -> str:
    try:
        hash_ = values.text(node).strip()
    except Wrong as wrong:
        raise Wrong(wrong.line, HOW_TO_HASH) from None
    prefix, _, digits = hash_.partition(":")
    hash_ = f"{prefix}:{digits.lower()}"
    if not HASH.fullmatch(hash_):
        raise Wrong(node.line, HOW_TO_HASH)
    if hash_ == HASH_OF_NOTHING:
        raise Wrong(node.line, "this is the SHA-256 of nothing: hash a key")
    return hash_
