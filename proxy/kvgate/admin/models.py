"""The bodies of the admin port: what it takes and what it answers, with an example of each for its OpenAPI schema."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from kvgate.admin.waiting import WaitsFor

FOR_DEFAULT = "1h"
RESERVED = "the peaks of requests, or by forecast the most that all are expected to hold at a time."
SHARE = "The most that each process may use of these while the shared ledger is away; null while it is there."
PEAK = "What all reservations would come to, if each got to its peak: by forecast more than there is."
CLOSED = (
    "what still runs on engines that accept no work, since they drain, are down, or say that they are full."
)
LEDGER_EXAMPLE: dict[str, Any] = {
    "pool": "llama-70b",
    "mode": "redis",
    "processes": 4,
    "queued": 2,
    "oldest_wait_s": 1.5,
    "engines": [
        {
            "engine_id": "http://gpu-a:8000",
            "blocks": 9600,
            "seqs": 256,
            "prefill_tokens": 8192,
            "reserved_blocks": 4100,
            "peak_blocks": 31000,
            "reserved_seqs": 31,
            "reserved_prefill_tokens": 512,
            "reservations": 31,
            "accepting": True,
            "pinned_by": None,
            "share_blocks": None,
        }
    ],
    "totals": {"arrivals": 9100, "grants": 9066},
}


class EngineRef(BaseModel):
    """Which engine is meant."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"engine_id": "http://gpu-a:8000"}]}
    )

    engine_id: str = Field(
        description="Its id as in GET /admin/engines, or a backend's URL for all engines behind it."
    )
    pool: str | None = Field(
        default=None, description="Only needed where two pools have an engine of this id."
    )


class TenantChange(BaseModel):
    """What is to hold for a tenant for a while. null takes a field back; what is not named stays as it is."""

    # Unknown fields are let in here, to be refused with those that are allowed.
    model_config = ConfigDict(
        extra="allow",
        validate_by_name=True,
        validate_by_alias=True,
        json_schema_extra={
            "additionalProperties": False,
            "examples": [{"weight": 6, "for": "1h"}, {"limit": "50%", "for": "30m", "pool": "llama-70b"}],
        },
    )

    for_: str | None = Field(
        default=None,
        alias="for",
        description=f"How long, such as 30m or 4h; 7 days at most. Default: {FOR_DEFAULT}.",
    )
    pool: str | None = Field(default=None, description="Hold in this pool only; without, in all.")
    weight: float | str | None = Field(
        default=None, description="Share of the service beside other tenants' weights."
    )
    guarantee: float | str | None = Field(
        default=None, description="Share of the pool's KV cache, such as 30%."
    )
    limit: float | str | None = Field(default=None, description="Share of the pool's KV cache, such as 60%.")
    limit_tokens: int | str | None = Field(
        default=None, description="The same bound in KV tokens, such as 200k."
    )
    priority: Literal["interactive", "standard", "batch"] | None = Field(
        default=None,
        alias="class",
        description="The class of its requests, and the highest they can ask for.",
    )
    queue_depth_max: int | str | None = Field(default=None, description="Requests that may wait.")
    queue_wait_s_max: float | str | None = Field(
        default=None, description="The longest wait: seconds, or 30s, 15m."
    )
    max_tokens_cap: int | str | None = Field(default=None, description="Upper bound on max_tokens.")
    tokens_per_minute: int | str | None = Field(default=None, description="Budget of tokens, such as 600k.")
    requests_per_minute: int | str | None = Field(default=None, description="Budget of requests.")
    mode: Literal["enforce", "observe", "off"] | None = Field(
        default=None, description="Whether the policy holds."
    )

    def fields(self) -> dict[str, object]:
        """What is to be changed, by the names of the policy; fields that are none among it."""
        given = {name: getattr(self, name) for name in self.model_fields_set if name not in {"for_", "pool"}}
        return given | dict(self.model_extra or {})


class ChangeView(BaseModel):
    """A change at run time that holds now."""

    pool: str | None = Field(description="null: in all pools.")
    fields: dict[str, Any]
    until: str = Field(description="ISO 8601, UTC.")
    left_s: float


class TenantUseView(BaseModel):
    """A tenant in a pool: what holds for it in short, and what it uses now."""

    pool: str
    priority: str = Field(serialization_alias="class")
    weight: float
    guarantee: float
    limit: float
    limit_tokens: int | None
    mode: str
    blocks: int = Field(
        description="KV blocks reserved now, on all engines: the most that each request is expected to hold, or its "
        "peak, added up. The engines' reserved_blocks may be less, for not all get there at the same time."
    )
    blocks_guaranteed: int
    blocks_limit: int
    reservations: int
    queued: int
    oldest_wait_s: float
    service: float = Field(description="Tokens charged since the ledger began, corrections included.")


