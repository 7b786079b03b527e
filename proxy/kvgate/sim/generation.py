"""A generating request, read and checked: what the engine has to do and how the answer is to look.

Limits are resolved as vLLM does: `min(max_model_len − prompt, the client's limit or the endpoint's default)`,
silently clamped, and refused only when the client's limit alone exceeds `max_model_len`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from kvgate.sim import output, prompts
from kvgate.sim.errors import bad_request, unknown_model
from kvgate.sim.fields import Body, check_sampling, flag, integer, required, strict_integer

if TYPE_CHECKING:
    from collections.abc import Mapping

COMPLETION_TOKENS_DEFAULT = 16
PROMPTS_MAX = 1024
"""`VLLM_MAX_COMPLETION_PROMPTS`."""
SEQUENCES_MAX = 16384
"""`VLLM_MAX_N_SEQUENCES`."""


class Kind(StrEnum):
    CHAT = "chat"
    COMPLETION = "completion"
    RESPONSE = "response"
    MESSAGE = "message"
    EMBEDDING = "embedding"


@dataclass(frozen=True, slots=True)
class ServedModel:
    name: str
    max_model_len: int
    seed: int


@dataclass(frozen=True, slots=True)
class Choice:
    """One sequence. `mark` stands for its content."""

    prompt: tuple[int, ...]
    mark: int
    max_tokens: int
    stop_after: int | None


@dataclass(frozen=True, slots=True)
class Generation:
    kind: Kind
    model: str
    choices: tuple[Choice, ...]
    prompt_tokens: int
    """Each prompt counted once, however many outputs it has."""
    n: int
    max_tokens: int | None
    """As the client said."""
    priority: int
    stream: bool
    include_usage: bool
    continuous_usage: bool
    echo: bool = False
    base64: bool = False


def check_model(body: Body, served: ServedModel) -> None:
    model = body.get("model")
    if model is not None and model != served.name:
        raise unknown_model(str(model), served.name)


def _sequences(kind: Kind, body: Body) -> int:
    """The other APIs have no `n`; vLLM ignores it there as every unknown field."""
    if kind not in {Kind.CHAT, Kind.COMPLETION} or body.get("n") is None:
        return 1
    return integer(body, "n") or 0


def read_generation(kind: Kind, body: Body, headers: Mapping[str, str], served: ServedModel) -> Generation:
    """Raises `RequestRefused` in vLLM's words."""
    asked = _asked(kind, body)
    check_model(body, served)
    n = _sequences(kind, body)
    check_sampling(body, n)
    _check_rank(kind, headers)
    usage, continuous = _stream_options(body)
    echo = kind is Kind.COMPLETION and flag(body, "echo")
    found = _prompts(kind, body, served.max_model_len)
    if n * len(found) > SEQUENCES_MAX:
        raise bad_request(f"n must be at most {SEQUENCES_MAX}, got {n * len(found)}.")
    cut = [prompts.truncate(body, prompt, served.max_model_len) for prompt in found]
    choices: list[Choice] = []
    for prompt in cut:
        limit = _limit(kind, asked, prompt, served, echo=echo)
        _check_min_tokens(body, limit)
        mark = output.fingerprint(prompt, served.seed)
        marks = [output.sibling(mark, len(choices) + k) for k in range(n)]
        choices += [Choice(prompt, each, limit, _stop_after(each, body, headers)) for each in marks]
    return Generation(
        kind=kind,
        model=served.name,
        choices=tuple(choices),
        prompt_tokens=sum(map(len, cut)),
        n=n,
        max_tokens=asked,
        priority=_priority(body, headers),
        stream=flag(body, "stream") and kind is not Kind.EMBEDDING,
        include_usage=usage,
        continuous_usage=continuous,
        echo=echo,
        base64=body.get("encoding_format") == "base64",
    )


def _asked(kind: Kind, body: Body) -> int | None:
    match kind:
        case Kind.CHAT:
            required(body, "messages")
            ruling = integer(body, "max_completion_tokens")
            return ruling if ruling is not None else integer(body, "max_tokens")
        case Kind.COMPLETION:
            return integer(body, "max_tokens")
        case Kind.RESPONSE:
            return integer(body, "max_output_tokens")
        case Kind.MESSAGE:
            required(body, "max_tokens")
            return integer(body, "max_tokens")
        case Kind.EMBEDDING:
            return None


