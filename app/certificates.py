"""Certificates that are renewed while the server runs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from ssl import SSLContext, SSLError

from app import logs

CHECK_SECONDS = 10.0

log = logs.get_logger(__name__)


async def reload_when_changed(
    context: SSLContext, certificate: str, key: str, *, check_seconds: float = CHECK_SECONDS
) -> None:
    """Load both files again whenever one has changed, for the connections to come; never returns.

    A pair that cannot be loaded, such as one of which only half has been written, is logged and
    tried again.
    """
    files = [Path(certificate), Path(key)]
    seen = _changed(files)
    while True:
        await asyncio.sleep(check_seconds)
        now = _changed(files)
        if now == seen:
            continue
        try:
            context.load_cert_chain(certificate, key)
        except (OSError, SSLError):
            log.exception("server.certificate_unreadable")
        else:
            seen = now
            log.info("server.certificate_loaded")


def _changed(files: Sequence[Path]) -> list[int]:
    return [file.stat().st_mtime_ns if file.exists() else 0 for file in files]
