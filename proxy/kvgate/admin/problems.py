"""Errors of the admin port, as RFC 9457 problems."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException as StarletteHTTPException

from kvgate.admin.models import ProblemView

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fastapi import FastAPI, Request, Response

SHOWN_CHARS_MAX = 200
"""Of what a client sent, when it is shown to it again."""


def handle_problems(app: FastAPI) -> None:
    app.add_exception_handler(StarletteHTTPException, _http_problem)
    app.add_exception_handler(RequestValidationError, _body_problem)


def told(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The problems that a path answers with, for the schema."""
    about = {"model": ProblemView, "content": {"application/problem+json": {}}}
    return {status: {**about, "description": HTTPStatus(status).phrase} for status in statuses}


def _http_problem(_: Request, error: Exception) -> Response:
    if not isinstance(error, StarletteHTTPException):
        raise error
    return _problem(error.status_code, str(error.detail), error.headers)


def _body_problem(_: Request, error: Exception) -> Response:
    if not isinstance(error, RequestValidationError):
        raise error
    wrong = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}{_sent(e)}" for e in error.errors())
    return _problem(
        422, f"{wrong[:1000]}. The body is JSON, sent as application/json; see /admin/openapi.json.", None
    )


def _sent(error: Mapping[str, Any]) -> str:
    """What was there instead; not of a part of the body that is not even a value."""
    value = error["input"]
    return f", not {str(value)[:SHOWN_CHARS_MAX]!r}" if isinstance(value, str | int | float) else ""


def _problem(status: int, detail: str, headers: object) -> Response:
    body = {"title": HTTPStatus(status).phrase, "status": status, "detail": detail}
    given = dict(headers) if isinstance(headers, dict) else {}
    return JSONResponse(body, status, {**given, "content-type": "application/problem+json"})
