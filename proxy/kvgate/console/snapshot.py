"""What the console shows, as one value: everything that the page needs, and nothing that is secret.

Made once a second by one process for all who look (`look`), put together from several where there are several
(`merge`), sent as JSON. No key, no prompt and no body is in it. Names and texts in it may come from clients and
engines, so the page takes all of them as text.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from kvgate.admin.waiting import WaitsFor

ENGINES_SHOWN_MAX = 100
"""Engines of a pool in a snapshot, those that take no work first: more bars than that are not read."""
CHANGES_SHOWN_MAX = 500
"""Changes of tenants at run time in a snapshot: as many as tenants are shown."""

TAKEN_OUT = frozenset({"draining", "drained"})
"""States of an engine that gets no new work because kvgate was told so; `drained` has nothing left on it."""

Kind = Literal["guaranteed", "expected", "at_risk"]
Level = Literal["ok", "note", "wait", "stop"]


class Part(msgspec.Struct, frozen=True):
    """A part of what is taken of an engine."""

    kind: Kind
    blocks: int


class EngineShown(msgspec.Struct, frozen=True):
    """One engine. Its own numbers are None while it does not tell them."""

    id: str
    url: str
    state: str
    why: str
    accepting: bool
    blocks: int
    """Usable KV blocks; 0 while its size is unknown."""
    blocks_open: int
    """What reservations may fill of them: fewer while the engine is trusted less than it says."""
    trust: float | None
    """In its capacity, 0 to 1; None where nobody judges it."""
    parts: tuple[Part, ...]
    """What is reserved, and what is set aside beside it."""
    blocks_in_use: int | None
    """By the engine's own gauge."""
    seqs: int
    seqs_reserved: int
    prefill_tokens: int
    prefill_tokens_reserved: int
    reservations: int
    running: int | None
    waiting: int | None
    """In the engine's own queue."""
    foreign: bool
    """It has clearly more requests than were reserved for: something reaches it beside kvgate."""
    preemptions: int | None
    """Since the engine's start."""
    kept_for: str | None
    """The queued request that it is kept free for."""
    probe_age_s: float | None
    blocks_share: int | None = None
    """The most of it that one process may use, while the shared ledger is away."""

    @property
    def blocks_reserved(self) -> int:
        """As all who tell of reserved blocks: without what is set aside for longer answers."""
        return sum(part.blocks for part in self.parts if part.kind != "at_risk")

    @property
    def blocks_taken(self) -> int:
        """For somebody who would start now."""
        return sum(part.blocks for part in self.parts)


class TenantShown(msgspec.Struct, frozen=True):
    """One tenant in one pool."""

    name: str
    priority: str
    weight: float
    guarantee: float
    """Share of the pool's KV cache, 0 to 1, as `limit`."""
    limit: float
    limit_tokens: int | None
    borrow: bool
    mode: str
    blocks: int
    blocks_guaranteed: int
    blocks_limit: int
    reservations: int
    queued: int
    oldest_wait_s: float
    service: float
    waits_for: WaitsFor | None
    """None when none of its requests waits."""
    after: tuple[str, ...] = ()
    """The higher classes that wait for room, too, and are served before it."""
    below_guarantee: bool = False
    """It waits for room, holds less than it is guaranteed, and so is served before those that are not."""


class Headline(msgspec.Struct, frozen=True):
    """The first line of the page."""

    level: Level
    text: str
    """Is anyone waiting, who, and why: one plain sentence."""
    help: str = ""
    """What would help."""
    notes: tuple[str, ...] = ()
    """What else is not as it should be."""


class PoolShown(msgspec.Struct, frozen=True):
    """One pool."""

    name: str
    aliases: tuple[str, ...]
    models: tuple[str, ...]
    ledger_mode: str
    processes: int
    queued: int
    oldest_wait_s: float
    blocks: int
    """KV blocks of all engines that are known, whether they take work or not: what shares are shares of."""
    engines: tuple[EngineShown, ...]
    engines_more: int
    tenants: tuple[TenantShown, ...]
    tenants_more: int
    """Known by the policy, and neither waiting nor holding anything: not listed."""
    enforced: int
    """Tenants whose policy holds; those for whom it only observes, and those for whom it is off."""
    observed: int
    off: int
    headline: Headline = Headline("ok", "")


class ChangeShown(msgspec.Struct, frozen=True):
    """What was changed for a tenant at run time, and holds for a while."""

    tenant: str
    pool: str | None
    fields: dict[str, str]
    left_s: float


class RejectionShown(msgspec.Struct, frozen=True):
    """Requests of one tenant that were refused for one reason."""

    pool: str | None
    tenant: str
    reason: str
    outcome: str
    status: int | None
    told: str
    """The message that the last of them got."""
    count: int
    age_s: float
    """Since the last of them."""


class PolicyShown(msgspec.Struct, frozen=True):
    """The policy in force, in short."""

    path: str | None
    digest: str | None
    taken_at: str
    refused: str | None
    identity: str
    tenants: int
    ledger_on_failure: str


class Snapshot(msgspec.Struct, frozen=True):
    """Everything at one moment."""

    version: str
    ready: bool
    draining: bool
    pools: tuple[PoolShown, ...]
    changes: tuple[ChangeShown, ...]
    rejections: tuple[RejectionShown, ...]
    policy: PolicyShown
    silent: tuple[str, ...] = ()
    """Processes of this group that do not answer at the moment."""


encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder(Snapshot).decode