def _prompts(kind: Kind, body: Body, max_model_len: int) -> tuple[tuple[int, ...], ...]:
    match kind:
        case Kind.CHAT | Kind.MESSAGE:
            return (prompts.chat_prompt(body, max_model_len),)
        case Kind.RESPONSE:
            return (prompts.response_prompt(body, max_model_len),)
        case Kind.COMPLETION | Kind.EMBEDDING:
            field = "prompt" if kind is Kind.COMPLETION else "input"
            found = prompts.completion_prompts(body, field, max_model_len)
            if len(found) > PROMPTS_MAX:
                raise bad_request(f"At most {PROMPTS_MAX} prompts are taken, got {len(found)}.")
            return found


def _limit(kind: Kind, asked: int | None, prompt: tuple[int, ...], served: ServedModel, *, echo: bool) -> int:
    window = served.max_model_len
    if asked is not None and asked > window:
        message = (
            f"max_tokens={asked} cannot be greater than max_model_len={window}. "
            "Please request fewer output tokens."
        )
        raise bad_request(message, "max_tokens", asked)
    if len(prompt) > window:
        message = (
            f"This model's maximum context length is {window} tokens. However, your prompt contains "
            f"{len(prompt)} input tokens, which exceeds this limit even without any output tokens. "
            "Please reduce the length of the input prompt."
        )
        raise bad_request(message, "input_tokens", len(prompt))
    if echo and asked == 0:
        asked = 1
    limit = min(window - len(prompt), asked if asked is not None else _default_limit(kind, window))
    if limit < 1:
        raise bad_request(f"max_tokens must be at least 1, got {limit}.", "max_tokens", limit)
    return limit


def _default_limit(kind: Kind, window: int) -> int:
    return {Kind.COMPLETION: COMPLETION_TOKENS_DEFAULT, Kind.EMBEDDING: 1}.get(kind, window)


def _check_min_tokens(body: Body, limit: int) -> None:
    least = integer(body, "min_tokens") or 0
    if least > limit:
        raise bad_request(f"min_tokens must be less than or equal to max_tokens={limit}, got {least}.")


def _stream_options(body: Body) -> tuple[bool, bool]:
    options = body.get("stream_options")
    if options is None:
        return False, False
    if not flag(body, "stream"):
        raise bad_request("Stream options can only be defined when `stream=True`.", "stream_options")
    usage = isinstance(options, dict) and flag(options, "include_usage")
    return usage, usage and flag(options, "continuous_usage_stats")


def _priority(body: Body, headers: Mapping[str, str]) -> int:
    """The header comes first."""
    header = headers.get("x-vllm-priority")
    if header is None:
        return strict_integer(body, "priority") or 0
    try:
        return int(header)
    except ValueError as error:
        raise bad_request(f"X-Vllm-Priority must be an integer, got {header!r}.") from error


def _check_rank(kind: Kind, headers: Mapping[str, str]) -> None:
    """There is one engine. `/v1/responses` and embeddings ignore the header, as in vLLM."""
    rank = headers.get("x-data-parallel-rank")
    if rank is not None and rank != "0" and kind not in {Kind.RESPONSE, Kind.EMBEDDING}:
        raise bad_request(f"data_parallel_rank {rank} is out of range [0, 1).")


def _stop_after(mark: int, body: Body, headers: Mapping[str, str]) -> int | None:
    """`x-sim-output-tokens` says it; else `ignore_eos` means never, and otherwise the model decides."""
    wished = headers.get("x-sim-output-tokens")
    if wished is not None:
        if not wished.isdecimal() or int(wished) < 1:
            raise bad_request(f"x-sim-output-tokens must be a positive integer, got {wished!r}.")
        return int(wished)
    if flag(body, "ignore_eos"):
        return None
    return max(output.natural_length(mark), integer(body, "min_tokens") or 1)
