"""From a command line to an exit code: open both ports, serve, leave nothing behind.

The order is the point. The ops port answers first, on its own thread; the API's port listens before
the framework is imported, so that early callers wait instead of being refused; the engine is
started by the gateway, beside the server. The ops port answers until the process is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import math
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, NoReturn

import uvicorn

from app import children, logs
from app.certificates import reload_when_changed
from app.draining import FLUSH_SECONDS, DrainingServer, DrainPlan, Gateway, GoingAway
from app.errors import FairgateError
from app.flags import FlagError, ServerFlags, read_server_flags
from app.metrics import Metrics
from app.metrics_page import MetricsPage
from app.settings import Settings, SettingsError, load_settings
from app.signals import Signals
from app.web.health import Health
from app.web.ops import OpsServer

FAILED, WRONG = 1, 2  # exit codes: something broke; something was asked for that cannot be

BACKLOG = 2048
_NO_SUCH_ADDRESS = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
LAG_PERIOD_SECONDS = 0.25
# vLLM's processes end within a second or two when asked; a device may be slow to let go.
CHILDREN_SECONDS = 3.0
# Threads of libraries that do not end would keep the interpreter from leaving.
LEAVE_SECONDS = 2.0

log = logs.get_logger(__name__)

MakeApp = Callable[[Settings, Health, Metrics], Any]


class StartError(Exception):
    """The server cannot start; `str()` is the one line that says why."""


def serve(argv: list[str]) -> int:
    """Serve until told to end, and leave with 0; returns only what went wrong before that."""
    if any(word in ("-h", "--help") or word.startswith("--help=") for word in argv):
        from app.gateway import print_help  # noqa: PLC0415  imports vLLM

        print_help()
        return 0
    try:
        flags = read_server_flags(argv)
        settings = load_settings()
    except FlagError as error:
        return _say(WRONG, str(error))
    except SettingsError as error:
        return _say(WRONG, *error.problems)
    given = {"host": flags.host, "port": flags.port}
    settings = settings.model_copy(update={k: v for k, v in given.items() if v is not None})

    def make_app(settings: Settings, health: Health, metrics: Metrics) -> Any:
        from app.gateway import create_app  # noqa: PLC0415  only when the ports are open

        return create_app(settings, argv, health=health, metrics=metrics)

    return leave(run(settings, flags, make_app))


def leave(code: int) -> NoReturn:
    """End the process now, past the endings of the libraries, which are slow, noisy and may crash.

    Everything that matters has ended by itself before.
    """
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def run(settings: Settings, flags: ServerFlags, make_app: MakeApp) -> int:
    """Serve the app that `make_app` makes, whose `state.gateway` is a `Gateway`; the exit code."""
    logs.configure(settings.log_format, settings.log_level)
    if flags.uvicorn_log_level is not None:
        logging.getLogger("uvicorn").setLevel(flags.uvicorn_log_level.upper())
    children.adopt_orphans()
    health, metrics = Health(), Metrics()
    signals = Signals(on_first=health.drain)
    signals.install()
    try:
        _open_ops(settings, health, metrics).start(signals.let_in)
        sockets = _listen(settings)
        scheme = "https" if flags.ssl_certfile else "http"
        log.info("server.listening", url=f"{scheme}://{settings.host}:{settings.port}")
        log.info("settings.effective", **settings.shown())
        with _told_in_a_line():
            app = make_app(settings, health, metrics)
            config = _config(app, settings, flags)
            config.load()
    except StartError as error:
        return _fail(settings, str(error))
    plan = DrainPlan(
        grace_seconds=settings.drain_seconds, delay_seconds=settings.drain_delay_seconds
    )
    gateway: Gateway = app.state.gateway
    beside = list(_companions(config, metrics, flags))
    server = DrainingServer(config, gateway, health, signals, plan, beside)
    with (
        contextlib.suppress(SystemExit),
        asyncio.Runner(loop_factory=config.get_loop_factory()) as runner,
    ):
        runner.run(_serve_and_clear(server, gateway, sockets))
    health.stop()
    if gateway.failed is not None or not server.started:
        return _fail(settings, gateway.failed or "the start-up failed; the log says why")
    log.info("server.stopped")
    return 0


async def _serve_and_clear(
    server: DrainingServer, gateway: Gateway, sockets: list[socket.socket]
) -> None:
    try:
        await server.serve(sockets)
    finally:
        # Blocks the loop, which has nothing left to do. Threads that wait for a child end with it.
        if killed := children.end_all(grace_seconds=CHILDREN_SECONDS):
            log.warning("server.children_killed", count=len(killed))
        _leave_within(LEAVE_SECONDS, FAILED if gateway.failed or not server.started else 0)


def _open_ops(settings: Settings, health: Health, metrics: Metrics) -> OpsServer:
    page = MetricsPage(metrics)
    try:
        return OpsServer(settings.ops_host, settings.ops_port, health, page.render)
    except OSError as error:
        address = f"{settings.ops_host}:{settings.ops_port}"
        raise StartError(_no_port("ops port", address, "FAIRGATE_OPS_PORT", error)) from None


def _listen(settings: Settings) -> list[socket.socket]:
    """Listening sockets for every address that the host name means, one at least."""
    host, port = settings.host, settings.port
    sockets: list[socket.socket] = []
    failure: OSError | None = None
    try:
        found = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        for family, _, _, _, address in dict.fromkeys(found):
            try:
                sockets.append(_listening(family, address))
            except OSError as error:
                failure = error
    except OSError as error:
        failure = error
    # `localhost` means ::1 too, also on machines without IPv6: only that may be missing.
    if failure is not None and (not sockets or failure.errno not in _NO_SUCH_ADDRESS):
        raise StartError(
            _no_port("API port", f"{host}:{port}", "FAIRGATE_PORT or --port", failure)
        ) from None
    return sockets


def _listening(family: int, address: Any) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
        listener.setblocking(False)  # noqa: FBT003  the standard library's name
    except OSError:
        listener.close()
        raise
    return listener


def _no_port(what: str, address: str, setting: str, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"the {what} {address} is taken: end what listens there, or move it with {setting}"
    return f"the {what} {address} cannot be opened: {error.strerror or error}"


@contextlib.contextmanager
def _told_in_a_line() -> Iterator[None]:
    # What the person at the command line can mend says so itself; the rest needs its traceback.
    try:
        yield
    except (FairgateError, ValueError, OSError) as error:
        raise StartError(f"cannot start: {error}") from error
    except Exception as error:
        log.exception("server.start_failed")
        raise StartError(f"cannot start: {type(error).__name__}: {error}") from error


def _config(app: Any, settings: Settings, flags: ServerFlags) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        interface="asgi3",
        ws=GoingAway,
        ws_max_size=settings.max_frame_bytes,
        ws_ping_interval=settings.ping_seconds,
        ws_ping_timeout=settings.ping_seconds,
        ws_per_message_deflate=False,  # costs CPU and memory on each socket; text is short
        lifespan="on",
        log_config=None,  # logs.py has done it
        access_log=False,
        server_header=False,
        root_path=flags.root_path or "",
        timeout_keep_alive=math.ceil(settings.keep_alive_seconds),
        timeout_graceful_shutdown=FLUSH_SECONDS,
        ssl_keyfile=flags.ssl_keyfile,
        ssl_certfile=flags.ssl_certfile,
        ssl_ca_certs=flags.ssl_ca_certs,
        ssl_cert_reqs=flags.ssl_cert_reqs,
        ssl_ciphers=flags.ssl_ciphers,
    )


def _companions(
    config: uvicorn.Config, metrics: Metrics, flags: ServerFlags
) -> Iterator[Callable[[], Coroutine[Any, Any, None]]]:
    yield lambda: _sample_lag(metrics.loop_lag)
    context, certificate, key = config.ssl, flags.ssl_certfile, flags.ssl_keyfile
    if flags.enable_ssl_refresh and context and certificate and key:
        yield lambda: reload_when_changed(context, certificate, key)


async def _sample_lag(observe: Callable[[float], None]) -> None:
    while True:
        due = time.monotonic() + LAG_PERIOD_SECONDS
        await asyncio.sleep(LAG_PERIOD_SECONDS)
        observe(max(0.0, time.monotonic() - due))


def _leave_within(seconds: float, code: int) -> None:
    """Leave with `code` after `seconds` even if the interpreter cannot end by itself."""

    def leave() -> None:
        children.end_all(grace_seconds=0)
        os._exit(code)

    timer = threading.Timer(seconds, leave)
    timer.daemon = True
    timer.start()


def _fail(settings: Settings, line: str) -> int:
    if logs.is_text(settings.log_format):
        return _say(FAILED, line)
    log.critical("server.failed", reason=line)
    return FAILED


def _say(code: int, *lines: str) -> int:
    for line in lines:
        sys.stderr.write(f"fairgate: {line}\n")
    return code
