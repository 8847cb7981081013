"""Reading a request's body: bounded while it arrives, with what its headers say about it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from app.errors import TooLarge, UnsupportedMediaType
from app.summaries.hang_up import ClientGone, Receive, Scope

# A client that is still sending cannot read our refusal, and a connection closed under it is reset:
# so this many times the limit of a body that is too large is read, and dropped, before the answer.
_PATIENCE = 4

_CHARSET = re.compile(r"""(?i);\s*charset\s*=\s*["']?([^\s;"']+)""")


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """The bytes of a request and their type; `media_type` is lower case and may be empty.

    `content_type` is the whole header, for those who need more of it than the charset.
    """

    data: bytes
    media_type: str = ""
    charset: str | None = None
    content_type: str = ""


async def read_body(scope: Scope, receive: Receive, *, max_bytes: int) -> Body:
    """The whole body, read as it comes.

    Raises:
        TooLarge: it is, or is announced to be, larger than `max_bytes`.
        UnsupportedMediaType: it is compressed.
        ClientGone: the client left before its end.
    """
    headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
    encoding = headers.get(b"content-encoding", "").strip().lower()
    if encoding not in ("", "identity"):
        raise UnsupportedMediaType(
            f"content-encoding {encoding!r} is not read: send the body uncompressed",
            param="content-encoding",
        )
    announced = headers.get(b"content-length", "")
    if announced.isdigit() and int(announced) > max_bytes * _PATIENCE:
        raise _too_large(max_bytes)
    content_type = headers.get(b"content-type", "")
    return Body(
        data=await _read(receive, max_bytes),
        media_type=content_type.split(";")[0].strip().lower(),
        charset=charset_of(content_type),
        content_type=content_type,
    )


def charset_of(content_type: str) -> str | None:
    """The charset that a content-type declares."""
    charset = _CHARSET.search(content_type)
    return charset[1].lower() if charset else None


async def _read(receive: Receive, max_bytes: int) -> bytes:
    data = bytearray()
    received_bytes, more = 0, True
    while more and received_bytes <= max_bytes * _PATIENCE:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        chunk = message.get("body", b"")
        more = message.get("more_body", False)
        received_bytes += len(chunk)
        if received_bytes <= max_bytes:
            data += chunk
    if received_bytes > max_bytes:
        raise _too_large(max_bytes)
    return bytes(data)


def _too_large(max_bytes: int) -> TooLarge:
    size = f"{max_bytes / 2**20:g} MiB" if max_bytes >= 2**20 else f"{max_bytes:,} bytes"
    return TooLarge(f"the body is larger than the {size} that this server reads: send it in parts")
