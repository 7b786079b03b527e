"""From the bytes of a request to an `InferenceRequest`: only what pricing, counting and relaying need.

Promises: never raises; never changes a number; never refuses what vLLM would take, but for JSON that no
client sends on purpose, absurd sizes, and what can't be priced. What vLLM would refuse with a message of its
own passes, so that its own message shows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvgate.api.fields import BadRequest, decode
from kvgate.api.limits import Limits, limits_of, number, sequences
from kvgate.api.multipart import form_fields
from kvgate.api.prompts import prompts_of, text_size
from kvgate.api.scalars import as_bool
from kvgate.api.sizes import MEDIA_TOKENS
from kvgate.api.tokenizing import tokenize_bodies
from kvgate_policies.types import Endpoint, InferenceRequest, PromptSize

if TYPE_CHECKING:
    from kvgate.api.fields import Fields

__all__ = ["BadRequest", "parse"]

AUDIO_MAX_TOKENS_FIELD = "max_completion_tokens"


def parse(
    endpoint: Endpoint, body: bytes, content_type: str = "", *, media_tokens: int = MEDIA_TOKENS
) -> InferenceRequest | BadRequest:
    """Read a request body.

    `content_type` matters for audio forms only; `media_tokens` is the charge for each image, sound or film.
    """
    if endpoint is Endpoint.AUDIO:
        return _parse_audio(body, content_type, media_tokens)
    fields = decode(body)
    if isinstance(fields, BadRequest):
        return fields
    model = _model(fields.model)
    if isinstance(model, BadRequest):
        return model
    limits = limits_of(endpoint, fields)
    if isinstance(limits, BadRequest):
        return limits
    prompts = prompts_of(endpoint, fields, media_tokens)
    if isinstance(prompts, BadRequest):
        return prompts
    return _request(endpoint, fields, model, limits, prompts)


def _request(
    endpoint: Endpoint,
    fields: Fields,
    model: str | None,
    limits: Limits,
    prompts: tuple[PromptSize, ...],
) -> InferenceRequest:
    return InferenceRequest(
        endpoint=endpoint,
        model=model,
        stream=as_bool(fields.stream),
        prompts=prompts,
        max_tokens=limits.max_tokens,
        max_tokens_field=limits.max_tokens_field,
        n=limits.n,
        prompt_tokens_max=limits.prompt_tokens_max,
        min_tokens=limits.min_tokens,
        ignore_eos=limits.ignore_eos,
        tokenize=tokenize_bodies(endpoint, fields, prompts),
    )


def _model(value: Any) -> str | BadRequest | None:
    if value is None or isinstance(value, str):
        return value
    return BadRequest("model must be a string, the name of a model listed by GET /v1/models.", "model")


def _parse_audio(body: bytes, content_type: str, media_tokens: int) -> InferenceRequest | BadRequest:
    """A form; its prompt is short beside the sound, which has the flat charge."""
    form = form_fields(body, content_type)
    if form is None:
        return BadRequest(
            "The request body must be multipart/form-data with a boundary and the field `file`."
        )
    limit = number(form.get(AUDIO_MAX_TOKENS_FIELD), AUDIO_MAX_TOKENS_FIELD)
    if isinstance(limit, BadRequest):
        return limit
    n = sequences(form.get("n"), "n")
    if isinstance(n, BadRequest):
        return n
    prompt = text_size(form.get("prompt", ""))
    return InferenceRequest(
        endpoint=Endpoint.AUDIO,
        model=form.get("model"),
        stream=as_bool(form.get("stream")),
        prompts=(
            PromptSize(
                utf8_bytes=prompt.utf8_bytes, dense_bytes=prompt.dense_bytes, media_tokens=media_tokens
            ),
        ),
        max_tokens=limit,
        max_tokens_field=AUDIO_MAX_TOKENS_FIELD,
        n=n,
    )
