"""Step-time laws: what a LAW text means, and how it is refused."""

from __future__ import annotations

import ast
import statistics
import sys
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine import step_time
from app.engine.step_time import LAW_NAMES, StepLoad, StepTimeLaw


def decodes(sequences: int, context_tokens: int) -> StepLoad:
    return StepLoad(decode_sequences=sequences, decode_context_tokens=context_tokens)


def chunk(tokens: int, behind: int, beside: StepLoad) -> StepLoad:
    return StepLoad.of(beside.decode_sequences, beside.decode_context_tokens, [(tokens, behind)])


@pytest.mark.parametrize(
    ("name", "load", "milliseconds"),
    [
        ("8b-rtx-pro-6000", decodes(64, 64_000), 11.07 + 0.0189 * 64 + 8.86e-5 * 64_000),
        ("32b-rtx-pro-6000", decodes(8, 9_000), 45.6 + 0.0797 * 8 + 1.77e-4 * 9_000),
        # 100 tokens stay below the knee of 256; 1064 go 808 beyond it.
        (
            "8b-rtx-pro-6000",
            chunk(90, 500, decodes(10, 5_000)),
            12.23 + 0.0163 * 100 + 1.54e-4 * 5_000 + 2.44e-6 * 90 * 545,
        ),
        (
            "8b-rtx-pro-6000",
            chunk(1000, 2000, decodes(64, 64_000)),
            12.23 + 0.0163 * 1064 + 0.0172 * 808 + 1.54e-4 * 64_000 + 2.44e-6 * 1000 * 2500,
        ),
        (
            "32b-rtx-pro-6000",
            chunk(1000, 0, decodes(64, 64_000)),
            48.2 + 0.0873 * 1064 + 0.0657 * 808 + 5.36e-4 * 64_000 + 8.59e-6 * 1000 * 500,
        ),
    ],
    ids=["8b decode", "32b decode", "8b below the knee", "8b mixed", "32b mixed"],
)
def test_a_named_law_is_the_fit_it_is_named_after(
    name: str, load: StepLoad, milliseconds: float
) -> None:
    assert StepTimeLaw.parse(name).seconds(load) == pytest.approx(milliseconds / 1000)


def test_a_law_of_costs_counts_tokens_and_context_alike_in_prompts_and_answers() -> None:
    law = StepTimeLaw.parse("base=20,token=0.1,kv=0.0001")
    assert law.seconds(decodes(10, 4000)) == pytest.approx((20 + 1 + 0.4) / 1000)
    mixed = chunk(500, 3000, decodes(10, 4000))
    assert law.seconds(mixed) == pytest.approx((20 + 51 + 0.7) / 1000)


def test_the_load_of_several_chunks_is_the_sum_of_theirs() -> None:
    load = StepLoad.of(3, 700, [(100, 0), (50, 400)])
    assert load == StepLoad(
        decode_sequences=3,
        decode_context_tokens=700,
        chunk_tokens=150,
        chunk_context_tokens=400,
        chunk_pairs=100 * 50 + 50 * 425,
    )


def test_a_cost_that_is_not_named_is_nothing() -> None:
    assert StepTimeLaw.parse("base=0").seconds(decodes(10, 4000)) == 0
    assert StepTimeLaw.parse(" token = 0.5 ").seconds(decodes(4, 0)) == pytest.approx(0.002)


def test_each_law_has_its_own_kv_cache() -> None:
    assert StepTimeLaw.parse("8b-rtx-pro-6000").kv_tokens == 500_000
    assert StepTimeLaw.parse("32b-rtx-pro-6000").kv_tokens == 80_000
    assert StepTimeLaw.parse("base=1").kv_tokens == 500_000


def test_a_copy_of_a_token_takes_what_its_bytes_take_on_the_bus() -> None:
    assert StepTimeLaw.parse("8b-rtx-pro-6000").transfer_ms == pytest.approx(131_072 / 50e6)
    assert StepTimeLaw.parse("32b-rtx-pro-6000").transfer_ms == pytest.approx(262_144 / 50e6)


