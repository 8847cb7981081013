"""The door: who comes in, under which id, and what is refused before any route is asked."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.errors import Draining, FairgateError
from app.tenants.keys import key_hash
from app.tenants.model import ANONYMOUS, Limits, Tenant
from app.web.caller import Anonymous, Caller, Keys, OneTenant
from app.web.middleware import Door, DoorRules, Visits
from app.web.origins import Origins

KEY = "fg_secret-key_1"
WITH_KEY = [(b"authorization", b"Bearer " + KEY.encode())]


class Inside:
    """The application behind the door: remembers who came in, reads the body, answers 200."""

    def __init__(self) -> None:
        self.scopes: list[Any] = []

    @property
    def caller(self) -> Caller:
        caller: Caller = self.scopes[-1]["state"]["caller"]
        return caller

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.scopes.append(scope)
        if scope["type"] == "websocket":
            await send({"type": "websocket.accept", "headers": []})
            return
        message = {"more_body": True}
        while message.get("more_body"):
            message = await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})


class Answer:
    def __init__(self, messages: list[Any]) -> None:
        self.status = messages[0].get("status", 101)
        self.headers = dict(messages[0].get("headers", ()))
        self.body = b"".join(m.get("body", b"") for m in messages[1:])

    @property
    def code(self) -> str:
        code: str = json.loads(self.body)["error"]["code"]
        return code


async def visit(
    inside: Inside,
    headers: list[tuple[bytes, bytes]] | None = None,
    *,
    keys: Keys | None = None,
    closed: FairgateError | None = None,
    chunks: tuple[bytes, ...] = (b"",),
    **scope: Any,
) -> Answer:
    door = Door(
        inside,
        DoorRules(
            keys=keys or OneTenant(Tenant(id="acme"), {key_hash(KEY)}),
            closed=lambda: closed,
            origins=Origins(("https://app.example",), "127.0.0.1"),
            visits=Visits(),
            max_body_bytes=10,
        ),
    )
    sent: list[Any] = []
    parts = iter(chunks)

    async def receive() -> Any:
        part = next(parts)
        return {"type": "http.request", "body": part, "more_body": part != chunks[-1]}

    async def send(message: Any) -> None:
        sent.append(message)

    base = {
        "type": "http",
        "scheme": "http",
        "method": "POST",
        "path": "/summarize",
        "server": ("127.0.0.1", 8000),
        "headers": [(b"host", b"127.0.0.1:8000"), *(headers or [])],
    }
    await door(base | scope, receive, send)
    return Answer(sent)


async def test_a_known_key_becomes_its_tenant() -> None:
    inside = Inside()
    assert (await visit(inside, WITH_KEY)).status == 200
    assert inside.caller.tenant.id == "acme"


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"Bearer",
        b"Bearer  ",
        b"Basic fg_secret-key_1",
        b"Bearer wrong",
        b"Bearer na\xefve",
        b"Bearer \xf0\x9f\x98\x80",
        b"Bearer " + b"x" * 65536,
    ],
)
async def test_without_a_known_key_nobody_gets_in(value: bytes | None) -> None:
    inside = Inside()
    answer = await visit(inside, [] if value is None else [(b"authorization", value)])
    assert (answer.status, answer.code) == (401, "invalid_api_key")
    assert answer.headers[b"www-authenticate"] == b"Bearer"
    assert inside.scopes == []


@pytest.mark.parametrize("scheme", [b"bearer", b"BEARER", b"Bearer "])
async def test_the_scheme_is_read_in_any_case(scheme: bytes) -> None:
    answer = await visit(Inside(), [(b"authorization", scheme + b" " + KEY.encode())])
    assert answer.status == 200


@pytest.mark.parametrize("path", ["/docs", "/openapi.json", "//v1/models", "/V1/models", "/x/../"])
async def test_every_path_but_health_asks_for_the_key(path: str) -> None:
    assert (await visit(Inside(), path=path, method="GET")).status == 401


async def test_health_asks_for_no_key() -> None:
    assert (await visit(Inside(), path="/health", method="GET")).status == 200


async def test_headers_that_name_a_tenant_rank_or_priority_change_nothing() -> None:
    inside = Inside()
    claims = [
        (b"x-tenant-id", b"other"),
        (b"x-forwarded-user", b"other"),
        (b"x-data-parallel-rank", b"1"),
        (b"x-vllm-priority", b"-9"),
        (b"x-session-id", b"s"),
    ]
    await visit(inside, [*WITH_KEY, *claims])
    names = {name for name, _ in inside.scopes[0]["headers"]}
    assert inside.caller.tenant.id == "acme"
    assert not names & {b"x-data-parallel-rank", b"x-vllm-priority", b"x-session-id"}


async def test_a_sane_request_id_is_kept_and_any_other_replaced() -> None:
    inside = Inside()
    good = await visit(inside, [*WITH_KEY, (b"x-request-id", b"abc-1")])
    assert good.headers[b"x-request-id"] == b"abc-1"
    for bad in (b"x" * 1000, b"a b", b'"', b"\xf0\x9f\x98\x80", b""):
        answer = await visit(inside, [*WITH_KEY, (b"x-request-id", bad)])
        assert answer.headers[b"x-request-id"] != bad
        assert len(answer.headers[b"x-request-id"]) == 32
        # Whoever reads the header behind the door finds the id that the client is told.
        seen = [v for k, v in inside.scopes[-1]["headers"] if k == b"x-request-id"]
        assert seen == [answer.headers[b"x-request-id"]]


async def test_a_refusal_carries_a_request_id_too() -> None:
    assert (await visit(Inside())).headers[b"x-request-id"]


async def test_a_closed_door_refuses_everything_but_health_and_closes_the_connection() -> None:
    closed = Draining("going", retry_after_seconds=5)
    answer = await visit(Inside(), WITH_KEY, closed=closed)
    assert (answer.status, answer.code) == (503, "draining")
    assert answer.headers[b"retry-after"] == b"5"
    assert answer.headers[b"connection"] == b"close"
    assert (await visit(Inside(), path="/health", method="GET", closed=closed)).status == 200


async def test_a_class_may_be_lowered_and_never_raised() -> None:
    inside = Inside()
    await visit(inside, [*WITH_KEY, (b"x-fairgate-class", b"batch")])
    assert inside.caller.work_class == "batch"
    batch = OneTenant(Tenant(id="b", work_class="batch"), {key_hash(KEY)})
    await visit(inside, [*WITH_KEY, (b"x-fairgate-class", b"interactive")], keys=batch)
    assert inside.caller.work_class == "batch"
    answer = await visit(inside, [*WITH_KEY, (b"x-fairgate-class", b"urgent")])
    assert (answer.status, answer.code) == (400, "invalid_request")


@pytest.mark.parametrize("value", [b"soon", b"-1", b"nan", b"inf", b"1e9"])
async def test_a_wait_that_is_no_time_is_refused(value: bytes) -> None:
    answer = await visit(Inside(), [*WITH_KEY, (b"x-fairgate-max-wait", value)])
    assert (answer.status, answer.code) == (400, "invalid_request")


async def test_a_wait_is_kept_in_seconds() -> None:
    inside = Inside()
    await visit(inside, [*WITH_KEY, (b"x-fairgate-max-wait", b"2.5")])
    assert inside.caller.max_wait_seconds == 2.5


@pytest.mark.parametrize("announced", [True, False])
async def test_a_body_beyond_the_limit_is_refused_while_it_arrives(announced: bool) -> None:
    length = [(b"content-length", b"11")] if announced else []
    answer = await visit(Inside(), [*WITH_KEY, *length], chunks=(b"x" * 6, b"y" * 5))
    assert (answer.status, answer.code) == (413, "too_large")


async def test_a_body_at_the_limit_passes() -> None:
    assert (await visit(Inside(), WITH_KEY, chunks=(b"x" * 6, b"y" * 4))).status == 200


@pytest.mark.parametrize(
    "header",
    [
        (b"content-encoding", b"gzip"),
        (b"content-type", b"application/json; charset=utf-16"),
        (b"content-type", b'application/json; charset="latin-1"'),
    ],
)
async def test_only_plain_utf8_bodies_are_read(header: tuple[bytes, bytes]) -> None:
    answer = await visit(Inside(), [*WITH_KEY, header])
    assert (answer.status, answer.code) == (415, "unsupported_media_type")


def socket_scope(*protocols: str) -> dict[str, Any]:
    return {"type": "websocket", "scheme": "ws", "path": "/chat", "subprotocols": list(protocols)}


async def test_a_socket_may_bring_its_key_as_a_subprotocol_or_later() -> None:
    inside = Inside()
    answer = await visit(inside, **socket_scope("fairgate.chat.v1", f"bearer.{KEY}"))
    assert answer.status == 101
    assert inside.caller.tenant.id == "acme"
    await visit(inside, **socket_scope("fairgate.chat.v1"))
    assert inside.scopes[-1]["state"]["caller"] is None
    wrong = await visit(inside, **socket_scope("bearer.wrong"))
    assert (wrong.status, wrong.code) == (401, "invalid_api_key")


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        (None, True),
        (b"http://127.0.0.1:8000", True),
        (b"https://app.example", True),
        (b"https://APP.example:443", True),
        (b"https://evil.example", False),
        (b"https://app.example.evil.test", False),
        (b"http://app.example", False),
        (b"null", False),
        (b"", False),
    ],
)
async def test_a_page_of_another_origin_opens_no_socket(
    origin: bytes | None, allowed: bool
) -> None:
    headers = [*WITH_KEY, *([] if origin is None else [(b"origin", origin)])]
    answer = await visit(Inside(), headers, **socket_scope())
    assert answer.status == (101 if allowed else 403)


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        (b"127.0.0.1:8000", True),
        (b"localhost:8000", True),
        (b"[::1]:8000", True),
        (b"app.example", False),
        (b"rebound.evil.example:8000", False),
        (b"127.0.0.1.evil.example", False),
        (b"", False),
    ],
)
async def test_where_nobody_needs_a_key_only_our_own_hosts_are_served(
    host: bytes, allowed: bool
) -> None:
    answer = await visit(Inside(), [(b"host", host)], keys=Anonymous(ANONYMOUS))
    assert answer.status == (200 if allowed else 403)
    if not allowed:
        assert answer.code == "forbidden"


async def test_a_failure_behind_the_door_is_an_internal_error_without_its_words() -> None:
    async def broken(_scope: Any, _receive: Any, _send: Any) -> None:
        raise RuntimeError("secret")

    answer = await visit(broken, WITH_KEY)  # type: ignore[arg-type]
    assert (answer.status, answer.code) == (500, "internal")
    assert b"secret" not in answer.body


async def test_limits_of_a_tenant_travel_with_its_caller() -> None:
    inside = Inside()
    keys = OneTenant(Tenant(id="a", limits=Limits(output_tokens=7)), {key_hash(KEY)})
    await visit(inside, WITH_KEY, keys=keys)
    assert inside.caller.tenant.limits.output_tokens == 7
