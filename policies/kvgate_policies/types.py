"""The frozen values everyone speaks in.

Units: *blocks* are KV blocks of one engine, *tokens* are model tokens, times are seconds. A unit is the last
part of a name (`wait_s_max`, `blocks_free`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from operator import add, sub
from typing import Any, Literal

from kvgate_policies.forecast_fit import RISK_DEFAULT
from kvgate_policies.kv_groups import KVGroup
from kvgate_policies.occupancy import Occupancy, guaranteed


class Endpoint(StrEnum):
    """What is asked of the model. It decides which field limits the output and what unset means."""

    CHAT = "chat"
    CHAT_BATCH = "chat_batch"
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    MESSAGES = "messages"
    GENERATE = "generate"
    POOLING = "pooling"
    AUDIO = "audio"


class Outcome(StrEnum):
    """How a request ended: recorded exactly once, and the metric label of the same name.

    `rejected_*` never stood in the queue, `evicted_*` did; the rest was granted.
    """

    SERVED = "served"
    REJECTED_QUEUE_FULL = "rejected_queue_full"
    REJECTED_NEVER_FITS = "rejected_never_fits"
    REJECTED_BAD_REQUEST = "rejected_bad_request"
    REJECTED_UNKNOWN_MODEL = "rejected_unknown_model"
    REJECTED_UNAUTHORIZED = "rejected_unauthorized"
    REJECTED_TENANT_RATE = "rejected_tenant_rate"
    REJECTED_NO_BACKEND = "rejected_no_backend"
    REJECTED_DRAINING = "rejected_draining"
    REJECTED_LEDGER_UNAVAILABLE = "rejected_ledger_unavailable"
    EVICTED_QUEUE_TIMEOUT = "evicted_queue_timeout"
    EVICTED_DEADLINE = "evicted_deadline"
    EVICTED_DRAINING = "evicted_draining"
    EVICTED_NEVER_FITS = "evicted_never_fits"
    UPSTREAM_REFUSED = "upstream_refused"
    """The engine answered 4xx: its answer was relayed as it is."""
    UPSTREAM_FAILED = "upstream_failed"
    UPSTREAM_TIMEOUT = "upstream_timeout"
    CLIENT_GONE = "client_gone"
    INTERNAL_ERROR = "internal_error"
    """A bug of kvgate; the log has the traceback."""


@dataclass(frozen=True, slots=True)
class EngineShape:
    """What pricing must know of an engine; engines of one shape price a request alike.

    Without `groups` the model has one of full attention, with blocks of `block_size`. `blocks_opaque` is set where it
    has several and no description of them is at hand: then every sequence is charged that many blocks, those of one
    `max_model_len` sequence, which is never too few.
    """

    block_size: int
    max_model_len: int
    prefix_caching: bool = False
    speculative_tokens: int = 0
    blocks_opaque: int | None = None
    groups: tuple[KVGroup, ...] = ()
    """The KV groups of the model; `kv_groups` has their rules."""
    in_flight_tokens: int = 0
    """Tokens scheduled and not settled yet: what a window holds on top of itself while a prompt is read."""

    @property
    def grows_evenly(self) -> bool:
        """Whether a sequence takes one block more for each `block_size` tokens, and none besides."""
        return not self.groups and self.blocks_opaque is None and not self.speculative_tokens


@dataclass(frozen=True, slots=True)
class KVCost:
    """What one request takes from one engine: the vector that is checked and reserved as a whole."""

    blocks: int
    """KV blocks at the peak, all sequences together."""
    seqs: int
    """Sequence slots (`max_num_seqs`)."""
    prefill_tokens: int
    """Prompt tokens not yet computed; given back at the first token."""
    expected: Occupancy | None = None
    """Blocks held from now on, by a forecast; None for a guaranteed reservation: the peak, to the end."""

    @property
    def occupancy(self) -> Occupancy:
        """Blocks held from now on, of either kind."""
        return guaranteed(self.blocks) if self.expected is None else self.expected

    @property
    def use_blocks(self) -> int:
        """What a tenant is said to use by it: the largest mean; of a guaranteed one the peak."""
        return self.blocks if self.expected is None else self.expected.use_blocks

    def __add__(self, other: KVCost) -> KVCost:
        return KVCost(
            self.blocks + other.blocks,
            self.seqs + other.seqs,
            self.prefill_tokens + other.prefill_tokens,
            _together(self, other, add),
        )

    def __sub__(self, other: KVCost) -> KVCost:
        return KVCost(
            self.blocks - other.blocks,
            self.seqs - other.seqs,
            self.prefill_tokens - other.prefill_tokens,
            _together(self, other, sub),
        )


def _together(one: KVCost, other: KVCost, how: Callable[[Any, Any], Any]) -> Occupancy | None:
    """None where all of it is guaranteed, so that sums come back to `ZERO_COST`."""
    if one.expected is None and other.expected is None:
        return None
    both: Occupancy = how(one.occupancy, other.occupancy)
    peaks = guaranteed(how(one.blocks, other.blocks))
    return None if both == peaks else both


ZERO_COST = KVCost(0, 0, 0)


@dataclass(frozen=True, slots=True)
class TokenCount:
    """Prompt tokens, one number for each prompt of the request, and whether they are the engine's own count."""

    tokens: tuple[int, ...]
    exact: bool
    ids: bytes | None = field(default=None, repr=False, compare=False)
    """The token ids of its only prompt, four bytes each, where somebody asked for them."""

    @property
    def total(self) -> int:
        return sum(self.tokens)


