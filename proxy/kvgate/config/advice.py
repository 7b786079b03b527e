"""Settings that work but probably not as meant. Pure; said at start-up and by `kvgate check`."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

from kvgate.config.options import ENV_PREFIX, OPTIONS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvgate.config.settings import Settings

SDK_PATIENCE_S = 600.0
"""The default timeout of the OpenAI and Anthropic SDKs."""
LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


def warnings_of(settings: Settings, env_names: Iterable[str] = ()) -> tuple[str, ...]:
    """A sentence or two for each doubtful setting."""
    return (*_doubts(settings), *_misspelt(env_names))


def _doubts(settings: Settings) -> list[str]:
    doubts: list[str] = []
    if settings.tenant.queue_wait_s_max > SDK_PATIENCE_S:
        doubts.append(
            f"the queue wait of {settings.tenant.queue_wait_s_max:g} s is longer than the "
            f"{SDK_PATIENCE_S:g} s after which SDKs give up: clients leave before they are answered"
        )
    if settings.admin_host not in LOOPBACK and settings.admin_token is None:
        doubts.append(
            f"the admin port listens on {settings.admin_host} without a token: whoever reaches it can drain "
            "engines; set KVGATE_ADMIN_TOKEN"
        )
    if settings.tenant.queue_depth_max > 10_000:
        doubts.append(f"a queue of {settings.tenant.queue_depth_max} holds that many bodies in memory")
    return doubts


def _misspelt(env_names: Iterable[str]) -> list[str]:
    known = [option.env for option in OPTIONS]
    return [
        f"the environment variable {name} is no setting; did you mean {close[0]}?"
        for name in sorted(env_names)
        if name.startswith(ENV_PREFIX)
        and name not in known
        and (close := get_close_matches(name, known, n=1, cutoff=0.9))
    ]
