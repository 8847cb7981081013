"""Every way a request can go wrong, each with one stable code.

The tree (this room knows no HTTP; `web/answers.py` maps codes to statuses and close codes)::

    FairgateError
    ├── InvalidRequest                invalid_request
    │   └── ContextLengthExceeded     context_length_exceeded
    ├── InvalidApiKey                 invalid_api_key
    ├── Forbidden                     forbidden
    ├── NotFound                      not_found
    │   └── SessionNotFound           session_not_found      frames only
    ├── MethodNotAllowed              method_not_allowed
    ├── UnsupportedMediaType          unsupported_media_type
    ├── TooLarge                      too_large
    ├── Busy                          busy                   frames only
    ├── InvalidFrame                  invalid_frame          frames only
    ├── TooSlow                       too_slow               frames only
    ├── TimedOut                      timeout
    ├── Refused                       carries retry_after_seconds
    │   ├── RateLimited               rate_limited
    │   ├── TooManyConnections        too_many_connections
    │   ├── QueueFull                 queue_full
    │   ├── WaitTooLong               wait_too_long
    │   ├── Overloaded                overloaded
    │   ├── Draining                  draining
    │   ├── Loading                   loading
    │   └── EngineDead                engine_dead
    └── Internal                      internal
"""

from __future__ import annotations

from typing import ClassVar


class FairgateError(Exception):
    """A failure that a client is told about; `str(error)` is the sentence it reads.

    `param` names the field at fault where there is one.
    """

    code: ClassVar[str] = "internal"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class InvalidRequest(FairgateError):
    """The request cannot be read or can never be served; the client must change it."""

    code = "invalid_request"


class ContextLengthExceeded(InvalidRequest):
    """The prompt alone is longer than the model's context."""

    code = "context_length_exceeded"


class InvalidApiKey(FairgateError):
    """No key, or one that belongs to nobody."""

    code = "invalid_api_key"


class Forbidden(FairgateError):
    """The caller is known, or needs no key, but may not do this."""

    code = "forbidden"


class NotFound(FairgateError):
    """No such path, model or session."""

    code = "not_found"


class SessionNotFound(NotFound):
    """The chat session is unknown, expired, or another tenant's."""

    code = "session_not_found"


class MethodNotAllowed(FairgateError):
    """The path exists, the method does not."""

    code = "method_not_allowed"


class UnsupportedMediaType(FairgateError):
    """The body is of a type that this route does not read."""

    code = "unsupported_media_type"


class TooLarge(FairgateError):
    """A body or a frame beyond its limit."""

    code = "too_large"


class Busy(FairgateError):
    """A second chat message while one is being answered."""

    code = "busy"


class InvalidFrame(FairgateError):
    """A chat frame that cannot be read or is out of order."""

    code = "invalid_frame"


class TooSlow(FairgateError):
    """The reader left its buffer full for too long."""

    code = "too_slow"


class TimedOut(FairgateError):
    """The answer took longer than the tenant's `request_seconds`."""

    code = "timeout"


class Refused(FairgateError):
    """Not now: trying again after `retry_after_seconds` (at least 1) makes sense."""

    def __init__(
        self, message: str, *, retry_after_seconds: float = 1.0, param: str | None = None
    ) -> None:
        super().__init__(message, param=param)
        self.retry_after_seconds = max(1.0, retry_after_seconds)


class RateLimited(Refused):
    """The tenant's requests or tokens per minute are used up."""

    code = "rate_limited"


class TooManyConnections(Refused):
    """The tenant holds as many connections as it may."""

    code = "too_many_connections"


class QueueFull(Refused):
    """The tenant has as many requests waiting as it may."""

    code = "queue_full"


class WaitTooLong(Refused):
    """The tenant would wait, or has waited, longer than it allows."""

    code = "wait_too_long"


class Overloaded(Refused):
    """Even a tenant with nothing queued or running would wait too long now."""

    code = "overloaded"


class Draining(Refused):
    """The server is about to stop and takes no new work."""

    code = "draining"


class Loading(Refused):
    """The model is not loaded yet."""

    code = "loading"


class EngineDead(Refused):
    """The engine process has died; the server is about to stop."""

    code = "engine_dead"


class Internal(FairgateError):
    """Our fault; the log of the same request id says more."""

    code = "internal"
