"""The tenants file: text to `Tenants`, or every problem at once, each with its line.

The file is validated whole: one problem anywhere and nothing of it counts. No problem shows a key
or the hash of one.
"""

from __future__ import annotations

from pathlib import Path

from app.tenants.document import DocumentError, Node, read_document
from app.tenants.entries import Reading
from app.tenants.model import Tenants

LARGEST_BYTES = 4 * 1024 * 1024
"""Some ten thousand tenants of every field; more is another file by mistake."""

SHOWN_PROBLEMS = 100


class TenantsFileError(ValueError):
    """The file cannot be used; `problems` has one readable line each."""

    def __init__(self, problems: list[str]) -> None:
        if len(problems) > SHOWN_PROBLEMS:
            more = len(problems) - SHOWN_PROBLEMS
            problems = [*problems[:SHOWN_PROBLEMS], f"and {more} more problems"]
        super().__init__("; ".join(problems))
        self.problems = problems


def read_tenants(path: Path) -> Tenants:
    """The tenants of the file at `path`.

    Raises:
        TenantsFileError: it cannot be read, or something in it is wrong.
    """
    return parse_tenants(read_raw(path), path.name)


def read_raw(path: Path) -> bytes:
    """The bytes of the file at `path`.

    Raises:
        TenantsFileError: there are none, or too many.
    """
    try:
        # Reading a pipe or a device would wait, and could not be repeated.
        if path.exists() and not path.is_file():
            raise TenantsFileError([f"{path.name}: is no file"])
        with path.open("rb") as file:
            raw = file.read(LARGEST_BYTES + 1)
    except OSError as error:
        raise TenantsFileError([f"{path.name}: cannot be read: {error.strerror}"]) from None
    if len(raw) > LARGEST_BYTES:
        raise TenantsFileError([f"{path.name}: is larger than {LARGEST_BYTES} bytes"])
    return raw


def parse_tenants(raw: bytes, name: str) -> Tenants:
    """The tenants that `raw` names; `name` is what problems call the file.

    Raises:
        TenantsFileError: something is wrong.
    """
    reading = Reading()
    tenants = reading.tenants(_document(raw, name))
    if reading.problems:
        raise TenantsFileError(
            [f"{name}:{line}: {text}" for line, text in sorted(reading.problems)]
        )
    return tenants


def _document(raw: bytes, name: str) -> Node:
    try:
        document = read_document(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise TenantsFileError([f"{name}:{line}: is not UTF-8: save it as UTF-8"]) from None
    except DocumentError as error:
        raise TenantsFileError([f"{name}:{error.line}: {error.text}"]) from None
    if document is None:
        raise TenantsFileError([f"{name}:1: is empty: it needs at least one tenant"])
    return document
