"""Log probabilities for made-up tokens: finite, halved from rank to rank.

The token that is said is always the likeliest, at one half.
"""

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from vllm.v1.outputs import LogprobsLists, LogprobsTensors

from app.engine.made_up_text import Answer

if TYPE_CHECKING:
    from vllm import SamplingParams
    from vllm.v1.core.sched.output import NewRequestData


class LogprobsRequest:
    """Which log probabilities one request wants.

    `vocab_tokens` is how many it gets where it asks for all.
    """

    __slots__ = ("_labels", "_prompt", "_prompt_ranks", "_ranks")

    def __init__(self, new: "NewRequestData", vocab_tokens: int) -> None:
        sampling: SamplingParams = new.sampling_params
        self._labels = sampling.logprob_token_ids or ()
        self._ranks = _ranks(sampling.num_logprobs, vocab_tokens)
        self._prompt_ranks = _ranks(sampling.prompt_logprobs, vocab_tokens)
        self._prompt = new.prompt_token_ids if self.of_prompt else None

    @property
    def of_output(self) -> bool:
        """Whether it wants those of its answer."""
        return self._ranks is not None

    @property
    def of_prompt(self) -> bool:
        """Whether it wants those of its prompt."""
        return self._prompt_ranks is not None

    def output_row(self, answer: Answer, index: int) -> list[int]:
        """Tokens to give probabilities for at this index of the answer, the one said first."""
        return [answer.token(index), *(self._labels or answer.others(index, self._ranks or 0))]

    def prompt_table(self, answer: Answer) -> LogprobsTensors:
        """Those of the whole prompt but its first token, which nothing predicts."""
        ranks = self._prompt_ranks or 0
        rows = [
            [token, *[token, *answer.others(place, ranks)][:ranks]]
            for place, token in enumerate((self._prompt or ())[1:])
        ]
        table = _table(rows, 1 + ranks)
        return LogprobsTensors(*map(_tensor, table[:3]))


def logprobs_of(rows: list[list[int]]) -> LogprobsLists:
    """Those of a step: a row for each of its sequences, empty where it wants none."""
    return _table(rows, max(map(len, rows)))


def _tensor(column: np.ndarray) -> torch.Tensor:
    tensor = torch.from_numpy(column)
    # An empty array of numpy's has stride 0, at which vLLM's serializer ends the engine: a prompt
    # of one token has no row.
    return tensor if tensor.numel() else torch.empty(tensor.shape, dtype=tensor.dtype)


def _table(rows: list[list[int]], columns: int) -> LogprobsLists:
    ids = np.zeros((len(rows), columns), dtype=np.int32)
    for place, row in enumerate(rows):
        ids[place, : len(row)] = row
    # The first column is the token that is said, the second the likeliest: the same token.
    halvings = np.maximum(np.arange(columns), 1)
    return LogprobsLists(
        logprob_token_ids=ids,
        logprobs=np.tile((-math.log(2) * halvings).astype(np.float32), (len(rows), 1)),
        sampled_token_ranks=np.ones(len(rows), dtype=np.int32),
    )


def _ranks(wanted: int | None, vocab_tokens: int) -> int | None:
    return vocab_tokens if wanted == -1 else wanted
