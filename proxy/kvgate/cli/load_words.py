"""The words of `kvgate load`: each is read into a value, or refused with what is allowed."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any, TypeVar

from kvgate.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from kvgate.load.lengths import Sizes
    from kvgate.load.mix import Tenant

_T = TypeVar("_T")

DURATION_S_MAX = 3600.0
"""An hour of load shows what there is to see; more is a mistake in a unit."""


def check_writable(option: str, file: Path) -> None:
    """Before the load and not after it. Raises ConfigError."""
    if not file.parent.is_dir() or file.is_dir() or not os.access(file.parent, os.W_OK):
        raise ConfigError(f"{option}: {file} cannot be written; name a file in a directory that is there")


def write(option: str, file: Path, text: str) -> None:
    """What was asked for in a file. Raises ConfigError."""
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{option}: {file} cannot be written: {error.strerror}") from error


def urls_of(url: str | None, compare: tuple[str, str] | None) -> dict[str, str]:
    from kvgate.load.target import base_url  # noqa: PLC0415

    if (url is None) == (compare is None):
        raise ConfigError("give either a URL, or two with --compare NAME=URL NAME=URL")
    if url is not None:
        return {"result": base_url("URL", url)}
    pairs = [one.partition("=") for one in compare or ()]
    if any(not name or not equals for name, equals, _ in pairs) or pairs[0][0] == pairs[1][0]:
        said = " ".join(compare or ())
        raise ConfigError(
            f"--compare: {said!r} is not allowed; allowed: two names, such as direct=URL kvgate=URL"
        )
    return {name: base_url("--compare", target) for name, _, target in pairs}


def engines_of(given: Sequence[str] | None) -> tuple[str, ...]:
    from kvgate.load.target import base_url  # noqa: PLC0415

    return tuple(dict.fromkeys(base_url("--engine", one) for one in given or ()))


def sizes_of(prompt: str | None, output: str | None, log: Path | None) -> Sizes:
    from kvgate.load.lengths import Independent, Measured, read_length  # noqa: PLC0415

    if log is None:
        one, other = (
            read_word("--prompt", prompt or "256", read_length),
            read_word("--output", output or "128", read_length),
        )
        return Independent(one, other)
    from kvgate.traffic import read_log  # noqa: PLC0415

    tally = read_log(log)
    try:
        return Measured(tally.prompt, tally.output)
    except ValueError as error:
        raise ConfigError(f"--lengths-from: {log}: {error}") from error


def tenants_of(given: Sequence[str] | None) -> tuple[Tenant, ...]:
    from kvgate.load.mix import ALONE, read_tenant  # noqa: PLC0415

    if not given:
        return ALONE
    tenants: list[Tenant] = []
    for text in given:
        try:
            tenants.append(read_tenant(text, dict(os.environ)))
        except ValueError as error:  # without what was given: a key is in it
            name = text.partition(":")[0]
            raise ConfigError(f"--tenant: {name}:… is not allowed; allowed: {error}") from None
    if len({tenant.name for tenant in tenants}) < len(tenants):
        raise ConfigError("--tenant: each name once")
    return tuple(tenants)


def kind_of(text: str) -> Any:
    from kvgate.load import PromptKind  # noqa: PLC0415

    kinds = {kind.value.replace("_", "-"): kind for kind in PromptKind}
    if text not in kinds:
        raise ConfigError(f"--kind: {text!r} is not allowed; allowed: {', '.join(kinds)}")
    return kinds[text]


def rate_of(rate: float | None) -> float | None:
    if rate is not None and not (0 < rate <= 10_000 and math.isfinite(rate)):
        raise ConfigError(
            f"--rate: {rate:g} is not allowed; allowed: above 0 and at most 10000 requests a second"
        )
    return rate


def requests_of(requests: int | None) -> int | None:
    from kvgate.load.mix import SESSIONS_MAX  # noqa: PLC0415

    if requests is not None and requests > SESSIONS_MAX:
        raise ConfigError(
            f"--requests: {requests} is not allowed; allowed: at most {SESSIONS_MAX} in one run"
        )
    return requests


def seconds(option: str, text: str | None, default: float) -> float:
    from kvgate.config.units import duration_s  # noqa: PLC0415

    if text is None:
        return default
    seconds = read_word(option, text, duration_s)
    if seconds > DURATION_S_MAX:
        raise ConfigError(f"{option}: {text!r} is not allowed; allowed: at most {DURATION_S_MAX / 3600:g}h")
    return seconds


def read_word(option: str, text: str, read: Callable[[str], _T]) -> _T:
    """What `read` makes of it. Raises ConfigError with what is allowed, which a ValueError says."""
    try:
        return read(text)
    except ValueError as error:
        raise ConfigError(f"{option}: {text!r} is not allowed; allowed: {error}") from error
