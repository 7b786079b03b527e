"""Snapshots for tests: a small pool, and whatever is different of it."""

from __future__ import annotations

from typing import Any

from kvgate.console.snapshot import EngineShown, Headline, Part, PoolShown, TenantShown

__all__ = ["Headline", "engine", "pool", "tenant"]


def engine(name: str = "http://a:8000", reserved: int = 0, **different: Any) -> EngineShown:
    """One that takes work, of 100 blocks and 8 slots."""
    values: dict[str, Any] = {
        "id": name,
        "url": name.partition("#")[0],
        "state": "up",
        "why": "probe good",
        "accepting": True,
        "blocks": 100,
        "blocks_open": 100,
        "trust": None,
        "parts": (Part("guaranteed", reserved),),
        "blocks_in_use": None,
        "seqs": 8,
        "seqs_reserved": 0,
        "prefill_tokens": 1000,
        "prefill_tokens_reserved": 0,
        "reservations": 0,
        "running": None,
        "waiting": None,
        "foreign": False,
        "preemptions": None,
        "kept_for": None,
        "probe_age_s": 0.5,
    }
    return EngineShown(**values | different)


def away(name: str, state: str, why: str = "") -> EngineShown:
    """One that takes no work."""
    return engine(name, state=state, why=why, accepting=False)


def tenant(name: str, queued: int = 0, **different: Any) -> TenantShown:
    values: dict[str, Any] = {
        "name": name,
        "priority": "standard",
        "weight": 1.0,
        "guarantee": 0.0,
        "limit": 1.0,
        "limit_tokens": None,
        "borrow": True,
        "mode": "enforce",
        "blocks": 0,
        "blocks_guaranteed": 0,
        "blocks_limit": 200,
        "reservations": 0,
        "queued": queued,
        "oldest_wait_s": 0.5 if queued else 0.0,
        "service": 0,
        "waits_for": "room" if queued else None,
    }
    return TenantShown(**values | different)


def pool(*engines: EngineShown, tenants: tuple[TenantShown, ...] = (), **different: Any) -> PoolShown:
    """Its queue is that of its tenants."""
    values: dict[str, Any] = {
        "name": "p",
        "aliases": (),
        "models": ("m",),
        "ledger_mode": "memory",
        "processes": 1,
        "queued": sum(one.queued for one in tenants),
        "oldest_wait_s": max((one.oldest_wait_s for one in tenants), default=0.0),
        "blocks": sum(one.blocks for one in engines),
        "engines": engines,
        "engines_more": 0,
        "tenants": tenants,
        "tenants_more": 0,
        "enforced": 1,
        "observed": 0,
        "off": 0,
    }
    return PoolShown(**values | different)
