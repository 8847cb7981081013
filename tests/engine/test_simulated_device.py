"""vLLM's real engine on the simulated device: times, texts, and everything that can happen."""

from __future__ import annotations

import asyncio
import math
import statistics
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from itertools import pairwise
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

pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings("default"),  # vLLM and what it imports warn of many things
    pytest.mark.timeout(300),  # the first test of each engine waits for its start
]

LAW = "8b-rtx-pro-6000"
BLOCK_TOKENS = 16
TRANSFER_MS = 0.5


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest_asyncio.fixture(scope="module")
async def engine(model: Path) -> AsyncIterator[AsyncLLM]:
    """Plenty of everything; steps of a twentieth of the law's time, so that tests are quick."""
    with simulated_engine(model, LAW, max_num_seqs=256) as started:
        await started.collective_rpc("set_step_time_scale", args=(0.05,))
        yield started


@pytest.fixture(scope="module")
def preempted() -> list[int]:
    """An entry for every engine output that tells of preemptions."""
    return []


@pytest_asyncio.fixture(scope="module")
async def small(model: Path, preempted: list[int]) -> AsyncIterator[AsyncLLM]:
    """A KV cache that two long answers outgrow; steps are handed over before the last has ended."""
    law = "base=1,kv_tokens=1024"
    flags: dict[str, Any] = {"max_model_len": 1024, "async_scheduling": True}
    with simulated_engine(model, law, preempted=preempted, **flags) as started:
        yield started


@pytest_asyncio.fixture(scope="module")
async def offloading(model: Path, preempted: list[int]) -> AsyncIterator[AsyncLLM]:
    """A small KV cache in front of host memory, on a bus that takes its time."""
    law = f"base=1,kv_tokens=1024,transfer={TRANSFER_MS}"
    flags: dict[str, Any] = {"max_model_len": 1024, "kv_offloading_size": 1.0}
    with simulated_engine(model, law, preempted=preempted, **flags) as started:
        yield started


_ids = iter(range(10**9))


async def outputs(
    engine: AsyncLLM, prompt: list[int], *, deltas: bool = True, **sampling: Any
) -> AsyncGenerator[RequestOutput, None]:
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


# Times ------------------------------------------------------------------------------------------


@pytest_asyncio.fixture
async def slow(engine: AsyncLLM) -> AsyncIterator[AsyncLLM]:
    """Steps of twice the law's time, which other programs on the machine disturb less."""
    await engine.collective_rpc("set_step_time_scale", args=(2.0,))
    yield engine
    await engine.collective_rpc("set_step_time_scale", args=(0.05,))


async def arrivals(stream: AsyncIterator[RequestOutput]) -> list[float]:
    return [time.perf_counter() async for _ in stream]


def gaps(times: list[float]) -> list[float]:
    return [after - before for before, after in pairwise(times)]


async def test_steps_of_64_sequences_take_what_the_law_says(slow: AsyncLLM) -> None:
    sequences, steps, prompt_tokens = 64, 120, 40
    async with asyncio.TaskGroup() as group:
        streams = [
            group.create_task(
                arrivals(outputs(slow, fresh_prompt(prompt_tokens), max_tokens=steps))
            )
            for _ in range(sequences)
        ]
    law = StepTimeLaw.parse(LAW)
    errors = []
    for made, seconds in enumerate(gaps(streams[0].result()), start=1):
        context = sequences * (prompt_tokens + made - 1)
        load = StepLoad(decode_sequences=sequences, decode_context_tokens=context)
        errors.append(seconds / (2 * law.seconds(load)) - 1)
    # The first steps still have prompts in them.
    assert abs(statistics.median(errors[10:])) < 0.02


async def test_a_prompt_makes_its_step_as_long_as_the_mixed_law_says(slow: AsyncLLM) -> None:
    """Seen as the gaps in the answer that runs beside the prompts."""
    prompts, tokens = 5, 2000
    scale = 8.0
    await slow.collective_rpc("set_step_time_scale", args=(scale,))
    async with asyncio.TaskGroup() as group:
        beside = group.create_task(arrivals(outputs(slow, fresh_prompt(), max_tokens=60)))
        await asyncio.sleep(0.2)
        for _ in range(prompts):
            await complete(slow, fresh_prompt(tokens), max_tokens=1)
    longest = sorted(gaps(beside.result()))[-prompts:]
    load = StepLoad(
        decode_sequences=1,
        decode_context_tokens=80,
        chunk_tokens=tokens,
        chunk_pairs=tokens * tokens / 2,
    )
    law = StepTimeLaw.parse(LAW)
    decode = StepLoad(decode_sequences=1, decode_context_tokens=80)
    # Never shorter than the law; longer by less than the decode step that a prompt may meet.
    least = scale * law.seconds(load)
    assert 0.98 * least < statistics.median(longest) < least + scale * law.seconds(decode)


async def test_a_running_device_can_be_slowed_down(engine: AsyncLLM, slow: AsyncLLM) -> None:
    prompt = fresh_prompt()
    before = statistics.median(gaps(await arrivals(outputs(slow, prompt, max_tokens=20))))
    await engine.collective_rpc("set_step_time_scale", args=(4.0,))
    after = statistics.median(gaps(await arrivals(outputs(slow, prompt, max_tokens=20))))
    assert after / before == pytest.approx(2, rel=0.05)


