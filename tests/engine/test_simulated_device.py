"""vLLM's real engine on the simulated device: times, texts, and everything that can happen."""

from __future__ import annotations

import asyncio
import math
import statistics
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from app.engine.simulation import refuse_unsupported
from app.engine.step_time import StepLoad, StepTimeLaw
from tests.engine.simulated_engine import simulated_engine, tiny_model

if TYPE_CHECKING:
    from vllm import RequestOutput
    from vllm.v1.engine.async_llm import AsyncLLM

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("default")]

LAW = "8b-rtx-pro-6000"
BLOCK_TOKENS = 16


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest_asyncio.fixture(scope="module")
async def engine(model: Path) -> AsyncIterator[AsyncLLM]:
    """Plenty of everything; its steps take a twentieth of the law's time, so that tests are quick."""
    with simulated_engine(model, LAW, max_num_seqs=256) as started:
        await started.collective_rpc("set_step_time_scale", args=(0.05,))
        yield started


@pytest_asyncio.fixture(scope="module")
async def small(model: Path) -> AsyncIterator[AsyncLLM]:
    """A KV cache that two long answers outgrow, and steps handed over before the last one ended."""
    law = "base=1,kv_tokens=1024"
    with simulated_engine(model, law, async_scheduling=True, max_model_len=1024) as started:
        yield started


@pytest_asyncio.fixture(scope="module")
async def offloading(model: Path) -> AsyncIterator[AsyncLLM]:
    """A small KV cache in front of host memory, over a bus that takes 1 ms for a token."""
    law = "base=1,kv_tokens=1024,transfer=1"
    flags = {"max_model_len": 1024, "kv_offloading_size": 1.0}
    with simulated_engine(model, law, **flags) as started:
        yield started


_ids = iter(range(10**9))


async def outputs(
    engine: AsyncLLM, prompt: list[int], *, deltas: bool = True, **sampling: Any
) -> AsyncIterator[RequestOutput]:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    kind = RequestOutputKind.DELTA if deltas else RequestOutputKind.FINAL_ONLY
    parameters = SamplingParams(output_kind=kind, **sampling)
    request = {"prompt_token_ids": prompt}
    async with aclosing(engine.generate(request, parameters, f"test-{next(_ids)}")) as stream:
        async for output in stream:
            yield output


async def complete(engine: AsyncLLM, prompt: list[int], **sampling: Any) -> RequestOutput:
    last = None
    async for output in outputs(engine, prompt, deltas=False, **sampling):
        last = output
    assert last is not None
    return last


async def said(engine: AsyncLLM, prompt: list[int], **sampling: Any) -> list[int]:
    return list((await complete(engine, prompt, **sampling)).outputs[0].token_ids)


