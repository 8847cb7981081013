"""What a simulated device says: made-up words, the same for the same request.

Every token of an answer is a function of the request and the token's index alone, so an answer that
is preempted and resumed, or computed again, goes on as it would have. Two prompts, seeds, adapters
or choices of one request (`n`) give different texts. Words are tokens of the served tokenizer that
read as a word on their own, so the text is valid UTF-8 at every token.

An answer is exactly as long as `max_tokens` allows. One without a limit (so that only the context
limits it) ends by itself, with the end token, after a length drawn from a geometric distribution;
where the law sets `answer`, every answer does, unless its limit comes first. `ignore_eos` holds.
"""

import math
from array import array
from collections.abc import Sequence
from hashlib import blake2b
from itertools import islice
from typing import TYPE_CHECKING, Any

from app.engine.step_time import DEFAULT_ANSWER_TOKENS

if TYPE_CHECKING:
    from vllm import SamplingParams
    from vllm.v1.core.sched.output import NewRequestData

WORDS = 4096
"""Enough for varied text; the first ids of a vocabulary are its most frequent words."""

FEWEST_WORDS = 64
"""With fewer than this, any printable token counts as a word."""


def words_of(tokenizer: Any, vocab_tokens: int) -> tuple[int, ...]:
    """Ids of the tokens to speak with; never a special token, never part of a character.

    `tokenizer` is None where the engine serves token ids only: then any id is as good.
    """
    words = _ordinary_words(tokenizer, vocab_tokens) if tokenizer is not None else []
    words = words or list(range(min(vocab_tokens, WORDS)))
    # A power of two, so that an odd stride visits every word before it repeats one.
    return tuple(words[: 1 << (len(words).bit_length() - 1)])


def _ordinary_words(tokenizer: Any, vocab_tokens: int) -> list[int]:
    special = set(tokenizer.all_special_ids)
    pieces = sorted((token, piece) for piece, token in tokenizer.get_vocab().items())
    ordinary = [item for item in pieces if item[0] < vocab_tokens and item[0] not in special]
    words = (token for token, piece in ordinary if _is_word(tokenizer, token, piece))
    found = list(islice(words, WORDS))
    if len(found) >= FEWEST_WORDS:
        return found
    readable = (token for token, _ in ordinary if _is_readable(tokenizer.decode([token])))
    return list(islice(readable, WORDS)) or [token for token, _ in ordinary[:WORDS]]


def _is_word(tokenizer: Any, token: int, piece: str) -> bool:
    # Byte-level vocabularies mark a leading space by Ġ, SentencePiece by ▁.
    word = piece[1:]
    plain = piece[:1] in ("Ġ", "▁") and len(word) > 1 and word.isascii() and word.isalpha()
    return plain and tokenizer.decode([token]).strip() == word


def _is_readable(text: str) -> bool:
    return bool(text.strip()) and text.isprintable() and "\N{REPLACEMENT CHARACTER}" not in text


class Answer:
    """What one request is told, and what its device remembers of it.

    `end_index` is the index of the end token, None where only the engine ends the answer.
    """

    __slots__ = ("_end_index", "_end_token", "_start", "_stride", "_words", "prompt_tokens")

    def __init__(
        self,
        *,
        prompt_tokens: int,
        words: Sequence[int],
        digest: bytes,
        end_index: int | None,
        end_token: int | None,
    ) -> None:
        self.prompt_tokens = prompt_tokens
        self._words = words
        self._start = int.from_bytes(digest[:8])
        self._stride = int.from_bytes(digest[8:12]) | 1
        self._end_index = end_index
        self._end_token = end_token

    def token(self, index: int) -> int:
        """The token at this index of the answer."""
        if index == self._end_index and self._end_token is not None:
            return self._end_token
        return self._words[(self._start + index * self._stride) % len(self._words)]

    def others(self, index: int, count: int) -> list[int]:
        """Tokens that could have stood at this index, likeliest first, the one that does first."""
        here = self.token(index)
        if count > len(self._words):
            return [here, *[token for token in range(count + 1) if token != here]][:count]
        ahead = (self.token(index + step) for step in range(1, count + 1))
        return [here, *[token for token in ahead if token != here]][:count]


class MadeUpText:
    """Gives every request its answer.

    `answer_tokens`: mean length at which each ends by itself; None: see the module.
    """

    def __init__(self, words: Sequence[int], *, answer_tokens: int | None) -> None:
        self._words = words
        self._word_set = frozenset(words)
        self._answer_tokens = answer_tokens

    def answer(self, new: "NewRequestData", *, context_tokens: int) -> Answer:
        """The answer to a request that is scheduled for the first time."""
        sampling = new.sampling_params
        if sampling is None:
            raise TypeError(f"request {new.req_id} is none for text")
        digest = _digest(new, sampling)
        return Answer(
            prompt_tokens=new.prompt_len,
            words=self._allowed_words(sampling),
            digest=digest,
            end_index=self._end_index(new.prompt_len, sampling, digest, context_tokens),
            end_token=sampling.eos_token_id,
        )

    def _allowed_words(self, sampling: "SamplingParams") -> Sequence[int]:
        """Never a token at which the engine would stop: only the end token ends an answer."""
        words, stops = self._words, sampling.all_stop_token_ids
        if sampling.allowed_token_ids:
            words = sampling.allowed_token_ids
        elif stops.isdisjoint(self._word_set):
            return words
        return [word for word in words if word not in stops] or words

    def _end_index(
        self, prompt_tokens: int, sampling: "SamplingParams", digest: bytes, context_tokens: int
    ) -> int | None:
        limit = sampling.max_tokens
        unlimited = limit is None or prompt_tokens + limit >= context_tokens
        if sampling.eos_token_id is None or not (unlimited or self._answer_tokens):
            return None
        mean = self._answer_tokens or DEFAULT_ANSWER_TOKENS
        return max(_geometric(mean, int.from_bytes(digest[12:16])), sampling.min_tokens)


def _geometric(mean: int, draw: int) -> int:
    """A length of at least 1; `draw` is one of 2**32 numbers, all alike."""
    if mean == 1:
        return 1
    return math.ceil(math.log((draw + 0.5) / 2**32) / math.log1p(-1 / mean))


def _digest(new: "NewRequestData", sampling: "SamplingParams") -> bytes:
    """What makes the request this one: prompt, adapter, and seed or place among its siblings."""
    # vLLM names the choices of one request 0_id, 1_id, ...; with a seed each has its own already.
    head, separator, _ = new.req_id.partition("_")
    choice = int(head) if separator and head.isdecimal() else 0
    adapter = new.lora_request.lora_int_id if new.lora_request is not None else 0
    voice = f"choice {choice}" if sampling.seed is None else f"seed {sampling.seed}"
    prompt = array("q", new.prompt_token_ids or [new.prompt_len])
    return blake2b(
        prompt.tobytes() + f"{voice} adapter {adapter}".encode(), digest_size=16
    ).digest()
