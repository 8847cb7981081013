"""The plain routes of the API port: health, and the answers to what is not there."""

from __future__ import annotations

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from app.errors import FairgateError, InvalidRequest, MethodNotAllowed, NotFound
from app.web.answers import answer_of, encode, error_body, error_headers
from app.web.health import Health


def mount_web(app: FastAPI, health: Health) -> None:
    """Add `/health` and the error answers of everything on `app`."""

    async def is_healthy(_request: Request) -> Response:
        """200 while the engine lives and can take work, else the reason, as vLLM's `/health`."""
        error = health.not_alive() or health.not_ready()
        return Response(status_code=200) if error is None else error_response(error)

    app.add_route("/health", is_healthy, methods=["GET"])
    app.add_exception_handler(FairgateError, answer_error)
    app.add_exception_handler(HTTPException, answer_error)
    app.add_exception_handler(RequestValidationError, answer_error)


async def answer_error(request: Request, error: Exception) -> Response:
    """The house's body for every error of our routes and of the framework's."""
    if isinstance(error, HTTPException):
        return error_response(framework_error(error, request), error.headers)
    if isinstance(error, FairgateError):
        return error_response(error)
    return error_response(InvalidRequest("the request cannot be read"))


def framework_error(error: HTTPException, request: Request) -> FairgateError:
    """What the router means by its status."""
    if error.status_code == 405:
        return MethodNotAllowed(f"{request.url.path} does not take {request.method}")
    if error.status_code == 404:
        return NotFound(f"no path {request.url.path[:100]} here")
    return InvalidRequest(str(error.detail))


def error_response(error: FairgateError, headers: object = None) -> Response:
    """`error` as an HTTP response; `headers` of the framework (`Allow`) are kept."""
    response = Response(
        encode(error_body(error)),
        status_code=answer_of(error).status,
        media_type="application/json",
    )
    for name, value in error_headers(error):
        response.headers[name.decode()] = value.decode()
    if isinstance(headers, dict):
        for name, value in headers.items():
            response.headers[name] = value
    return response
