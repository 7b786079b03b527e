"""How much a request may generate, by the field that rules at its endpoint.

Read as vLLM 0.32 reads them (`get_max_tokens` and the request models of each endpoint). A limit below 1 is
passed on as it is, for vLLM answers it with a message of its own. What can't be read as a number is refused
here, since a default would otherwise be written over the client's mistake.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvgate.api.fields import BadRequest
from kvgate.api.scalars import Unreadable, as_bool, as_int
from kvgate_policies.types import TO_WINDOW, Endpoint

if TYPE_CHECKING:
    from kvgate.api.fields import Fields

N_MAX = 16384
"""vLLM's `VLLM_MAX_N_SEQUENCES`; more it refuses too."""

SAMPLING_PARAMS = "sampling_params"


@dataclass(frozen=True, slots=True)
class Limits:
    max_tokens: int | None
    max_tokens_field: str
    n: int
    prompt_tokens_max: int | None
    min_tokens: int
    ignore_eos: bool


def limits_of(endpoint: Endpoint, fields: Fields) -> Limits | BadRequest:
    sampling = _sampling(endpoint, fields)
    if isinstance(sampling, BadRequest):
        return sampling
    ruling = _max_tokens(endpoint, fields, sampling)
    if isinstance(ruling, BadRequest):
        return ruling
    n = _n(endpoint, fields, sampling)
    if isinstance(n, BadRequest):
        return n
    field, max_tokens = ruling
    return Limits(
        max_tokens=max_tokens,
        max_tokens_field=field,
        n=n,
        prompt_tokens_max=_truncation(endpoint, fields),
        min_tokens=_positive(sampling.get("min_tokens", fields.min_tokens)) or 0,
        ignore_eos=as_bool(sampling.get("ignore_eos", fields.ignore_eos)),
    )


def _truncation(endpoint: Endpoint, fields: Fields) -> int | None:
    """Where the engine cuts the prompt by itself; `TO_WINDOW` if that is as late as possible."""
    if endpoint is Endpoint.RESPONSES:
        return TO_WINDOW if fields.truncation == "auto" else None
    most = as_int(fields.truncate_prompt_tokens)
    return most if isinstance(most, int) and (most > 0 or most == TO_WINDOW) else None


def number(value: Any, param: str) -> int | BadRequest | None:
    """A whole number as vLLM would read it; None for null."""
    read = as_int(value)
    if isinstance(read, Unreadable):
        return BadRequest(f"{param} must be a whole number, got {_shown(value)}.", param)
    return read


def sequences(value: Any, param: str) -> int | BadRequest:
    """`n`: null is 1; what vLLM refuses for being too small costs as 1."""
    n = number(value, param)
    if isinstance(n, BadRequest):
        return n
    if n is not None and n > N_MAX:
        return BadRequest(f"{param} must be at most {N_MAX}, got {_shown(n)}.", param)
    return 1 if n is None else max(n, 1)


def _sampling(endpoint: Endpoint, fields: Fields) -> dict[str, Any] | BadRequest:
    if endpoint is not Endpoint.GENERATE:
        return {}
    if not isinstance(fields.sampling_params, dict):
        return BadRequest("sampling_params must be an object; it may be empty.", SAMPLING_PARAMS)
    return fields.sampling_params


def _max_tokens(
    endpoint: Endpoint, fields: Fields, sampling: dict[str, Any]
) -> tuple[str, int | None] | BadRequest:
    field, value = _ruling(endpoint, fields, sampling)
    limit = number(value, field)
    return limit if isinstance(limit, BadRequest) else (field, limit)


def _ruling(endpoint: Endpoint, fields: Fields, sampling: dict[str, Any]) -> tuple[str, Any]:
    match endpoint:
        case Endpoint.CHAT | Endpoint.CHAT_BATCH:
            if fields.max_completion_tokens is None and fields.max_tokens is not None:
                return "max_tokens", fields.max_tokens
            return "max_completion_tokens", fields.max_completion_tokens
        case Endpoint.RESPONSES:
            return "max_output_tokens", fields.max_output_tokens
        case Endpoint.GENERATE:
            return f"{SAMPLING_PARAMS}.max_tokens", sampling.get("max_tokens")
        case Endpoint.COMPLETIONS | Endpoint.MESSAGES:
            return "max_tokens", fields.max_tokens
        case Endpoint.POOLING | Endpoint.AUDIO:
            return "max_completion_tokens", None


def _n(endpoint: Endpoint, fields: Fields, sampling: dict[str, Any]) -> int | BadRequest:
    match endpoint:
        case Endpoint.CHAT | Endpoint.CHAT_BATCH | Endpoint.COMPLETIONS:
            return sequences(fields.n, "n")
        case Endpoint.GENERATE:
            return sequences(sampling.get("n"), f"{SAMPLING_PARAMS}.n")
        case _:
            return 1


def _positive(value: Any) -> int | None:
    read = as_int(value)
    return None if isinstance(read, Unreadable) or read is None or read < 1 else read


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
