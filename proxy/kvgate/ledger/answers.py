"""What the scripts of the shared ledger answer, and what they push: values, and how they are read.

The server speaks in arrays of integers and byte strings, or text where the client decodes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from kvgate.ledger.base import Refusal
from kvgate.ledger.keys import shape_of
from kvgate.ledger.wire import cost_of, read_cost
from kvgate_policies.types import (
    CLASSES,
    EngineLimits,
    EngineShape,
    EngineUse,
    KVCost,
    PriorityClass,
    TenantRules,
    TenantUse,
)

_TOTALS = ("arrivals", "grants", "releases", "cancels", "voided", "bypasses", "pins")


@dataclass(frozen=True, slots=True)
class Sums:
    """What a process holds on one engine for one tenant, all its reservations together."""

    cost: KVCost
    reservations: int
    use_blocks: int | None = None
    """What the tenant is said to use by them, request by request; None where that is the sum of the peaks."""

    @property
    def used_blocks(self) -> int:
        return self.cost.blocks if self.use_blocks is None else self.use_blocks


@dataclass(frozen=True, slots=True)
class Reply:
    """In every answer."""

    epoch: str
    """Changes when the server began with nothing."""
    now_ms: int
    """The server's clock."""
    unfinished: bool
    """There is more to decide: send `pump` soon."""
    grace: bool
    """A new epoch: nothing is granted until the processes have said what they hold."""


@dataclass(frozen=True, slots=True)
class BeatReply(Reply):
    live: int
    """Processes with a lease, this one included."""
    lease_new: bool
    """It had none before: nothing of it is in the queue, and no engine is known to be known to it."""
    gseq: int
    """Of the latest grant made to anyone."""
    rank: int = 0
    """Its place among those with a lease, from 0."""


@dataclass(frozen=True, slots=True)
class Granted:
    """A grant, from the stream."""

    pid: str
    request_id: str
    engine_id: str
    shape: EngineShape
    """The engine's when it was granted."""
    cost: KVCost
    """What was added to the sums for it."""
    seq: int
    gseq: int
    """Counts the grants of a pool; above every one that a process has read, in a new epoch too."""
    tenant: str = "anonymous"
    rank: int = 0
    forced: Literal["queued"] | Refusal | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """A refusal of one that waited, from the stream."""

    pid: str
    request_id: str
    refusal: Refusal


@dataclass(frozen=True, slots=True)
class Holding:
    """What one process holds on one engine for one tenant, for people."""

    pid: str
    engine_id: str
    tenant: str
    sums: Sums
    unseen: int
    """Grants among them that the process has not acknowledged."""


@dataclass(frozen=True, slots=True)
class Orphan:
    """What a process that is gone held on one engine for one tenant; counted until the engine shows it free."""

    pid: str
    engine_id: str
    tenant: str
    sums: Sums
    age_ms: int


@dataclass(frozen=True, slots=True)
class Waiting:
    """One that waits, for people."""

    pid: str
    request_id: str
    seq: int
    wait_ms: int
    bypasses: int
    tenant: str
    priority: PriorityClass


@dataclass(frozen=True, slots=True)
class Inspection:
    """The parts of the ledger that `view` sums up."""

    epoch: str
    leases_ms: Mapping[str, int]
    """By process: until its lease runs out; negative when it did."""
    holdings: tuple[Holding, ...]
    orphans: tuple[Orphan, ...]
    head: tuple[Waiting, ...]
    """The first of each flow in turn, those that wait for an engine to come back not among them."""
    parked: int


def read_entry(fields: Mapping[bytes, bytes] | Mapping[str, str]) -> Granted | Refused:
    """An entry of the stream. Raises KeyError or ValueError for one that no version of the scripts writes."""
    entry = {text_of(name): text_of(value) for name, value in fields.items()}
    if "refusal" in entry:
        return Refused(entry["pid"], entry["rid"], Refusal(entry["refusal"]))
    return Granted(
        pid=entry["pid"],
        request_id=entry["rid"],
        engine_id=entry["engine"],
        shape=shape_of(entry["shape"]),
        cost=read_cost(entry["cost"]),
        seq=int(entry["seq"]),
        gseq=int(entry["gseq"]),
        tenant=entry["tenant"],
        rank=int(entry["rank"]),
        forced=_forced_of(entry.get("forced", "")),
    )


def _forced_of(word: str) -> Literal["queued"] | Refusal | None:
    if word == "queued":
        return "queued"
    return Refusal(word) if word else None


def text_of(word: bytes | str | int) -> str:
    return word.decode() if isinstance(word, bytes) else str(word)


def use_of(row: Sequence[Any]) -> EngineUse:
    engine_id, shape, blocks, seqs, prefill_tokens, accepting, usable, *held, pin = row
    sums = sums_of(held)
    return EngineUse(
        EngineLimits(
            text_of(engine_id),
            shape_of(text_of(shape)),
            int(blocks),
            int(seqs),
            int(prefill_tokens),
            bool(accepting),
            None if text_of(usable) == "" else int(usable),
        ),
        sums.cost,
        sums.reservations,
        text_of(pin) or None,
    )


def sums_of(numbers: Sequence[Any]) -> Sums:
    *parts, forecast = numbers
    blocks, seqs, prefill_tokens, reservations, used = (int(number) for number in parts)
    cost = cost_of(blocks, seqs, prefill_tokens, text_of(forecast))
    return Sums(cost, reservations, None if used == blocks else used)


def totals_of(pairs: Sequence[Any]) -> dict[str, int]:
    totals = dict.fromkeys([f"refused_{reason}" for reason in Refusal], 0) | dict.fromkeys(_TOTALS, 0)
    return totals | {text_of(name): int(number) for name, number in zip(pairs[::2], pairs[1::2], strict=True)}


def holding_of(row: Sequence[Any]) -> Holding:
    pid, engine_id, tenant, *held, unseen = row
    return Holding(text_of(pid), text_of(engine_id), text_of(tenant), sums_of(held), int(unseen))


def orphan_of(row: Sequence[Any]) -> Orphan:
    pid, engine_id, tenant, *held, age_ms = row
    return Orphan(text_of(pid), text_of(engine_id), text_of(tenant), sums_of(held), int(age_ms))


def waiting_of(row: Sequence[Any]) -> Waiting:
    pid, request_id, seq, wait_ms, bypasses, tenant, number = row
    return Waiting(
        text_of(pid),
        text_of(request_id),
        int(seq),
        int(wait_ms),
        int(bypasses),
        text_of(tenant),
        CLASSES[int(number) - 1],
    )


def tenant_use_of(row: Sequence[Any]) -> TenantUse:
    """Numbers with fractions come as text; an empty one is None."""
    name, weight, guarantee, limit, limit_tokens, borrow, tokens_rate, requests_rate, *use, service = (
        text_of(word) if isinstance(word, bytes) else str(word) for word in row
    )
    blocks, guaranteed, limited, reservations, queued, wait_ms = (int(number) for number in use)
    rules = TenantRules(
        float(weight),
        float(guarantee),
        float(limit),
        _whole_or_none(limit_tokens),
        borrow == "1",
        _whole_or_none(tokens_rate),
        _whole_or_none(requests_rate),
    )
    return TenantUse(
        name, rules, blocks, guaranteed, limited, reservations, queued, wait_ms / 1000, float(service)
    )


def _whole_or_none(word: str) -> int | None:
    return int(float(word)) if word else None
