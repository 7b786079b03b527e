"""The model that a request names, and asking the engines by the name they know it under.

Where a client asked for a pool by a name that is the operator's and no engine's, that name is written over:
in the body, and in the bodies that its prompts are counted with. Every other byte stays as it came.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from kvgate.api.multipart import form_fields, with_field
from kvgate.api.rewrite import with_model

if TYPE_CHECKING:
    from kvgate_policies.types import InferenceRequest

__all__ = ["body_with_model", "model_of", "request_with_model"]


class _Named(msgspec.Struct):
    model: Any = None


_DECODER = msgspec.json.Decoder(_Named)


def model_of(body: bytes, content_type: str = "") -> str | None:
    """The model that a body names, JSON or form; None when it names none, or is neither."""
    form = form_fields(body, content_type)
    if form is not None:
        return form.get("model")
    try:
        model = _DECODER.decode(body).model
    except (msgspec.MsgspecError, RecursionError):
        return None
    return model if isinstance(model, str) else None


def body_with_model(body: bytes, content_type: str, name: str) -> bytes:
    """The body with another model. Raises ValueError for one that no name can be written into."""
    if form_fields(body, content_type) is not None:
        return with_field(body, content_type, "model", name)
    return with_model(body, name)


def request_with_model(request: InferenceRequest, name: str) -> InferenceRequest:
    """The parsed request with another model, also where its prompts are counted."""
    counted = tuple({**body, "model": name} if "model" in body else body for body in request.tokenize)
    return replace(request, model=name, tokenize=counted)