class PriorityClass(StrEnum):
    """How urgent a request is; a class is served before the next one, which still progresses (see `fairness`)."""

    INTERACTIVE = "interactive"
    STANDARD = "standard"
    BATCH = "batch"


CLASSES = (PriorityClass.INTERACTIVE, PriorityClass.STANDARD, PriorityClass.BATCH)
"""In the order in which they are served."""

Order = Literal["fifo", "deadline", "shortest"]
"""Who is first inside one tenant's class: by arrival, by the end of its wait, by its size."""

Mode = Literal["enforce", "observe", "off"]
"""Decide and enforce; decide, count what would have been done and forward at once; forward at once."""


Reservation = Literal["guaranteed", "forecast"]
"""What a request reserves: its peak, to the end; or what it is expected to hold, now and further on."""
RESERVATION_DEFAULT: Reservation = "forecast"
"""Where a policy says nothing."""
MAX_TOKENS_DEFAULT = 2048
"""Output tokens for who sets no limit, where peaks are reserved and a policy says nothing; by forecast none are set."""


@dataclass(frozen=True, slots=True)
class TenantRules:
    """What a ledger must know of a tenant in its pool."""

    weight: float = 1.0
    """Share of the service among tenants that wait in the same class, relative to theirs."""
    guarantee: float = 0.0
    """Share of the pool's KV blocks (0 to 1): below it a tenant that waits goes first."""
    limit: float = 1.0
    """Share of the pool's KV blocks (0 to 1) that it never exceeds at a grant."""
    limit_tokens: int | None = None
    """The same bound in KV tokens; the lower of the two holds."""
    borrow: bool = True
    """False makes a hard partition: never above its guarantee, and what it does not use is lent to nobody."""
    tokens_per_minute: int | None = None
    """Budget of prompt plus output tokens, charged when a request is queued, corrected at its end."""
    requests_per_minute: int | None = None


@dataclass(frozen=True, slots=True)
class TenantPolicy:
    """The limits and defaults that hold for a tenant in one pool."""

    name: str = "anonymous"
    max_tokens_default: int | None = None
    """Output tokens charged, and written into the body, when the client sets no limit of its own. A policy that says
    `guaranteed` and nothing of this gets `MAX_TOKENS_DEFAULT`."""
    max_tokens_cap: int | None = None
    """Upper bound on output tokens of a sequence; a larger wish is lowered to it in the body."""
    queue_depth_max: int = 200
    """Requests of the tenant that may wait, in all processes together."""
    queue_wait_s_max: float = 30.0
    overload_status: int = 429
    """HTTP status for a full queue and for a wait that took too long."""
    priority: PriorityClass = PriorityClass.STANDARD
    """The class of its requests, and the highest they can ask for."""
    order: Order = "fifo"
    mode: Mode = "enforce"
    rewrite_max_tokens: bool = True
    """False: a body is never changed; what the client asked for, or the rest of the window, is charged."""
    reservation: Reservation = RESERVATION_DEFAULT
    risk: float = RISK_DEFAULT
    """Of forecasts: how often an engine may turn out too small for what was started (more than 0, at most 0.5)."""
    revocable: bool = False
    """Whether its requests of class batch may be sent back to the queue while their clients have seen nothing."""
    rules: TenantRules = TenantRules()


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """An engine as the ledger sees it: what it holds in all, and whether it takes new work."""

    engine_id: str
    shape: EngineShape
    blocks: int
    """Usable KV blocks: num_gpu_blocks − 1 (the null block), less the watermark."""
    seqs: int
    prefill_tokens: int
    """Bound on prompt tokens not yet computed; one request may exceed it when nothing is outstanding."""
    accepting: bool = True
    """False while the engine is down, draining, or full by its own word."""
    blocks_usable: int | None = None
    """What reservations may fill at present, by its feedback (`kvgate_policies.feedback`): less than all of them
    while it preempts, or serves others too. None: all. An empty engine still takes what the whole of it covers."""

    @property
    def blocks_open(self) -> int:
        """What reservations may fill."""
        return self.blocks if self.blocks_usable is None else min(self.blocks, self.blocks_usable)


