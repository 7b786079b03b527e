"""What may be written for each setting, and what the full format knows that this version does not.

Pure readers of one value each: they return the value or raise ValueError with what is allowed. A wish that
belongs to a later version is refused with what to use today: doing something else silently would be worse.
"""

from __future__ import annotations

from typing import Literal
from urllib.parse import SplitResult, urlsplit

from kvgate.config import units
from kvgate.config.model_file import ALLOWED, model_of
from kvgate_policies.forecast_fit import z_of
from kvgate_policies.model_shape import ModelShape
from kvgate_policies.types import Reservation

COUNT_1_ALLOWED = "a whole number from 1"
BLOCKS_ALLOWED = "a whole number from 2: of an engine's KV blocks vLLM keeps one for itself"
PROMPT_TOKENS_ALLOWED = "learned, backend, or local:DIR with a directory that has the model's tokenizer.json"
LEDGER_ALLOWED = (
    "memory://, or redis://HOST:PORT/DB, rediss://…, redis+sentinel://HOST:PORT,HOST:PORT/SERVICE/DB, "
    "redis+cluster://HOST:PORT"
)
SHARED_LEDGERS = frozenset(
    {"redis", "rediss", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster"}
)
COLLECTOR_ALLOWED = (
    "the base URL of a collector that takes OTLP over HTTP, such as http://collector:4318; a key for it goes into "
    "OTEL_EXPORTER_OTLP_HEADERS"
)
LOG_LEVELS = ("debug", "info", "warning", "error")
OVERLOAD_STATUSES = (429, 503, 529)


def backends(value: object) -> tuple[str, ...]:
    """Base URLs, at least one, none twice; from a list, or a string with commas."""
    listed = value.split(",") if isinstance(value, str) else value
    if not isinstance(listed, list | tuple) or not listed:
        raise ValueError("one base URL or more, such as http://gpu-a:8000")
    urls = tuple(backend_url(url) for url in listed)
    twice = sorted({url for url in urls if urls.count(url) > 1})
    if twice:
        raise ValueError(f"each URL once; {twice[0]} is there twice, and its memory would be counted twice")
    return urls


def backend_url(value: object) -> str:
    """`http://host:port`, perhaps with a path prefix; a slash at the end is dropped."""
    text = value.strip() if isinstance(value, str) else ""
    parts = _split(text)
    if parts is None or not text.isprintable() or " " in text:
        raise ValueError(f"base URLs such as http://gpu-a:8000, not {value!r}")
    if parts.username or parts.query or parts.fragment:
        raise ValueError("base URLs without user, query or fragment; a key goes into api_key")
    if parts.path.rstrip("/").endswith("/v1"):
        raise ValueError(f"base URLs without /v1: {text.rstrip('/').removesuffix('/v1')}")
    return text.rstrip("/")


def collector_url(value: object) -> str:
    """As `backend_url`; the path of traces, which is appended to it, is dropped."""
    text = value.strip() if isinstance(value, str) else ""
    parts = _split(text)
    if parts is None or not text.isprintable() or " " in text:
        raise ValueError(COLLECTOR_ALLOWED)
    if parts.username or parts.query or parts.fragment:
        raise ValueError(COLLECTOR_ALLOWED)
    return text.rstrip("/").removesuffix("/v1/traces")


def _split(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number, a bracket that is not closed
        return None
    return parts if usable else None


def count_1(value: object) -> int:
    number = units.count(value)
    if number < 1:
        raise ValueError(COUNT_1_ALLOWED)
    return number


def engine_blocks(value: object) -> int:
    """KV blocks of an engine as vLLM counts them."""
    number = units.count(value)
    if number < 2:
        raise ValueError(BLOCKS_ALLOWED)
    return number


def port(value: object) -> int:
    text = str(value)
    if text.startswith("tcp://"):
        raise ValueError(
            "a port from 0 to 65535. (Kubernetes sets this variable for a Service named kvgate; "
            "set enableServiceLinks: false on the pod, or name the Service differently)"
        )
    if not (text.isascii() and text.isdigit()) or int(text) > 65535:
        raise ValueError("a port from 0 (any free one) to 65535")
    return int(text)


def ledger_url(value: object) -> str:
    """`memory://`, or the URL of a Redis or Valkey: one server, a Sentinel set, or a cluster."""
    text = value.strip() if isinstance(value, str) else ""
    scheme, _, rest = text.partition("://")
    if scheme == "memory" and not rest:
        return text
    host = rest.rpartition("@")[2].partition("/")[0]
    if scheme not in SHARED_LEDGERS or not host or not text.isprintable() or " " in text:
        raise ValueError(LEDGER_ALLOWED)
    return text


def ledger_url_in_a_file(value: object) -> str:
    """As `ledger_url`, but for a file that others read: without a password."""
    text = ledger_url(value)
    if "@" in text:
        raise ValueError("a URL without user and password; the whole URL with them goes into KVGATE_LEDGER")
    return text


def on_failure(value: object) -> Literal["local", "closed", "open"]:
    match str(value):
        case "local":
            return "local"
        case "closed":
            return "closed"
        case "open":
            return "open"
        case _:
            raise ValueError("local, closed or open")


def reservation(value: object) -> Reservation:
    match value:
        case "guaranteed":
            return "guaranteed"
        case "forecast":
            return "forecast"
        case _:
            raise ValueError("guaranteed or forecast")


def risk(value: object) -> float:
    """How often an engine may turn out too small, as a part of 1."""
    try:
        number = units.share(value)
        z_of(number)
    except ValueError:
        raise ValueError(
            "a percentage above 0% and up to 50%, such as 1%, or a number such as 0.01"
        ) from None
    return number


def prompt_tokens(value: object) -> str:
    """Which counter counts prompts. Whether a directory is there is not looked at."""
    text = str(value)
    if text in {"learned", "backend"}:
        return text
    kind, _, directory = text.partition(":")
    if kind != "local" or not directory:
        raise ValueError(PROMPT_TOKENS_ALLOWED)
    return text


def model_config(value: object) -> ModelShape:
    """The layers that a model's config.json describes, wherever it is."""
    try:
        return model_of(text(value))
    except ValueError as error:
        raise ValueError(f"{ALLOWED}; {error}") from error


def log_level(value: object) -> str:
    text = str(value).lower()
    if text not in LOG_LEVELS:
        raise ValueError(", ".join(LOG_LEVELS))
    return text


def log_format(value: object) -> str:
    if str(value) not in {"json", "text"}:
        raise ValueError("json or text")
    return str(value)


def boolean(value: object) -> bool:
    known = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    if (flag := known.get(str(value).lower())) is None:
        raise ValueError("true or false")
    return flag


def overload_status(value: object) -> int:
    number = units.count(value)
    if number not in OVERLOAD_STATUSES:
        raise ValueError("429, 503 or 529")
    return number


def name(value: object) -> str:
    text = str(value)
    if not text or len(text) > 200 or not text.isprintable():
        raise ValueError("a printable name of at most 200 characters")
    return text


def text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("text that is not empty")
    return value


def secret(value: object) -> str:
    """What can be sent in a header; white space around it is nobody's intent, such as the end of a file's line."""
    stripped = value.strip() if isinstance(value, str) else ""
    if not (stripped and stripped.isascii() and stripped.isprintable()):
        raise ValueError("one line of ASCII text")
    return stripped


def pool_name(value: object) -> str:
    """A name that metrics, URLs and people can take: no pattern."""
    if not isinstance(value, str) or "*" in value or value != value.strip():
        raise ValueError(
            "a name, in quotes if it looks like a number, without * and without spaces around it"
        )
    return name(value)


def aliases(value: object) -> tuple[str, ...]:
    """Further names, each once; `*` makes a pattern."""
    if not isinstance(value, list) or not value:
        raise ValueError("a list of names or patterns, such as [gpt-4o, gpt-4*]")
    listed = tuple(alias(one) for one in value)
    twice = sorted({one for one in listed if listed.count(one) > 1})
    if twice:
        raise ValueError(f"each name once; {twice[0]} is there twice")
    return listed


def alias(value: object) -> str:
    if not isinstance(value, str) or not value.strip("*"):
        raise ValueError("names in quotes, or patterns with more than *")
    return name(value)