@pytest.mark.parametrize(
    ("method", "arguments", "says"),
    [("set_step_time_scale", (0.0,), "0.0 times"), ("save_sharded_state", (), "no workers")],
)
async def test_what_the_device_cannot_do_fails_and_leaves_the_engine_running(
    engine: AsyncLLM, method: str, arguments: tuple[float, ...], says: str
) -> None:
    with pytest.raises(Exception, match=says):
        await engine.collective_rpc(method, args=arguments)
    assert len(await said(engine, fresh_prompt(), max_tokens=3)) == 3


# What vLLM does with it -------------------------------------------------------------------------


async def test_the_kv_cache_holds_what_the_law_says(engine: AsyncLLM, small: AsyncLLM) -> None:
    for running, tokens in ((engine, 500_000), (small, 1024)):
        # vLLM keeps one block for itself.
        blocks = running.vllm_config.cache_config.num_gpu_blocks
        assert blocks is not None
        assert (blocks - 1) * BLOCK_TOKENS == tokens


async def test_a_prompt_that_was_seen_is_not_computed_again(engine: AsyncLLM) -> None:
    prompt = fresh_prompt(200)
    assert (await complete(engine, prompt, max_tokens=2)).num_cached_tokens == 0
    # All whole blocks but the last token, which has to be computed for the first answer.
    assert (await complete(engine, prompt, max_tokens=2)).num_cached_tokens == 192
    longer = [*prompt[:100], *fresh_prompt(50)]
    assert (await complete(engine, longer, max_tokens=2)).num_cached_tokens == 96


async def test_a_client_that_leaves_disturbs_nobody(engine: AsyncLLM) -> None:
    stay, leave = [fresh_prompt() for _ in range(8)], [fresh_prompt() for _ in range(8)]
    expected = [await said(engine, prompt, max_tokens=60) for prompt in stay]

    async def look_in(prompt: list[int], pieces: int) -> None:
        async with aclosing(outputs(engine, prompt, max_tokens=3000)) as stream:
            async for _ in stream:
                if (pieces := pieces - 1) < 0:
                    return

    async with asyncio.TaskGroup() as group:
        stayed = [group.create_task(said(engine, prompt, max_tokens=60)) for prompt in stay]
        for pieces, prompt in enumerate(leave):
            group.create_task(look_in(prompt, pieces))
    assert [task.result() for task in stayed] == expected


def most_at_once(spans: list[tuple[float, float]]) -> int:
    return max(sum(begun <= at <= ended for begun, ended in spans) for at, _ in spans)


async def test_the_batch_can_be_changed_while_the_engine_runs(engine: AsyncLLM) -> None:
    async def together(requests: int) -> int:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(arrivals(outputs(engine, fresh_prompt(), max_tokens=20)))
                for _ in range(requests)
            ]
        return most_at_once([(task.result()[0], task.result()[-1]) for task in tasks])

    change = engine.engine_core.call_utility_async
    assert await change("set_batch_limits", 4, 128) == [4, 128]
    assert await together(12) <= 4
    with pytest.raises(Exception, match="active_sequences must be"):
        await change("set_batch_limits", 0, 128)
    assert await change("set_batch_limits", None, None) == [256, 2048]
    assert await together(12) > 4


async def preempted_and_not(
    engine: AsyncLLM, preempted: list[int]
) -> tuple[list[list[int]], list[list[int]]]:
    """Answers of two requests alone, then together, when they outgrow the KV cache."""
    prompts = [fresh_prompt(), fresh_prompt()]
    alone = [await said(engine, prompt, max_tokens=640) for prompt in prompts]
    preempted.clear()
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(said(engine, prompt, max_tokens=640)) for prompt in prompts]
    assert sum(preempted) > 0
    return alone, [task.result() for task in tasks]


async def test_a_preempted_answer_goes_on_as_it_would_have(
    small: AsyncLLM, preempted: list[int]
) -> None:
    assert small.vllm_config.max_concurrent_batches == 2
    alone, together = await preempted_and_not(small, preempted)
    assert alone == together
    assert all(len(answer) == 640 for answer in alone)


async def test_offloading_changes_no_answer(offloading: AsyncLLM, preempted: list[int]) -> None:
    alone, together = await preempted_and_not(offloading, preempted)
    assert alone == together


async def test_loading_from_host_memory_takes_its_time_and_holds_up_nobody(
    offloading: AsyncLLM,
) -> None:
    prompt, filling = fresh_prompt(512), [fresh_prompt(500) for _ in range(4)]
    for each in (prompt, *filling):
        await complete(offloading, each, max_tokens=2)
    # A step waits for the store of a block that it takes over: let the stores end first.
    await asyncio.sleep(2500 * TRANSFER_MS / 1000)

    tokens: list[float] = []
    runs = asyncio.Event()

    async def beside() -> None:
        async for output in outputs(offloading, fresh_prompt(), max_tokens=400):
            tokens.extend([time.perf_counter()] * len(output.outputs[0].token_ids))
            runs.set()

    async with asyncio.TaskGroup() as group:
        group.create_task(beside())
        await runs.wait()
        begun = time.perf_counter()
        loaded = await complete(offloading, prompt, max_tokens=1)
        ended = time.perf_counter()
    assert loaded.num_cached_tokens is not None
    assert loaded.num_cached_tokens > 400
    assert ended - begun >= loaded.num_cached_tokens * TRANSFER_MS / 1000
    assert sum(begun < at < ended for at in tokens) > 10
