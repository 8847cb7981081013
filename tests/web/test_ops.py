"""What probes and scrapers are told, over real sockets."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Iterator

import pytest

from app.web.health import STALL_SECONDS, Health
from app.web.ops import OpsServer
from tests.fakes import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def health(clock: FakeClock) -> Health:
    return Health(clock.now)


@pytest.fixture
def ops(health: Health) -> Iterator[OpsServer]:
    server = OpsServer("127.0.0.1", 0, health, lambda accept: ("text/plain", accept.encode()))
    server.start()
    yield server
    server.stop()


def ask(ops: OpsServer, path: str, method: str = "GET", **headers: str) -> tuple[int, str, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", ops.port, timeout=10)
    try:
        connection.request(method, path, headers=headers)
        response = connection.getresponse()
        return response.status, response.getheader("content-type") or "", response.read()
    finally:
        connection.close()


def code(answer: tuple[int, str, bytes]) -> tuple[int, str]:
    return answer[0], json.loads(answer[2])["error"]["code"]


def test_readiness_follows_the_life_of_the_process(ops, health):
    """And each refusal has its reason, in the house's error body."""
    health.loading("reading the weights")
    status, content_type, body = ask(ops, "/readyz")
    assert (status, content_type) == (503, "application/json")
    error = json.loads(body)["error"]
    assert error["code"] == "loading"
    assert "reading the weights" in error["message"]
    health.ready()
    assert ask(ops, "/readyz")[0] == 200
    health.drain()
    assert code(ask(ops, "/readyz")) == (503, "draining")
    health.stop()
    assert code(ask(ops, "/readyz")) == (503, "draining")


def test_a_drain_that_begins_while_loading_is_not_undone_by_ready(ops, health):
    health.drain()
    health.ready()
    assert code(ask(ops, "/readyz")) == (503, "draining")


def test_the_process_is_alive_until_its_engine_is_dead(ops, health):
    for change in (health.ready, health.drain, health.stop):
        assert ask(ops, "/livez")[0] == 200
        change()
    health.engine_died("killed by signal 9")
    assert code(ask(ops, "/livez")) == (503, "engine_dead")
    assert code(ask(ops, "/readyz")) == (503, "engine_dead")


def test_an_engine_that_is_silent_with_work_in_it_is_not_alive(ops, health, clock):
    health.ready()
    clock.move(10 * STALL_SECONDS)
    assert ask(ops, "/livez")[0] == 200  # idle engines are silent for hours
    health.in_flight = 3
    clock.move(STALL_SECONDS)
    assert ask(ops, "/livez")[0] == 200
    health.last_output_monotonic = clock.now()
    clock.move(STALL_SECONDS)
    health.in_flight = 4  # more work is no output
    assert ask(ops, "/livez")[0] == 200
    clock.move(1)
    assert code(ask(ops, "/livez")) == (503, "engine_dead")
    health.last_output_monotonic = clock.now()
    assert ask(ops, "/livez")[0] == 200


def test_the_page_is_asked_for_in_the_scrapers_format(ops):
    answer = ask(ops, "/metrics?x=1", accept="application/openmetrics-text")
    assert answer == (200, "text/plain", b"application/openmetrics-text")


def test_a_page_that_fails_is_a_500_and_the_port_lives_on(health, caplog):
    def fails(_accept: str) -> tuple[str, bytes]:
        raise ValueError("duplicate series")

    server = OpsServer("127.0.0.1", 0, health, fails)
    server.start()
    assert code(ask(server, "/metrics")) == (500, "internal")
    assert ask(server, "/livez")[0] == 200
    server.stop()
    assert "duplicate series" in caplog.text


def test_head_is_get_without_the_body(ops, health):
    """A body would be read as the beginning of the next answer on the connection."""
    health.ready()
    connection = http.client.HTTPConnection("127.0.0.1", ops.port, timeout=10)
    for method in ("HEAD", "GET", "HEAD"):
        connection.request(method, "/readyz")
        response = connection.getresponse()
        assert response.status == 200
        assert response.getheader("content-length") == "18"
        assert len(response.read()) == (18 if method == "GET" else 0)
    connection.close()


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "FOO"])
def test_other_methods_are_405(ops, method):
    assert code(ask(ops, "/livez", method)) == (405, "method_not_allowed")


@pytest.mark.parametrize("path", ["/", "/metrics/", "/LIVEZ", "/v1/models"])
def test_other_paths_are_404(ops, path):
    assert code(ask(ops, path)) == (404, "not_found")


def test_an_unreadable_request_is_a_400_of_ours(ops):
    with socket.create_connection(("127.0.0.1", ops.port), timeout=10) as connection:
        connection.sendall(b"GET /livez HTTP/1.1 and more\r\n\r\n")
        answer = connection.makefile("rb").read()
    assert b" 400 " in answer.splitlines()[0]
    assert b'"code":"invalid_request"' in answer


def test_a_connection_serves_probe_after_probe(ops, health):
    """Scrapers keep theirs open; what they got must be complete each time."""
    health.ready()
    connection = http.client.HTTPConnection("127.0.0.1", ops.port, timeout=10)
    for _ in range(3):
        connection.request("GET", "/readyz")
        assert json.loads(connection.getresponse().read()) == {"status": "ready"}
        used = connection.sock
        assert used is not None
    connection.close()


def test_hanging_connections_do_not_keep_probes_waiting(ops):
    """However many there are: beyond a bound they are closed, and places come back."""
    hanging = [socket.create_connection(("127.0.0.1", ops.port), timeout=10) for _ in range(40)]
    assert ask(ops, "/livez")[0] == 200
    hanging += [socket.create_connection(("127.0.0.1", ops.port), timeout=10) for _ in range(60)]
    assert hanging[-1].recv(1) == b""  # the bound was passed
    for connection in hanging:
        connection.close()
    for _ in range(200):
        try:
            if ask(ops, "/livez")[0] == 200:
                break
        except (OSError, http.client.HTTPException):
            threading.Event().wait(0.02)
    else:
        raise AssertionError("the places did not come back")


def test_a_taken_port_is_an_error_at_once(ops, health):
    with pytest.raises(OSError, match="in use"):
        OpsServer("127.0.0.1", ops.port, health, lambda _: ("", b""))