@dataclass(frozen=True, slots=True)
class EngineUse:
    """One engine in a snapshot of the ledger."""

    limits: EngineLimits
    reserved: KVCost
    reservations: int
    pinned_by: str | None = None
    """The queued request this engine is kept free for."""
    share: KVCost | None = None
    """The most that a process may use of it while it decides alone, because the shared ledger is away; else None."""


@dataclass(frozen=True, slots=True)
class TenantUse:
    """One tenant in a snapshot of the ledger: those that wait, hold something, or have rules of their own."""

    name: str
    rules: TenantRules
    blocks: int = 0
    """KV blocks reserved, on all engines and by all processes: each request's largest mean, added up. The largest sum
    of their means (`EngineUse.reserved`) may be less, for their largest ones need not be at the same time."""
    blocks_guaranteed: int = 0
    blocks_limit: int = 0
    """Guarantee and limit as blocks of the present pool."""
    reservations: int = 0
    queued: int = 0
    oldest_wait_s: float = 0.0
    service: float = 0.0
    """Tokens charged since the ledger began, corrections included."""


@dataclass(frozen=True, slots=True)
class LedgerView:
    """A consistent snapshot of a ledger, for people, metrics and tests."""

    engines: tuple[EngineUse, ...] = ()
    queued: int = 0
    oldest_wait_s: float = 0.0
    mode: str = "memory"
    processes: int = 1
    """Processes that share the ledger, as far as this one knows."""
    totals: dict[str, int] = field(default_factory=dict)
    """Counters since the start: arrivals, grants, releases, cancels, bypasses, pins."""
    tenants: tuple[TenantUse, ...] = ()
    """At most `TENANTS_SHOWN_MAX`, those that wait or hold something first."""


TENANTS_SHOWN_MAX = 500
"""Tenants in a view: a page of them is read by people and scraped by Prometheus."""


TO_WINDOW = -1
"""vLLM's word for "cut the prompt where the window ends, and leave room for one token"."""


@dataclass(frozen=True, slots=True)
class PromptSize:
    """How large one prompt is before anyone tokenized it."""

    tokens: int | None = None
    """Exact when the prompt came as token ids."""
    utf8_bytes: int = 0
    """Everything that reaches the chat template or tokenizer as text; base64 media never counts."""
    dense_bytes: int = 0
    """The part of `utf8_bytes` in scripts of few bytes per token (CJK, Thai, emoji …)."""
    messages: int = 0
    """Chat messages: each costs a few template tokens."""
    media_tokens: int = 0
    """Flat charge for images, audio and other media."""


@dataclass(frozen=True, slots=True)
class InferenceRequest:
    """A parsed request: only what pricing, counting and relaying need. The bytes travel beside it untouched."""

    endpoint: Endpoint
    model: str | None
    """None when the client named none; vLLM then takes the one it serves."""
    stream: bool
    prompts: tuple[PromptSize, ...]
    max_tokens: int | None
    """The client's limit for one sequence from the ruling field; None when unset."""
    max_tokens_field: str
    """The ruling field: where a changed limit is written."""
    n: int = 1
    """Sequences per prompt."""
    prompt_tokens_max: int | None = None
    """`truncate_prompt_tokens`, when given; `TO_WINDOW` cuts the prompt to what the window holds."""
    min_tokens: int = 0
    ignore_eos: bool = False
    tokenize: tuple[dict[str, object], ...] = ()
    """Bodies for the engine's `POST /tokenize` that count the prompts exactly, one each; () if it can't."""
