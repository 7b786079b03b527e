"""vLLM's error answers, word for word: clients and proxies match on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(eq=False)
class RequestRefused(Exception):
    """A request is answered with an error: its HTTP status and the four fields of the body."""

    status: int
    message: str
    type: str
    param: str | None = None

    @property
    def body(self) -> dict[str, Any]:
        """OpenAI's shape."""
        fields = {"message": self.message, "type": self.type, "param": self.param, "code": self.status}
        return {"error": fields}

    @property
    def anthropic_body(self) -> dict[str, Any]:
        """Anthropic's shape; vLLM answers a body of the wrong shape in OpenAI's even there."""
        if self.type == "Bad Request":
            return self.body
        return {"type": "error", "error": {"type": self.type, "message": self.message}}


def busy() -> RequestRefused:
    """`--max-num-queued-reqs` is reached."""
    message = (
        "The engine is currently busy and cannot accept new requests. "
        "Please try again later or on a different instance."
    )
    return RequestRefused(503, message, "Service Unavailable")


def engine_dead() -> RequestRefused:
    message = "EngineCore encountered an issue. See stack trace (above) for the root cause."
    return RequestRefused(500, message, "InternalServerError")


def bad_request(message: str, param: str | None = None, value: object = None) -> RequestRefused:
    """A value that vLLM checked itself; a named parameter is repeated at the end of the message."""
    if param is not None:
        shown = f", value={value}" if value is not None else ""
        message += f" (parameter={param}{shown})"
    return RequestRefused(400, message, "BadRequestError", param)


def schema_error(kind: str, location: str, message: str, value: str, context: str = "") -> RequestRefused:
    """A body that does not have the shape of the endpoint's model."""
    detail = f"{{'type': '{kind}', 'loc': '{location}', 'msg': '{message}', 'input': '{value}'{context}}}"
    return RequestRefused(400, f"1 validation error:\n  {detail}", "Bad Request", location)


def wrong_content_type() -> RequestRefused:
    message = "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"
    return RequestRefused(400, message, "Bad Request")


def unknown_model(model: str, served: str) -> RequestRefused:
    message = f"The model `{model}` does not exist. Valid aliases: {served}."
    return RequestRefused(404, message, "NotFoundError", "model")


def scale_out_disabled() -> RequestRefused:
    message = "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them."
    return RequestRefused(403, message, "PermissionDeniedError")
