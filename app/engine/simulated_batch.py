"""The sequences a simulated device knows, and what a step of them costs and says.

vLLM sends a request once, then its id and two numbers a step: how much of it is computed, and how
much of its answer is made. Nothing else is kept of it but what it is told (`made_up_text.Answer`).
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from vllm.tokenizers import cached_tokenizer_from_config
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import ModelRunnerOutput

from app.engine.made_up_logprobs import LogprobsRequest, logprobs_of
from app.engine.made_up_text import Answer, MadeUpText, words_of
from app.engine.step_time import StepLoad

if TYPE_CHECKING:
    from vllm.config import ModelConfig


class SimulatedBatch:
    """Owned by one device. `answer_tokens`: mean length of every answer, see `MadeUpText`."""

    def __init__(self, model: "ModelConfig", *, answer_tokens: int | None) -> None:
        # Read at every new request: vLLM may lower the context after it has sized the KV cache.
        self._model = model
        self._vocab_tokens: int = model.get_vocab_size()
        words = words_of(cached_tokenizer_from_config(model), self._vocab_tokens)
        self._text = MadeUpText(words, answer_tokens=answer_tokens)
        self._answers: dict[str, Answer] = {}
        self._logprobs: dict[str, LogprobsRequest] = {}

    def step(self, scheduled: SchedulerOutput) -> tuple[StepLoad | None, ModelRunnerOutput]:
        """The cost of a step, None where it has no tokens, and its output.

        Every sequence of which the step computes the last known token gets the next one.
        """
        for request_id in scheduled.finished_req_ids:
            self._answers.pop(request_id, None)
            self._logprobs.pop(request_id, None)
        counts, answers = scheduled.num_scheduled_tokens, self._answers
        ids: list[str] = []
        indices: list[int] = []
        tokens: list[list[int]] = []
        chunks: list[tuple[int, int]] = []
        decodes = decode_context = 0
        for request_id, computed, made in self._scheduled(scheduled):
            answer, count = answers[request_id], counts[request_id]
            if count == 1:
                decodes += 1
                decode_context += computed
            else:
                chunks.append((count, computed))
            due = computed + count >= answer.prompt_tokens + made
            ids.append(request_id)
            indices.append(made)
            tokens.append([answer.token(made)] if due else [])
        output = ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={request_id: place for place, request_id in enumerate(ids)},
            sampled_token_ids=tokens,
        )
        if not ids:
            return None, output
        if self._logprobs:
            self._add_logprobs(output, indices)
        return StepLoad.of(decodes, decode_context, chunks), output

    def _scheduled(self, scheduled: SchedulerOutput) -> Iterator[tuple[str, int, int]]:
        """Each sequence of a step: its id, tokens computed before, and output tokens made before.

        The latter count those of steps still under way, with asynchronous scheduling.
        """
        cached = scheduled.scheduled_cached_reqs
        yield from zip(
            cached.req_ids, cached.num_computed_tokens, cached.num_output_tokens, strict=True
        )
        for new in scheduled.scheduled_new_reqs:
            self._answers[new.req_id] = self._text.answer(
                new, context_tokens=self._model.max_model_len
            )
            wanted = LogprobsRequest(new, self._vocab_tokens)
            if wanted.of_output or wanted.of_prompt:
                self._logprobs[new.req_id] = wanted
            # vLLM's second model runner gets preempted requests as new ones, with their output.
            known = len(new.prefill_token_ids or ()) or new.prompt_len
            yield new.req_id, new.num_computed_tokens, known - new.prompt_len

    def _add_logprobs(self, output: ModelRunnerOutput, indices: list[int]) -> None:
        rows: list[list[int]] = [[] for _ in indices]
        for place, request_id in enumerate(output.req_ids):
            wanted = self._logprobs.get(request_id)
            if wanted is None or not output.sampled_token_ids[place]:
                continue
            answer, index = self._answers[request_id], indices[place]
            if wanted.of_output:
                rows[place] = wanted.output_row(answer, index)
            if wanted.of_prompt and index == 0:
                output.prompt_logprobs_dict[request_id] = wanted.prompt_table(answer)
        if any(rows):
            output.logprobs = logprobs_of(rows)
