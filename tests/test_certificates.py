"""A renewed certificate is served without a restart."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

from app.certificates import reload_when_changed

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")


def make_pair(folder: Path, name: str) -> tuple[Path, Path]:
    certificate, key = folder / "c.pem", folder / "k.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-days", "2", "-subj", f"/CN={name}"),
            *("-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
        timeout=30,
    )
    return certificate, key


async def served_certificate(port: int) -> bytes:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    shown: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    with contextlib.suppress(OSError, ssl.SSLError):
        await writer.wait_closed()
    return shown


async def test_new_connections_get_the_new_certificate_and_a_broken_one_is_passed_over(tmp_path):
    certificate, key = make_pair(tmp_path, "old")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server = await asyncio.start_server(
        lambda _reader, writer: writer.close(), "127.0.0.1", 0, ssl=context
    )
    port = server.sockets[0].getsockname()[1]
    async with asyncio.TaskGroup() as group:
        watch = group.create_task(
            reload_when_changed(context, str(certificate), str(key), check_seconds=0.02)
        )
        old = await served_certificate(port)
        certificate.write_text("half a certifi")
        await asyncio.sleep(0.1)
        assert await served_certificate(port) == old
        await asyncio.to_thread(make_pair, tmp_path, "new")
        async with asyncio.timeout(10):
            while await served_certificate(port) == old:
                pass  # the next connection may get the new one
        watch.cancel()
    server.close()
    await server.wait_closed()
