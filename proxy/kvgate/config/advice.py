"""Settings that work but probably not as meant. Pure; said at start-up and by `kvgate check`."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

from kvgate.config.crosschecks import limit_in_tokens
from kvgate.config.layers import BUILT_IN
from kvgate.config.options import ENV_PREFIX, OPTIONS
from kvgate.config.without_effect import without_effect

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from kvgate.config.identity import IdentityRules
    from kvgate.config.settings import PoolSpec, Settings
    from kvgate_policies.types import TenantPolicy

SDK_PATIENCE_S = 600.0
"""The default timeout of the OpenAI and Anthropic SDKs."""
DEPTH_DOUBTED = 10_000
TOKEN_CHARS_LEAST = 16
"""Of an admin token on a port that others reach: `/admin` answers every guess."""
LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


def warnings_of(settings: Settings, env_names: Iterable[str] = ()) -> tuple[str, ...]:
    """A sentence or two for each doubtful setting."""
    return (
        *_of_tenants(settings),
        *_of_identity(settings.book.identity),
        *_of_admin(settings),
        *_of_state(settings),
        *without_effect(settings),
        *_misspelt(env_names),
    )


def _of_tenants(settings: Settings) -> tuple[str, ...]:
    """Each doubt once: those of a tenant without its own limits are those of the defaults."""
    said: dict[str, None] = {}
    for spec in settings.pool_specs():
        for name in settings.book.names:
            policy, origins = settings.book.policy(name, spec.name), settings.book.origins(name, spec.name)
            said |= dict.fromkeys(_of_tenant(policy, spec, origins))
    return tuple(said)


def _of_tenant(policy: TenantPolicy, spec: PoolSpec, origins: Mapping[str, str]) -> Iterator[str]:
    if policy.queue_wait_s_max > SDK_PATIENCE_S:
        yield (
            f"{_at(origins['queue_wait_s_max'])}the queue wait of {policy.queue_wait_s_max:g} s is longer than the "
            f"{SDK_PATIENCE_S:g} s after which SDKs give up: clients leave before they are answered"
        )
    if policy.queue_depth_max > DEPTH_DOUBTED:
        yield (
            f"{_at(origins['queue_depth_max'])}a queue of {policy.queue_depth_max} holds that many bodies in memory"
        )
    bound = limit_in_tokens(policy, spec)
    if bound is not None and spec.max_model_len is not None and bound < spec.max_model_len:
        yield (
            f"{_at(origins['limit'])}the limit of {policy.name} in pool {spec.name} is {bound} tokens, its window "
            f"{spec.max_model_len}: a longer request than that is refused as one that never fits"
        )


def _of_identity(rules: IdentityRules) -> Iterator[str]:
    if any(network.prefixlen == 0 for network in rules.trusted_proxies):
        yield (
            "identity.trusted_proxies trusts every peer: whoever reaches the port says which tenant it is; name the "
            "networks of the proxies"
        )
    if rules.source == "jwt" and rules.jwt_issuer is None and rules.jwt_audience is None:
        yield (
            "identity has neither issuer nor audience: a token that the same keys signed for another service is "
            "taken as well"
        )


def _of_admin(settings: Settings) -> Iterator[str]:
    if settings.admin_host not in LOOPBACK and settings.admin_token is None:
        yield (
            f"the admin port listens on {settings.admin_host} without a token: whoever reaches it can drain "
            "engines; set KVGATE_ADMIN_TOKEN"
        )
    elif settings.admin_host not in LOOPBACK and len(settings.admin_token or "") < TOKEN_CHARS_LEAST:
        yield (
            f"the admin token has fewer than {TOKEN_CHARS_LEAST} characters: whoever reaches {settings.admin_host} "
            "could guess it; openssl rand -hex 16 makes a good one"
        )


def _of_state(settings: Settings) -> Iterator[str]:
    if settings.state_dir is not None and settings.ledger_shared:
        yield "the state directory is not used: what is learned of lengths is kept in the shared ledger"


def _at(origin: str) -> str:
    return "" if origin in {BUILT_IN, "settings"} else f"{origin}: "


def _misspelt(env_names: Iterable[str]) -> list[str]:
    known = [option.env for option in OPTIONS]
    return [
        f"the environment variable {name} is no setting; did you mean {close[0]}?"
        for name in sorted(env_names)
        if name.startswith(ENV_PREFIX)
        and name not in known
        and (close := get_close_matches(name, known, n=1, cutoff=0.9))
    ]
