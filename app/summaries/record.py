"""The one `Work` of a request and its one end, however early the request goes wrong."""

from __future__ import annotations

from typing import Protocol

from app.engine.api import Api, ModelInfo, Work
from app.errors import FairgateError, NotFound, TooSlow
from app.web.caller import Caller


class MakeWork(Protocol):
    """The gateway's way of turning a caller into work."""

    def __call__(self, caller: Caller, api: Api, /, *, streamed: bool, batch: bool = False) -> Work:
        """`batch` where the request needs several engine calls.

        Raises:
            FairgateError: refused before anything is done.
        """


class Record:
    """What is known of a request before its work is made, and the end of both."""

    def __init__(self, caller: Caller, api: Api, make_work: MakeWork) -> None:
        self._caller = caller
        self._api = api
        self._make_work = make_work
        self._work: Work | None = None

    @property
    def request_id(self) -> str:
        """The id by which logs and answers name the request."""
        return self._caller.request_id

    def check_model(self, served: ModelInfo, model: str) -> None:
        """Raise `NotFound` where the tenant may not use `model`: it learns nothing more."""
        if not served.open_to(self._caller.tenant.models, model):
            raise NotFound(f"the model `{model}` does not exist", param="model")

    def begin(self, *, streamed: bool, batch: bool) -> Work:
        """The work, now that it is known what it is."""
        self._work = self._make_work(self._caller, self._api, streamed=streamed, batch=batch)
        return self._work

    def finished(self) -> None:
        """The client has its last byte."""
        self._any_work().end("finished")

    def aborted(self) -> None:
        """The client has left."""
        self._any_work().end("aborted")

    def failed(self, error: FairgateError) -> None:
        """The client was told `error`, or did not read."""
        if isinstance(error, TooSlow):
            self._any_work().end("aborted", error.code)
        else:
            self._any_work().end_with(error)

    def _any_work(self) -> Work:
        """The work, made now if the request never came so far: every request is counted once."""
        if self._work is None:
            self._work = self._make_work(self._caller, self._api, streamed=False)
        return self._work
