"""How long one engine step takes on a device that is not here: the step-time law.

A law is a value, written as one short text (`--simulate LAW`): either the name of a fitted law, or
coefficients in milliseconds, each with optional settings of the device behind it.

    8b-rtx-pro-6000
    32b-rtx-pro-6000,kv_tokens=40000,noise=0.1,seed=7
    base=20,token=0.1,kv=0.0001

Standard library only, so that a simulator without vLLM reads the same laws.

Source of the fitted laws: linear fits of the project's own to measured layer profiles of vLLM on an
RTX PRO 6000, models of 8B and 32B parameters (mean absolute error: pure decode 1.1 %; mixed 8.4 %
for 8B, 5.7 % for 32B). They hold layer sums: no CPU overhead. The profiles of an RTX 4090 give a
decode regime (16.9 + 0.0416 n + 1.41e-4 KV) and no mixed one, so that law is not offered.
"""

import difflib
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

KNEE_TOKENS = 256
"""Tokens of a mixed step beyond which each costs more: fitted for 8B, taken over for 32B."""

LINK_BYTES_PER_MS = 50e6
"""PCIe 5.0 x16 as copies reach it: 50 GB/s of its 63."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLoad:
    """What one step computes: single tokens (decodes, mostly) and chunks of prompts.

    A sequence that computes one token is a decode, whatever the token, as for attention kernels.

    For a chunk of p tokens behind a context of k: `chunk_tokens` sums p, `chunk_context_tokens`
    sums k, and `chunk_pairs` sums p * (k + p / 2), the pairs of tokens that attend to each other.
    """

    decode_sequences: int
    decode_context_tokens: int
    chunk_tokens: int = 0
    chunk_context_tokens: int = 0
    chunk_pairs: float = 0.0

    @staticmethod
    def of(
        decode_sequences: int, decode_context_tokens: int, chunks: Sequence[tuple[int, int]]
    ) -> "StepLoad":
        """`chunks` are pairs: tokens of a chunk, and of the context behind it."""
        return StepLoad(
            decode_sequences=decode_sequences,
            decode_context_tokens=decode_context_tokens,
            chunk_tokens=sum(tokens for tokens, _ in chunks),
            chunk_context_tokens=sum(context for _, context in chunks),
            chunk_pairs=sum(tokens * (context + tokens / 2) for tokens, context in chunks),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Regime:
    """Milliseconds per step and per unit of its load."""

    step_ms: float
    token_ms: float
    token_beyond_knee_ms: float = 0.0
    decode_context_ms: float = 0.0
    chunk_context_ms: float = 0.0
    chunk_pair_ms: float = 0.0

    def milliseconds(self, load: StepLoad) -> float:
        """Time of a step of this load."""
        tokens = load.decode_sequences + load.chunk_tokens
        return (
            self.step_ms
            + self.token_ms * tokens
            + self.token_beyond_knee_ms * max(0, tokens - KNEE_TOKENS)
            + self.decode_context_ms * load.decode_context_tokens
            + self.chunk_context_ms * load.chunk_context_tokens
            + self.chunk_pair_ms * load.chunk_pairs
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimeLaw:
    """A device as its step times show it, and what else of it can be set.

    `kv_tokens`: what its KV cache holds, rounded up to whole blocks. `transfer_ms`: copying the KV
    of one token to or from host memory. `noise`: relative standard deviation of a step's time.
    `answer_tokens`: mean length at which every answer ends by itself; None: only those without a
    limit of their own end by themselves, at a mean of DEFAULT_ANSWER_TOKENS, and every other one is
    exactly as long as it may be.
    """

    decode: Regime
    mixed: Regime
    kv_tokens: int = 500_000
    kv_bytes_per_token: int = 131_072
    transfer_ms: float = 131_072 / LINK_BYTES_PER_MS
    noise: float = 0.0
    seed: int = 0
    answer_tokens: int | None = None

    @staticmethod
    def parse(text: str) -> "StepTimeLaw":
        """The law that a LAW text states; ValueError names the piece that is wrong."""
        pieces = [piece.strip() for piece in text.split(",")] if text.strip() else []
        if not pieces:
            raise ValueError(f"the step-time law is empty: {_HOW_TO}")
        if "=" not in pieces[0]:
            return replace(_named(pieces[0]), **_settings(pieces[1:], law_name=pieces[0]))
        settings = _settings(pieces, law_name=None)
        costs = {key: settings.pop(key) for key in _COSTS if key in settings}
        if not costs:
            raise ValueError(f"the step-time law {text!r} says no cost: {_HOW_TO}")
        return replace(_linear(**costs), **settings)

    def seconds(self, load: StepLoad) -> float:
        """Time of a step of this load, without noise."""
        regime = self.mixed if load.chunk_tokens else self.decode
        return regime.milliseconds(load) / 1000

    def noise_factors(self, rank: int = 0) -> Iterator[float]:
        """Endless factors of mean 1 for the steps of one rank: the same for the same seed.

        Log-normal, so that no factor is negative however large the noise.
        """
        if not self.noise:
            while True:
                yield 1.0
        spread = math.log1p(self.noise * self.noise)
        draw = random.Random(f"{self.seed}/{rank}")
        while True:
            yield draw.lognormvariate(-spread / 2, math.sqrt(spread))


DEFAULT_ANSWER_TOKENS = 256
"""Mean length of the answers that nobody limits; chats of the Azure trace of 2023 have 211."""

_COSTS = ("base", "token", "kv")
_SETTINGS = ("kv_tokens", "transfer", "noise", "seed", "answer")

_NAMED = {
    "8b-rtx-pro-6000": StepTimeLaw(
        decode=Regime(step_ms=11.07, token_ms=0.0189, decode_context_ms=8.86e-5),
        mixed=Regime(
            step_ms=12.23,
            token_ms=0.0163,
            token_beyond_knee_ms=0.0172,
            decode_context_ms=1.54e-4,
            chunk_pair_ms=2.44e-6,
        ),
    ),
    "32b-rtx-pro-6000": StepTimeLaw(
        decode=Regime(step_ms=45.6, token_ms=0.0797, decode_context_ms=1.77e-4),
        mixed=Regime(
            step_ms=48.2,
            token_ms=0.0873,
            token_beyond_knee_ms=0.0657,
            decode_context_ms=5.36e-4,
            chunk_pair_ms=8.59e-6,
        ),
        kv_tokens=80_000,
        # 64 layers, 8 KV heads of 128, two bytes, keys and values.
        kv_bytes_per_token=262_144,
        transfer_ms=262_144 / LINK_BYTES_PER_MS,
    ),
}
LAW_NAMES = tuple(_NAMED)

_HOW_TO = (
    f"give a name ({', '.join(_NAMED)}) or costs in milliseconds (base=20,token=0.1,kv=0.0001)"
)


def _linear(*, base: float = 0.0, token: float = 0.0, kv: float = 0.0) -> StepTimeLaw:
    """Both regimes alike: every scheduled token costs the same, and every token of context."""
    regime = Regime(step_ms=base, token_ms=token, decode_context_ms=kv, chunk_context_ms=kv)
    return StepTimeLaw(decode=regime, mixed=regime)


def _named(name: str) -> StepTimeLaw:
    if name in _NAMED:
        return _NAMED[name]
    if name == "8b-rtx-4090":
        raise ValueError(
            "the step-time law 8b-rtx-4090 is not offered: it has no fit for steps with prompts in "
            "them, only for pure decoding; the nearest law is 8b-rtx-pro-6000"
        )
    if name in (*_COSTS, *_SETTINGS):
        raise ValueError(f"{name!r} in the step-time law has no value: write {name}=NUMBER")
    raise ValueError(f"unknown step-time law {name!r}: {_nearest(name, LAW_NAMES)}; or {_HOW_TO}")


def _settings(pieces: list[str], *, law_name: str | None) -> dict[str, Any]:
    """What the pieces `key=value` set, by the names of the law's fields (costs keep their own)."""
    found: dict[str, Any] = {}
    for piece in pieces:
        key, equals, value = (part.strip() for part in piece.partition("="))
        if not equals:
            raise ValueError(f"{piece!r} in the step-time law is not of the form key=value")
        if key in _COSTS and law_name is not None:
            raise ValueError(
                f"{piece!r} does not go with the step-time law {law_name}, which is fitted: "
                f"beside a name only {', '.join(_SETTINGS)} can be set"
            )
        if key not in (*_COSTS, *_SETTINGS):
            raise ValueError(
                f"unknown setting {key!r} in the step-time law: {_nearest(key, _COSTS + _SETTINGS)}"
            )
        field, number = _FIELDS.get(key, key), _number(key, value)
        if field in found:
            raise ValueError(f"{key!r} stands twice in the step-time law")
        found[field] = number
    return found


_FIELDS = {"transfer": "transfer_ms", "answer": "answer_tokens"}
_WHOLE = ("kv_tokens", "answer", "seed")
_LEAST = {"kv_tokens": 1, "answer": 1}
_MOST = {"noise": 1, "kv_tokens": 100_000_000, "answer": 100_000_000, "seed": 2**63}
_MOST_MS = 600_000


def _number(key: str, text: str) -> float | int:
    kind, read = ("whole number", int) if key in _WHOLE else ("number", float)
    try:
        number = read(text)
    except ValueError:
        raise ValueError(f"{key}={text!r} in the step-time law is not a {kind}") from None
    least, most = _LEAST.get(key, 0), _MOST.get(key, _MOST_MS)
    if not least <= number <= most:
        raise ValueError(f"{key}={text} in the step-time law must be from {least} to {most}")
    return number


def _nearest(name: str, known: tuple[str, ...]) -> str:
    return f"the nearest known is {difflib.get_close_matches(name, known, n=1, cutoff=0)[0]}"
