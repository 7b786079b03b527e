"""The settings of a process: what the command line, the environment and the policy file together say.

Every bound has its unit in its name, a default and a reason.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, InstanceOf

from kvgate.config.layers import OF_POOLS, POOL_DEFAULT, Layer, Value
from kvgate.config.tenants import TenantBook, anonymous_book
from kvgate_policies.forecast_fit import RISK_DEFAULT, RISK_MAX
from kvgate_policies.model_shape import ModelShape
from kvgate_policies.types import RESERVATION_DEFAULT, Reservation, TenantPolicy

Seconds = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]
Risk = Annotated[float, Field(gt=0, le=RISK_MAX)]


class Timeouts(BaseModel):
    """Each has its own message and metric."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    connect_s: Seconds = 2.0
    """A backend on the same network answers a SYN in milliseconds: two seconds is a lost one, sent again."""
    first_byte_s: Seconds = 120.0
    """From the grant to the first event of a stream: the longest prefills take about a minute."""
    idle_s: Seconds = 120.0
    """Between two reads of a stream: a preempted request can stay silent for a whole generation."""
    overall_s: Seconds = 600.0
    """SDKs give up at 600 s; the tenant's queue wait comes on top, from arrival, never reset by retries."""
    body_s: Seconds = 60.0
    """For the client to send its body: longer is a stuck or hostile client."""
    drain_s: Seconds = 300.0
    """After SIGTERM, for streams to finish."""
    draining_hold_s: Seconds = 0.3
    """How long a reservation outlives an upstream connection that was closed early: vLLM frees the blocks of
    an aborted request 0.16 s after the disconnect (measured), and the step in flight still uses them."""


