"""Tenants over real sockets: who gets in, what each may have, and whose cache it finds."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.tenants.keys import key_hash
from tests.serving import SIMULATED, Served, serving

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

CHAT = "/v1/chat/completions"
FILE = f"""
tenants:
  - {{id: a, keys: ["{key_hash("key-a")}"]}}
  - {{id: b, keys: ["{key_hash("key-b")}"]}}
  - {{id: slow, keys: ["{key_hash("key-slow")}"], limits: {{requests_per_minute: 2}}}}
  - {{id: small, keys: ["{key_hash("key-small")}"], limits: {{tokens_per_minute: 500}}}}
  - {{id: short, keys: ["{key_hash("key-short")}"], limits: {{output_tokens: 5}}}}
  - {{id: other, keys: ["{key_hash("key-other")}"], models: [some-adapter]}}
  - {{id: ops, keys: ["{key_hash("key-ops")}"], admin: true}}
"""


@pytest.fixture(scope="module")
def tenants_file() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "tenants.yaml")
        path.write_text(FILE)
        yield path


@pytest.fixture(scope="module")
def served(tenants_file: Path) -> Iterator[Served]:
    flags = (*SIMULATED, "--block-size", "16", "--enable-prompt-tokens-details")
    with serving(*flags, env={"FAIRGATE_TENANTS_FILE": str(tenants_file)}) as gateway:
        yield gateway


@pytest.fixture
async def client(served: Served) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=served.url, timeout=60, trust_env=False) as http:
        yield http


async def ask(
    client: httpx.AsyncClient, key: str | None, content: str = "hi", **fields: Any
) -> httpx.Response:
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": 8} | fields
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    return await client.post(CHAT, json=body, headers=headers)


def cached(response: httpx.Response) -> int:
    details = response.json()["usage"]["prompt_tokens_details"]
    return details["cached_tokens"] if details else 0


@pytest.mark.parametrize("path", [CHAT, "/v1/models", "/tokenize", "/summarize", "/admin/state"])
async def test_no_route_answers_without_a_key(client: httpx.AsyncClient, path: str) -> None:
    for headers in ({}, {"authorization": "Bearer nobodys"}):
        response = await client.post(path, json={}, headers=headers)
        assert (response.status_code, response.json()["error"]["code"]) == (401, "invalid_api_key")


async def test_a_prompt_is_cached_within_its_tenant_and_never_across(
    client: httpx.AsyncClient,
) -> None:
    prompt = "the same long prompt " * 30
    assert cached(await ask(client, "key-a", prompt)) == 0
    assert cached(await ask(client, "key-a", prompt)) > 100
    assert cached(await ask(client, "key-b", prompt)) == 0
    assert cached(await ask(client, "key-b", prompt, cache_salt="a")) == 0


async def test_requests_per_minute_are_refused_beyond_the_limit_and_say_when(
    client: httpx.AsyncClient,
) -> None:
    answers = [await ask(client, "key-slow") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert answers[0].headers["x-ratelimit-limit-requests"] == "2"
    assert answers[1].headers["x-ratelimit-remaining-requests"] == "0"
    assert answers[2].json()["error"]["code"] == "rate_limited"
    assert 1 <= int(answers[2].headers["retry-after"]) <= 120


async def test_tokens_per_minute_are_settled_to_what_was_used(client: httpx.AsyncClient) -> None:
    never = await ask(client, "key-small", max_tokens=1000)
    assert (never.status_code, never.json()["error"]["code"]) == (400, "invalid_request")
    # Each reserves more than half of the limit and uses a tenth.
    for _ in range(3):
        assert (await ask(client, "key-small", max_tokens=300, stop=[" "])).status_code == 200
    streamed = await ask(client, "key-small", max_tokens=460, stream=True, ignore_eos=True)
    assert streamed.status_code == 429


async def test_output_tokens_cut_the_answer_and_models_hide_the_rest(
    client: httpx.AsyncClient,
) -> None:
    answer = (await ask(client, "key-short", max_tokens=50)).json()
    assert answer["usage"]["completion_tokens"] == 5
    assert answer["choices"][0]["finish_reason"] == "length"
    hidden = await ask(client, "key-other")
    assert (hidden.status_code, hidden.json()["error"]["code"]) == (404, "not_found")


async def test_admission_is_shown_to_admins_alone(client: httpx.AsyncClient) -> None:
    await ask(client, "key-a")
    state = await client.get("/admin/state", headers={"authorization": "Bearer key-ops"})
    assert "a" in {tenant["tenant"] for tenant in state.json()["tenants"]}
    refused = await client.get("/admin/state", headers={"authorization": "Bearer key-a"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "forbidden")


async def test_the_file_is_followed_and_a_bad_one_keeps_the_old_tenants(
    client: httpx.AsyncClient, served: Served, tenants_file: Path
) -> None:

    async def write(text: str) -> None:
        await asyncio.to_thread(tenants_file.write_text, text)

    await write("tenants: [{id: broken, weigth: 1}]")
    await reloaded(served, "failed", 1)
    assert (await ask(client, "key-a")).status_code == 200
    await write(FILE + f'  - {{id: new, keys: ["{key_hash("key-new")}"]}}\n')
    await reloaded(served, "loaded", 1)
    assert (await ask(client, "key-new")).status_code == 200
    await write(FILE)
    await reloaded(served, "loaded", 2)
    assert (await ask(client, "key-new")).status_code == 401


async def reloaded(served: Served, result: str, times: int) -> None:
    for _ in range(100):
        if served.metric("fairgate_tenants_reload_total", result=result) >= times:
            return
        await asyncio.sleep(0.1)
    raise AssertionError(served.output()[-2000:])