@pytest.mark.parametrize("law", [*LAW_NAMES, "base=1"])
def test_settings_go_beside_a_name_and_beside_costs(law: str) -> None:
    plain = StepTimeLaw.parse(law)
    law_set = StepTimeLaw.parse(f"{law},kv_tokens=4_096, noise=0.1,seed=7,transfer=0.5,answer=40")
    assert law_set.kv_tokens == 4096
    assert (law_set.noise, law_set.seed) == (0.1, 7)
    assert (law_set.transfer_ms, law_set.answer_tokens) == (0.5, 40)
    assert (law_set.decode, law_set.mixed) == (plain.decode, plain.mixed)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", ["empty", "8b-rtx-pro-6000", "base=20"]),
        ("  ", ["empty"]),
        ("8b-rtx-pro-600", ["'8b-rtx-pro-600'", "nearest known is 8b-rtx-pro-6000"]),
        ("32b", ["'32b'", "nearest known is 32b-rtx-pro-6000"]),
        ("8b-rtx-4090", ["not offered", "no fit", "nearest law is 8b-rtx-pro-6000"]),
        ("bse=20", ["'bse'", "nearest known is base"]),
        ("base=20,kv_token=5", ["'kv_token'", "nearest known is kv_tokens"]),
        ("base", ["'base'", "base=NUMBER"]),
        ("base=20,", ["''", "key=value"]),
        ("base=20,noise", ["'noise'", "key=value"]),
        ("8b-rtx-pro-6000,32b-rtx-pro-6000", ["'32b-rtx-pro-6000'", "key=value"]),
        ("8b-rtx-pro-6000,base=3", ["'base=3'", "8b-rtx-pro-6000", "kv_tokens"]),
        ("noise=0.1", ["no cost", "base=20"]),
        ("base=20,base=30", ["'base'", "twice"]),
        ("base=fast", ["base='fast'", "number"]),
        ("base=-1", ["base=-1", "from 0"]),
        ("base=nan", ["base=nan", "from 0"]),
        ("base=inf", ["base=inf", "to 600000"]),
        ("base=1,kv_tokens=0", ["kv_tokens=0", "from 1"]),
        ("base=1,kv_tokens=1.5", ["kv_tokens='1.5'", "whole number"]),
        ("base=1,answer=0", ["answer=0", "from 1"]),
        ("base=1,seed=-1", ["seed=-1"]),
        ("base=1,noise=10", ["noise=10", "from 0 to 1"]),
    ],
)
def test_a_bad_law_is_refused_by_the_piece_that_is_wrong(text: str, says: list[str]) -> None:
    with pytest.raises(ValueError, match="step-time law") as refused:
        StepTimeLaw.parse(text)
    assert [part for part in says if part not in str(refused.value)] == []


KEYS = st.sampled_from(["base", "token", "kv", "kv_tokens", "noise", "seed", "transfer", "answer"])
NUMBERS = st.one_of(st.integers().map(str), st.floats().map(str), st.text(max_size=8))
PIECES = st.one_of(st.tuples(KEYS, NUMBERS).map("=".join), st.text(max_size=20), KEYS)


@given(st.lists(PIECES, max_size=4).map(",".join))
def test_any_other_text_is_a_law_that_can_be_kept_or_is_refused(text: str) -> None:
    try:
        law = StepTimeLaw.parse(text)
    except ValueError:
        return
    assert 0 <= law.seconds(decodes(1000, 1_000_000)) < 1e9
    assert next(law.noise_factors()) > 0


def test_noise_is_as_large_as_it_says_around_the_law() -> None:
    factors = list(islice(StepTimeLaw.parse("base=1,noise=0.2,seed=3").noise_factors(), 20_000))
    assert statistics.fmean(factors) == pytest.approx(1, abs=0.005)
    assert statistics.stdev(factors) == pytest.approx(0.2, rel=0.03)
    assert min(factors) > 0


def test_noise_is_the_same_for_the_same_seed_and_rank_and_for_no_other() -> None:
    def factors(text: str, rank: int = 0) -> list[float]:
        return list(islice(StepTimeLaw.parse(text).noise_factors(rank), 50))

    assert factors("base=1,noise=0.1,seed=5") == factors("base=9,noise=0.1,seed=5")
    assert factors("base=1,noise=0.1,seed=5") != factors("base=1,noise=0.1,seed=6")
    assert factors("base=1,noise=0.1,seed=5") != factors("base=1,noise=0.1,seed=5", rank=1)


def test_without_noise_every_step_takes_what_the_law_says() -> None:
    assert list(islice(StepTimeLaw.parse("base=1").noise_factors(), 3)) == [1.0, 1.0, 1.0]


def test_laws_are_read_without_vllm() -> None:
    """Simulators without an engine use the same laws: nothing but the standard library."""
    tree = ast.parse(Path(step_time.__file__).read_text())
    modules = {n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    modules |= {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    assert modules <= sys.stdlib_module_names | {"collections.abc"}