class PoolSpec(BaseModel):
    """What can differ between pools; the fields of the same name in `Settings` have the reasons."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    aliases: tuple[str, ...] = ()
    """Further names that clients may use for the model; with `*` a pattern of names."""
    backends: tuple[str, ...]
    backend_api_key: str | None = Field(default=None, repr=False)
    prompt_tokens: str = "learned"
    reservation: Reservation = RESERVATION_DEFAULT
    risk: Risk = RISK_DEFAULT
    max_num_seqs: Count = 256
    num_gpu_blocks: int | None = Field(default=None, ge=2)
    block_size: int | None = Field(default=None, ge=1)
    max_model_len: int | None = Field(default=None, ge=1)
    kv_model: InstanceOf[ModelShape] | None = None
    prefix_affinity: bool = True
    prefix_sharing: bool = False
    priority: bool = False
    speculative_tokens: int = Field(default=0, ge=0)
    watermark: float = Field(default=0.0, ge=0, lt=1)
    prefill_tokens_max: Count = 8192


def _anonymous(data: dict[str, Any]) -> TenantBook:
    # What is no policy, name or pool was refused already; the book is then never seen.
    flat = {name: Value(data[name], "settings") for name in OF_POOLS if name in data}
    pools: dict[str, Layer] = {data.get("pool", POOL_DEFAULT): flat}
    for spec in data.get("pools", ()):
        pools[spec.name] = {name: Value(getattr(spec, name), "settings") for name in OF_POOLS}
    return anonymous_book(data.get("tenant", TenantPolicy()), pools=pools)


class Settings(BaseModel):
    """What one process runs with. With several pools the fields of one pool (`pool`, `backends` … ) are those of
    the first; `for_pool` gives the settings of each.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    pool: str = POOL_DEFAULT
    """Names the pool in metrics and its ledger in Redis: processes with the same name share one ledger. With one
    pool the model names that clients send are the backends' own."""
    aliases: tuple[str, ...] = ()
    """Further names for the pool's model; only a policy file gives them."""
    pools: tuple[PoolSpec, ...] = ()
    """The pools, where there are several; () is one pool made of the flat fields."""
    backends: tuple[str, ...]
    """Base URLs of vLLM servers, http:// or https://."""
    backend_api_key: str | None = Field(default=None, repr=False)
    """Sent to the backends in place of the client's credentials."""
    ledger_url: str = Field(default="memory://", repr=False)
    """Where reservations are kept: in this process, or in a Redis that any number of processes share. It may
    hold a password, so it is shown by `redaction.redacted` only."""
    ledger_on_failure: Literal["local", "closed", "open"] = "local"
    """While the shared ledger can't be reached: admit within a share of the capacity, admit nothing, or
    everything."""
    ledger_lease_s: Seconds = 5.0
    """How long a process that fell silent keeps its place: a pause of the interpreter, a slow Redis or a
    failover (two to three seconds) must not cost it its reservations."""
    ledger_heartbeat_s: Seconds = 0.25
    """Between two of a process's heartbeats, each an absolute statement of what it holds: so long may a lost
    release stay counted."""
    ledger_orphan_hold_s: Seconds = 60.0
    """At most so long are the reservations of a process that died counted: until the engine's own gauge shows
    the blocks free, which takes about a second, or this long where the gauge can't be read."""
    host: str = "127.0.0.1"
    port: int = Field(default=8080, ge=0, le=65535)
    admin_host: str = "127.0.0.1"
    admin_port: int = Field(default=9091, ge=0, le=65535)
    admin_token: str | None = Field(default=None, repr=False)
    """Bearer token for /admin; the probes and /metrics are open."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["json", "text"] = "json"
    request_log: str | None = None
    """A file that gets a line of numbers for each request; None writes none."""
    request_log_bytes_max: int = Field(default=100_000_000, ge=1_000_000)
    """Then the file is put aside as FILE.1, and a new one begun: 100 MB are some 200,000 requests."""
    request_log_files_max: int = Field(default=10, ge=2, le=1000)
    """Files in all; the oldest is overwritten. Ten times 100 MB is what a small disk has to spare."""
    otlp_endpoint: str | None = None
    """Base URL of an OpenTelemetry collector that takes OTLP over HTTP; None makes no traces."""
    trace_sample: float = Field(default=1.0, ge=0, le=1)
    """Share of the traces begun here that are kept; one that a client began is kept if the client keeps it."""
    workers: int = Field(default=1, ge=1, le=64)
    """Processes that serve one port. Each is single-threaded, so more than there are cores gain nothing; 64 is
    a fuse against a slip of the pen."""
    reservation: Reservation = RESERVATION_DEFAULT
    """For the tenants of whom nothing else is said, as the next one."""
    risk: Risk = RISK_DEFAULT
    """Of forecasts: how often an engine may turn out too small for what was started on it."""
    state_dir: str | None = None
    """A directory that keeps the lengths of answers that were learned over a restart; None forgets them. A shared
    ledger keeps them by itself."""
    tenant: TenantPolicy = TenantPolicy()
    """What holds for every tenant unless the book says otherwise; without tenants, the anonymous one."""
    book: InstanceOf[TenantBook] = Field(default_factory=_anonymous, exclude=True)
    """The tenants; only a policy file gives any."""
    prompt_tokens: str = "learned"
    """learned | backend | local:DIR"""

    max_num_seqs: Count = 256
    """vLLM does not export it; 256 is its default on most cards."""
    num_gpu_blocks: int | None = Field(default=None, ge=2)
    """By hand, where discovery can't (as vLLM counts: the null block included)."""
    block_size: int | None = Field(default=None, ge=1)
    max_model_len: int | None = Field(default=None, ge=1)
    kv_model: InstanceOf[ModelShape] | None = None
    """The model's layers, by its config.json: what its KV groups are made of, where it has several."""
    prefix_affinity: bool = True
    """Whether requests that begin alike go to one engine, within bounds; no effect where none caches prefixes."""
    prefix_sharing: bool = False
    """Whether requests of one process that run on one engine and begin alike reserve the blocks of that beginning
    once."""
    priority: bool = False
    """Whether engines are told that forecast requests are to be preempted before guaranteed ones; for vLLM servers
    with --scheduling-policy priority. Others take no notice."""
    speculative_tokens: int = Field(default=0, ge=0)
    watermark: float = Field(default=0.0, ge=0, lt=1)
    """vLLM's --watermark, if the backends run with it."""
    prefill_tokens_max: Count = 8192
    """Prompt tokens pushed into an engine at once: about a second of prefill on the slowest cards in use."""

    bypass_max: int = Field(default=8, ge=0)
    """How often a request that does not fit may be passed by others that do, before an engine is kept."""
    resend_max: int = Field(default=1, ge=0)
    """Re-sends after the request was sent and nothing came back; more would let one request walk the pool."""
    probe_interval_s: Seconds = 1.0
    probe_timeout_s: Seconds = 2.0
    stall_after_s: Seconds = 30.0
    """After which an engine that has requests and shows no sign of life is asked for a token, and taken out if that
    does not come: longer than any single step, shorter than clients' patience."""
    busy_hold_s: Seconds = 0.5
    """How long an engine that said "busy" gets no new work."""
    body_bytes_max: Count = 32 * 1024 * 1024
    """A request body: a million tokens of text is about 5 MB; the rest is room for images."""
    answer_bytes_inspected_max: Count = 8 * 1024 * 1024
    """A JSON answer up to this size is read whole before it is passed on: an empty one can be retried."""
    expose_backend: bool = False
    """Whether answers carry `x-kvgate-backend`: an internal address, so only where clients may know it."""
    connections_max: Count = 4096
    """Upstream connections in all; each is a socket and about 24 KB."""
    timeouts: Timeouts = Timeouts()

    @property
    def ledger_shared(self) -> bool:
        """Whether other processes see the same ledger."""
        return not self.ledger_url.startswith("memory:")

    def pool_specs(self) -> tuple[PoolSpec, ...]:
        """The pools in the order of the file; never empty."""
        if self.pools:
            return self.pools
        flat = {name: getattr(self, name) for name in PoolSpec.model_fields if name != "name"}
        return (PoolSpec.model_validate({"name": self.pool, **flat}),)

    def for_pool(self, spec: PoolSpec) -> Self:
        """These settings with one pool alone in the flat fields: what an engine pool or a ledger is made from."""
        flat = {name: getattr(spec, name) for name in PoolSpec.model_fields if name != "name"}
        return self.model_copy(update={"pool": spec.name, **flat, "pools": ()})
