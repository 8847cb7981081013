"""One request to `/summarize` or `/ask`, from its first byte to its last and its recorded end."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal

from app.engine.api import TextEngine, Work
from app.errors import FairgateError, InvalidRequest, TimedOut, TooSlow
from app.summaries.body import Body, read_body
from app.summaries.documents import Reader, Upload
from app.summaries.exchange import EventStream, Exchange
from app.summaries.fields import fields_of_json, fields_of_query, merged
from app.summaries.form import form_of
from app.summaries.hang_up import (
    ClientGone,
    Receive,
    Scope,
    Send,
    alongside,
    one_error,
    raise_when_gone,
)
from app.summaries.limits import SummaryLimits
from app.summaries.planner import Planner
from app.summaries.record import MakeWork, Record
from app.summaries.request import Source, SummaryRequest, request_of
from app.summaries.results import Json, answer_of
from app.summaries.summarizer import Summarizer
from app.web.answers import as_fairgate_error

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A complete answer, still to be sent."""

    body: Json
    queue_seconds: float | None


class Handler:
    """Answers the requests to one of the two routes, `api`."""

    def __init__(
        self,
        api: Literal["summarize", "ask"],
        engine: Callable[[], TextEngine],
        make_work: MakeWork,
        limits: SummaryLimits,
    ) -> None:
        self._api = api
        self._engine = engine
        self._make_work = make_work
        self._limits = limits
        self._reader = Reader(limits)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; the door has put its caller into the scope."""
        record = Record(scope["state"]["caller"], self._api, self._make_work)
        exchange = Exchange(send, self._limits)
        try:
            body = await read_body(scope, receive, max_bytes=self._limits.body_bytes)
            request = await alongside(
                self._parse(scope["query_string"], body), raise_when_gone(receive)
            )
            del body  # its text is in the request; megabytes need not wait for their summary
            if request.stream:
                exchange = EventStream(send, self._limits)
            answer = await alongside(
                self._answer(request, record, exchange),
                raise_when_gone(receive),
                exchange.keep_awake(),
            )
            await exchange.finish(answer.body, answer.queue_seconds)
            record.finished()
        except ClientGone:
            record.aborted()
        except asyncio.CancelledError:
            record.aborted()
            raise
        except Exception as error:
            await self._fail(record, exchange, error)

    async def _parse(self, query: bytes, body: Body) -> SummaryRequest:
        """The request in any of its forms; documents that are files are read here."""
        fields = fields_of_query(query)
        uploads: list[Upload] | None = None
        if body.media_type == "application/json" or body.media_type.endswith("+json"):
            fields = merged(fields, fields_of_json(body))
        elif body.media_type == "multipart/form-data":
            form = await form_of(body)
            fields, uploads = merged(fields, form.fields), form.files or None
        else:
            uploads = [Upload(data=body.data, media_type=body.media_type, charset=body.charset)]
        return request_of(
            fields,
            max_documents=self._limits.documents,
            uploads=None if uploads is None else await self._all(uploads),
            asking=self._api == "ask",
        )

    async def _all(self, uploads: list[Upload]) -> tuple[Source, ...]:
        if len(uploads) > self._limits.documents:
            raise InvalidRequest(
                f"send at most {self._limits.documents} files at once", param="file"
            )
        with one_error():
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._one(upload)) for upload in uploads]
        return tuple([task.result() for task in tasks])

    async def _one(self, upload: Upload) -> Source:
        name = upload.file_name or None
        try:
            return Source(id=name, text=await self._reader.text_of(upload))
        except FairgateError as error:
            return Source(id=name, error=error)

    async def _answer(self, request: SummaryRequest, record: Record, exchange: Exchange) -> Answer:
        engine = self._engine()
        model = request.model or engine.model.name
        record.check_model(engine.model, model)
        plan = await Planner(engine, self._limits.calls).plan(request)
        work = record.begin(streamed=request.stream, batch=plan.calls > 1)
        making = Summarizer(engine, work, plan, exchange, self._limits.parallel_calls)
        async with _deadline(work):
            results = await making.run()
        timing = making.timing
        name = f"{self._api}-{work.request_id}"
        body = answer_of(name, model, results, timing, many=request.many)
        return Answer(body=body, queue_seconds=timing.queue_seconds)

    async def _fail(self, record: Record, exchange: Exchange, error: Exception) -> None:
        told = as_fairgate_error(error)
        if told is not error:
            # Not the exception's own text: it may quote the document.
            _log.error(
                "summaries.failed",
                extra={
                    "request_id": record.request_id,
                    "error": type(error).__name__,
                    "where": "".join(traceback.format_tb(error.__traceback__)),
                },
            )
        try:
            if not isinstance(told, TooSlow):  # a full buffer takes no word of farewell
                await exchange.fail(told)
        except Exception:  # there is nobody left to tell
            _log.info("summaries.untold", extra={"request_id": record.request_id})
        finally:
            record.failed(told)


@asynccontextmanager
async def _deadline(work: Work) -> AsyncIterator[None]:
    """Raise `TimedOut` at the deadline of `work`, if it has one."""
    try:
        async with asyncio.timeout_at(work.deadline_seconds) as limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        raise TimedOut("the summary took longer than your requests may") from None
