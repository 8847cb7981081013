"""The ops port: /livez, /readyz and /metrics, from a thread of their own.

Probes must be answered while the event loop is busy and while vLLM is still being imported, so
nothing here touches the event loop: plain blocking sockets, one short-lived thread a connection.
"""

from __future__ import annotations

import logging
import socket
import socketserver
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from app.errors import FairgateError, Internal, InvalidRequest, MethodNotAllowed, NotFound
from app.web.answers import Headers, answer_of, encode, error_body, error_headers
from app.web.health import Health

# From an Accept header to the page's content type and the page.
RenderMetrics = Callable[[str], tuple[str, bytes]]

# Longer than the usual scrape interval of a minute: a connection that the server closes just as
# the scraper reuses it is a failed scrape.
_IDLE_SECONDS = 90
_MOST_CONNECTIONS = 64
_STOP_POLL_SECONDS = 0.1  # how often it looks whether it should stop
_JSON = "application/json"

log = logging.getLogger(__name__)


class OpsServer:
    """Listens from construction on, answers between `start` and `stop`.

    Raises:
        OSError: the port cannot be had.
    """

    def __init__(self, host: str, port: int, health: Health, render: RenderMetrics) -> None:
        self._server = _Server((host, port), health, render)

    @property
    def port(self) -> int:
        """The port that was got; of interest where 0 was asked for."""
        port: int = self._server.server_address[1]
        return port

    def start(self, prepare: Callable[[], None] = lambda: None) -> None:
        """Begin to answer, on a new thread on which `prepare` runs first."""

        def serve() -> None:
            prepare()
            self._server.serve_forever(_STOP_POLL_SECONDS)

        threading.Thread(target=serve, name="fairgate-ops", daemon=True).start()

    def stop(self) -> None:
        """Close the port; answers that are being written end with the process."""
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], health: Health, render: RenderMetrics) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.health = health
        self.render = render
        self._places = threading.BoundedSemaphore(_MOST_CONNECTIONS)
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        # The parent also asks the name service who we are, which may take seconds.
        socketserver.TCPServer.server_bind(self)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._places.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        # A prober that hangs up in the middle is no event; anything else is a fault of ours.
        log.debug("ops.connection_lost", exc_info=True)  # noqa: LOG014  called while handling one


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = _IDLE_SECONDS
    wbufsize = 64 * 1024  # head and body in one segment: two would wait for each other's ACK
    server: _Server

    def do_GET(self) -> None:
        route = self.path.partition("?")[0]
        match route:
            case "/livez":
                self._probe("alive", self.server.health.not_alive())
            case "/readyz":
                self._probe("ready", self.server.health.not_ready())
            case "/metrics":
                self._metrics()
            case _:
                self._fail(NotFound(f"no {route} here; there are /livez, /readyz and /metrics"))

    do_HEAD = do_GET  # noqa: N815  http.server's name; the body is left out when written

    def _probe(self, word: str, error: FairgateError | None) -> None:
        if error is None:
            self._answer(HTTPStatus.OK, _JSON, encode({"status": word}))
        else:
            self._fail(error)

    def _metrics(self) -> None:
        try:
            content_type, page = self.server.render(self.headers.get("accept", ""))
        except Exception:
            log.exception("ops.metrics_failed")
            self._fail(Internal("the metrics could not be read; the log says why"))
        else:
            self._answer(HTTPStatus.OK, content_type, page)

    def _fail(self, error: FairgateError, *more: tuple[bytes, bytes]) -> None:
        body = encode(error_body(error))
        self._answer(answer_of(error).status, _JSON, body, [*error_headers(error), *more])

    def _answer(
        self, status: int, content_type: str, body: bytes, headers: Headers | None = None
    ) -> None:
        self.send_response_only(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        for name, value in headers or []:
            self.send_header(name.decode("latin-1"), value.decode("latin-1"))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What http.server itself refuses, in our own error shape; the connection ends after it."""
        self.request_version = self.protocol_version  # unread, it passes for 0.9, which has no head
        close = (b"connection", b"close")
        if code == HTTPStatus.NOT_IMPLEMENTED:  # its word for a method without a do_ function
            refused = MethodNotAllowed(f"{self.command} is not served here; use GET")
            self._fail(refused, (b"allow", b"GET, HEAD"), close)
        else:
            self._fail(InvalidRequest(message or "unreadable request"), close)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  http.server's name
        """Nothing: probes come every few seconds and say nothing that the metrics do not."""