def fresh_prompt(tokens: int = 64) -> list[int]:
    """A prompt that no other test has sent, so that nothing of it is cached."""
    number = next(_ids)
    return [3 + number % 1000, 3 + number // 1000, *[7] * (tokens - 2)]


# Texts ------------------------------------------------------------------------------------------


async def test_the_same_request_is_told_the_same_again(engine: AsyncLLM) -> None:
    prompt = fresh_prompt()
    assert await said(engine, prompt, max_tokens=30) == await said(engine, prompt, max_tokens=30)
    seeded = await said(engine, prompt, max_tokens=30, seed=4)
    assert seeded == await said(engine, prompt, max_tokens=30, seed=4)
    assert seeded != await said(engine, prompt, max_tokens=30, seed=5)
    assert seeded != await said(engine, fresh_prompt(), max_tokens=30, seed=4)


@pytest.mark.parametrize("seed", [None, 11])
async def test_choices_of_one_request_differ_and_come_again(
    engine: AsyncLLM, seed: int | None
) -> None:
    prompt = fresh_prompt()
    first, again = [
        [tuple(choice.token_ids) for choice in output.outputs]
        for output in (
            await complete(engine, prompt, n=4, max_tokens=12, seed=seed),
            await complete(engine, prompt, n=4, max_tokens=12, seed=seed),
        )
    ]
    assert len(set(first)) == 4
    assert sorted(first) == sorted(again)


async def test_an_answer_is_readable_text_at_every_token(engine: AsyncLLM) -> None:
    pieces = [o.outputs[0].text async for o in outputs(engine, fresh_prompt(), max_tokens=50)]
    text = "".join(pieces)
    assert len(text.split()) == 50
    assert all(word.isalpha() and word.isascii() for word in text.split())
    assert all(piece.startswith(" ") for piece in pieces if piece)


@pytest.mark.parametrize("limit", [1, 2, 37])
async def test_an_answer_is_as_long_as_it_may_be(engine: AsyncLLM, limit: int) -> None:
    choice = (await complete(engine, fresh_prompt(), max_tokens=limit)).outputs[0]
    assert len(choice.token_ids) == limit
    assert choice.finish_reason == "length"


async def test_an_answer_without_a_limit_ends_by_itself(engine: AsyncLLM) -> None:
    prompt = fresh_prompt()
    ended = (await complete(engine, prompt, max_tokens=4096 - len(prompt))).outputs[0]
    assert ended.finish_reason == "stop"
    assert ended.token_ids[-1] == 0
    again = await said(engine, prompt, max_tokens=4096 - len(prompt))
    assert again == list(ended.token_ids)


async def test_who_ignores_the_end_token_gets_all_there_is_room_for(engine: AsyncLLM) -> None:
    prompt = fresh_prompt(3600)
    limit = 4096 - len(prompt)
    choice = (await complete(engine, prompt, max_tokens=limit, ignore_eos=True)).outputs[0]
    assert (len(choice.token_ids), choice.finish_reason) == (limit, "length")


async def test_stop_strings_and_allowed_tokens_hold(engine: AsyncLLM) -> None:
    prompt = fresh_prompt()
    tokens = await said(engine, prompt, max_tokens=30)
    word = engine.get_tokenizer().decode([tokens[9]])
    stopped = (await complete(engine, prompt, max_tokens=30, stop=[word])).outputs[0]
    assert (stopped.finish_reason, stopped.stop_reason) == ("stop", word)
    assert len(stopped.token_ids) == 10
    allowed = await said(engine, prompt, max_tokens=30, allowed_token_ids=tokens[:3])
    assert set(allowed) == set(tokens[:3])


async def test_stop_tokens_are_never_said(engine: AsyncLLM) -> None:
    prompt = fresh_prompt()
    tokens = await said(engine, prompt, max_tokens=30)
    others = await said(engine, prompt, max_tokens=30, stop_token_ids=tokens[5:7], min_tokens=10)
    assert len(others) == 30
    assert set(tokens[5:7]).isdisjoint(others)


async def test_log_probabilities_are_finite_and_fit_the_tokens(engine: AsyncLLM) -> None:
    """Beside a request that asks for none, and one that asks for another number of them."""
    three, none, zero = await asyncio.gather(
        complete(engine, fresh_prompt(), max_tokens=20, logprobs=3),
        complete(engine, fresh_prompt(), max_tokens=20),
        complete(engine, fresh_prompt(), max_tokens=20, logprobs=0),
    )
    assert none.outputs[0].logprobs is None
    for output, at_least in ((three, 3), (zero, 1)):
        choice = output.outputs[0]
        assert choice.logprobs is not None
        assert len(choice.logprobs) == len(choice.token_ids) == 20
        for token, table in zip(choice.token_ids, choice.logprobs, strict=True):
            assert len(table) == at_least
            assert table[token].rank == 1
            assert all(math.isfinite(entry.logprob) for entry in table.values())
            assert sum(math.exp(entry.logprob) for entry in table.values()) <= 1
            assert all(entry.decoded_token for entry in table.values())
        assert math.isfinite(choice.cumulative_logprob)


async def test_a_prompt_has_log_probabilities_too(engine: AsyncLLM) -> None:
    prompt = fresh_prompt(2500)  # more than one step computes
    output = await complete(engine, prompt, max_tokens=3, prompt_logprobs=2)
    tables = output.prompt_logprobs
    assert tables is not None
    assert len(tables) == len(prompt)
    assert tables[0] is None
    for token, table in zip(prompt[1:], tables[1:], strict=True):
        assert table[token].rank == 1
        assert 2 <= len(table) <= 3
        assert all(math.isfinite(entry.logprob) for entry in table.values())


async def test_structured_output_is_refused_and_if_sent_ends_with_an_error(
    engine: AsyncLLM,
) -> None:
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    structure = StructuredOutputsParams(json={"type": "object"})
    reason = refuse_unsupported(SamplingParams(structured_outputs=structure))
    assert reason is not None
    assert "response_format" in reason
    assert refuse_unsupported(SamplingParams(max_tokens=5, logprobs=2, seed=1)) is None
    ended = await complete(engine, fresh_prompt(), max_tokens=9, structured_outputs=structure)
    assert ended.outputs[0].finish_reason == "error"
    assert len(await said(engine, fresh_prompt(), max_tokens=9)) == 9