class TenantView(BaseModel):
    name: str
    pools: list[TenantUseView]
    changes: list[ChangeView] = Field(description="At run time, besides the file.")


class TenantsView(BaseModel):
    tenants: list[TenantView]
    next: str | None = Field(description="`after` of the next page; null on the last one.")


class ValueView(BaseModel):
    """One value, and the place it was written in."""

    value: Any = Field(
        description="null for a limit that is not set, and for `risk` in a pool whose tenants all reserve peaks."
    )
    origin: str = Field(description="FILE: path, an option, `default`, or `override until …`.")


class TenantInPoolView(BaseModel):
    pool: str
    policy: dict[str, ValueView]
    use: TenantUseView


class TenantDetail(BaseModel):
    """Everything that holds for a tenant, with where each value comes from."""

    name: str
    pools: list[TenantInPoolView]
    changes: list[ChangeView]


class WaitingView(BaseModel):
    tenant: str
    queued: int
    oldest_wait_s: float
    waits_for: WaitsFor = Field(
        description="What its next request waits for, as far as the sums show. `prompts`: blocks and a slot are free, "
        "and the bound on prompt tokens not yet computed (`prefill_tokens`) keeps it out."
    )


class PoolQueueView(BaseModel):
    pool: str
    queued: int
    oldest_wait_s: float
    blocks: int = Field(description="Of the engines that accept work.")
    reserved_blocks: int = Field(description=f"On all engines, `closed_blocks` among them: {RESERVED}")
    peak_blocks: int = Field(description=f"On all engines. {PEAK}")
    share_blocks: int | None = Field(description=SHARE)
    seqs: int = Field(description="Sequence slots of the engines that accept work.")
    reserved_seqs: int = Field(description="On all engines, `closed_seqs` among them.")
    prefill_tokens: int = Field(
        description="Prompt tokens not yet computed that the engines that accept work may have: the bound of each."
    )
    reserved_prefill_tokens: int = Field(description="On all engines, `closed_prefill_tokens` among them.")
    closed_blocks: int = Field(description=f"Of `reserved_blocks`: {CLOSED}")
    closed_seqs: int = Field(description=f"Of `reserved_seqs`: {CLOSED}")
    closed_prefill_tokens: int = Field(description=f"Of `reserved_prefill_tokens`: {CLOSED}")
    engines_accepting: int
    engines: int
    kept_free: list[str] = Field(
        description="Engines that are kept free for a request that was passed often enough."
    )
    tenants: list[WaitingView]


class QueueView(BaseModel):
    """Who waits, by pool and tenant, the longest wait first."""

    pools: list[PoolQueueView]


class PoolView(BaseModel):
    name: str
    aliases: list[str]
    models: list[str] = Field(description="Names that its engines serve.")
    ledger_mode: str
    processes: int = Field(description="That share its ledger.")
    engines: int
    engines_accepting: int
    blocks: int = Field(description="Of all engines, whether they accept work or not.")
    reserved_blocks: int = Field(description=f"Of these: {RESERVED}")
    peak_blocks: int = Field(description=PEAK)
    reservations: int
    queued: int
    oldest_wait_s: float


class PoolsView(BaseModel):
    pools: list[PoolView]


class FileView(BaseModel):
    """The policy file that is in force."""

    path: str | None = Field(
        description="null: there is none, the settings come from options and environment."
    )
    digest: str | None = Field(description="Of its content: replicas with the same one have the same file.")
    taken_at: str
    refused: str | None = Field(description="Why the file on the disk is not in force; null while it is.")


class IdentityView(BaseModel):
    """How it is found out whose request it is; never a key, nor what is compared with one."""

    source: str
    header: str | None
    jwt_claim: str | None
    unknown: str | None = Field(description="The tenant of all others; null: they are refused.")


class PolicyTenant(BaseModel):
    name: str
    pools: dict[str, dict[str, ValueView]]


class PolicyView(BaseModel):
    """The policy in force, changes at run time included."""

    file: FileView
    identity: IdentityView
    pools: list[dict[str, Any]]
    tenants: list[PolicyTenant]
    next: str | None = Field(description="`after` of the next page of tenants; null on the last one.")


class EnginesView(BaseModel):
    """Each engine: its state, its capacity and where that is known from, what is reserved on it, its own gauges."""

    engines: list[dict[str, Any]]


class Drained(BaseModel):
    """The engines that were meant, as they are by now."""

    engines: list[dict[str, Any]]
    everywhere: bool = Field(
        description="false: the shared ledger could not be told; it holds here, and is passed on as soon as it can be."
    )


class ProblemView(BaseModel):
    """RFC 9457."""

    title: str
    status: int
    detail: str = Field(description="What was wrong, with what is allowed.")
