"""vLLM's errors as ours, and ours through vLLM's serving code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus

from vllm.exceptions import GracefulHTTPError, VLLMClientError, VLLMValidationError
from vllm.v1.engine.exceptions import EngineDeadError

from app.engine.api import Work
from app.errors import (
    ContextLengthExceeded,
    EngineDead,
    FairgateError,
    Internal,
    InvalidRequest,
)

ENGINE_DEAD = "the engine has died; this server is about to stop: try again on another one"


class Answered(GracefulHTTPError):
    """Carries one of our errors through vLLM's serving code; the wrapper around it answers."""

    def __init__(self, error: FairgateError) -> None:
        super().__init__(error.message, HTTPStatus.SERVICE_UNAVAILABLE)
        self.error = error


@contextmanager
def carried(work: Work) -> Iterator[None]:
    """Note our errors on `work` and carry them through vLLM's serving code."""
    try:
        yield
    except FairgateError as error:
        work.error = error
        raise Answered(error) from error


@contextmanager
def translated() -> Iterator[None]:
    """vLLM's errors as ours."""
    try:
        yield
    except (FairgateError, Answered):
        raise
    except EngineDeadError as error:
        raise EngineDead(ENGINE_DEAD) from error
    except VLLMValidationError as error:
        if error.parameter == "input_tokens" or "longer than the maximum model" in str(error):
            raise ContextLengthExceeded(str(error), param="input_tokens") from error
        raise InvalidRequest(str(error), param=error.parameter) from error
    except (VLLMClientError, ValueError, TypeError, OverflowError) as error:
        raise InvalidRequest(str(error)) from error
    except Exception as error:
        raise Internal("the engine failed on this request; try again") from error
