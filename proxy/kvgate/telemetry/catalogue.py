"""Every metric kvgate exports: its type, its labels, what it means, and what to do when it moves.

The instruments are made from this table, so that nothing is exported that is not described here. All names
begin with `kvgate_`, all units are base units (seconds, tokens, KV blocks of one engine). Labels hold only
values that kvgate or its operator chose: never a request id, a key, or a name a client made up. With several
pools, requests that ended before their pool was known have the pool `none`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

QUEUE_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600)
"""From "no wait" to the 600 s after which SDKs give up."""
TTFT_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1, 2, 3.5, 5, 10, 20, 30, 60, 120, 300, 600)
DURATION_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600, 1200)
GAP_BUCKETS_S = (
    *(0.0025, 0.005, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075),
    *(0.1, 0.15, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
)
"""Decode steps take 5 to 50 ms; from a quarter of a second on, a person sees the text stop."""
CALL_BUCKETS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1)
"""A round trip in one region takes half a millisecond; a call gives up after a quarter of a second."""
ESTIMATE_BUCKETS = (0.5, 0.8, 0.9, 0.95, 0.98, 1.0, 1.02, 1.05, 1.1, 1.2, 1.5, 2.0, 3.0)
"""Around 1. A signed error would read better, but OpenMetrics has no histograms below zero."""


class Kind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Across(StrEnum):
    """What the numbers of several worker processes come to, on the one page for all of them."""

    SUM = "sum"
    """Each counts its own part."""
    ONCE = "once"
    """All tell of the same thing: the shared ledger, an engine."""
    LARGEST = "largest"
    """As ONCE, for what must not go back when another worker is asked, and where each worker tells of a part of it;
    or, of flags, whether any has it."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the table. Every metric also has the label `pool`, first."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    meaning: str
    when_it_moves: str
    buckets: tuple[float, ...] = ()
    across: Across = Across.SUM

    @property
    def label_names(self) -> tuple[str, ...]:
        return ("pool", *self.labels)


def _counter(
    name: str, labels: tuple[str, ...], meaning: str, when_it_moves: str, across: Across = Across.SUM
) -> Metric:
    return Metric(f"kvgate_{name}", Kind.COUNTER, labels, meaning, when_it_moves, across=across)


def _gauge(
    name: str, labels: tuple[str, ...], meaning: str, when_it_moves: str, across: Across = Across.ONCE
) -> Metric:
    return Metric(f"kvgate_{name}", Kind.GAUGE, labels, meaning, when_it_moves, across=across)


def _histogram(
    name: str, labels: tuple[str, ...], buckets: tuple[float, ...], meaning: str, when_it_moves: str
) -> Metric:
    return Metric(f"kvgate_{name}", Kind.HISTOGRAM, labels, meaning, when_it_moves, buckets)


BUILD_INFO = _gauge(
    "build_info", ("version",), "Always 1; the label says which kvgate runs.", "A deployment."
)

# Requests, from arrival to their end.
REQUESTS_ARRIVED = _counter(
    "requests_arrived_total",
    ("endpoint", "tenant"),
    "Requests to an inference endpoint.",
    "The offered load. Compare with grants: what arrives faster than it is granted waits.",
)
GRANTS = _counter(
    "grants_total",
    ("tenant",),
    "Reservations granted; a request that was queued again counts again.",
    "Flat while the queue is not empty: no engine has room. See ledger_reserved_blocks and engine_up.",
)
REQUESTS = _counter(
    "requests_total",
    ("tenant", "endpoint", "outcome"),
    "Requests that ended, by how; each exactly once.",
    "Any outcome but `served` and `client_gone` deserves a look: rejections_total says why.",
)
REJECTIONS = _counter(
    "rejections_total",
    ("tenant", "reason"),
    "Requests that kvgate itself answered with an error, by `x-kvgate-reason`.",
    "queue_full, queue_timeout: more is asked than fits; add an engine or lower max_tokens. never_fits: a "
    "client asks for more than the largest engine. no_backend: see engine_state. unauthorized: a key that was "
    "revoked, or someone who tries keys.",
)
RATE_REFUSALS = _counter(
    "rate_refusals_total",
    ("tenant", "budget"),
    "Requests refused because a budget of the tenant was spent, by the budget that is covered last.",
    "The tenant sends more than it was sold. Talk to it, or raise rate in its policy.",
)
OBSERVED = _counter(
    "observed_total",
    ("tenant", "would"),
    "Requests of tenants in mode `observe`, by what enforcing would have done: `granted` at once, `queued`, or "
    "refused with a reason. `max_tokens` counts, beside that, those whose output limit would have been changed.",
    "Anything but `granted`: so many would notice a change to mode enforce. If too many, change the policy first.",
)
DURATION = _histogram(
    "request_duration_seconds",
    ("outcome",),
    DURATION_BUCKETS_S,
    "From arrival to the end of the answer, the wait in the queue included.",
    "Compare with queue_wait_seconds: if that explains it, capacity is short; if not, the engines are slow.",
)
TTFT = _histogram(
    "request_ttft_seconds",
    ("part",),
    TTFT_BUCKETS_S,
    "Time to the first token: `queue` (arrival to grant), `engine` (grant to first token), `total`. "
    "Only requests that got a token.",
    "queue grows: overload, working as meant. engine grows with an idle queue: prefill is the bottleneck.",
)
GAPS = _histogram(
    "inter_token_latency_seconds",
    (),
    GAP_BUCKETS_S,
    "Time between two reads of a running stream.",
    "Mass above half a second: streams freeze. See engine_preemptions_total and ledger_drift_blocks.",
)
PROMPT_TOKENS = _counter(
    "prompt_tokens_total",
    ("tenant",),
    "Prompt tokens of ended requests, by the engine's usage or else as counted.",
    "The mix of traffic changed.",
)
COMPLETION_TOKENS = _counter(
    "completion_tokens_total",
    ("tenant",),
    "Output tokens of ended requests.",
    "Falls while the queue is not empty: the engines are slower than they were.",
)
ESTIMATE = _histogram(
    "prompt_estimate_ratio",
    (),
    ESTIMATE_BUCKETS,
    "Estimated / real prompt tokens, where the count was an estimate and the real one is known. "
    "Below 1 too little was reserved.",
    "Mass below 1: use `prompt_tokens: backend` or `local`. Mass far above 1: capacity is wasted.",
)
REWRITES = _counter(
    "max_tokens_rewrites_total",
    ("tenant",),
    "Requests whose output limit kvgate set or lowered (default or cap of the policy).",
    "Clients send no limit. If answers are cut short, raise max_tokens.default or have clients set one.",
)
REQUEUES = _counter(
    "upstream_requeues_total",
    ("cause",),
    "Granted requests that went back to the queue, by what they saw of the engine.",
    "busy: max_num_seqs here is above the engine's, or others use it too. connect, reset: see engine_state. "
    "unshared: those that held the same beginning ended as it was granted; harmless.",
)
RESENDS = _counter(
    "upstream_resends_total",
    (),
    "Requests sent a second time after the engine broke off without an answer.",
    "Engines crash or are restarted without draining.",
)

# The queue and the ledger, read when scraped.
QUEUE_DEPTH = _gauge(
    "queue_depth",
    (),
    "Requests that wait for a grant now.",
    "Above 0 for minutes: more is asked than fits. What scales the pool should watch this.",
)
QUEUE_OLDEST = _gauge(
    "queue_oldest_wait_seconds",
    (),
    "How long the longest waiting request has waited.",
    "Near the queue's wait limit: timeouts follow. Grows with the depth at 1 or 2: one large request waits.",
)
QUEUE_WAIT = _histogram(
    "queue_wait_seconds",
    ("tenant",),
    QUEUE_BUCKETS_S,
    "Wait of granted requests; those that gave up are in rejections_total.",
    "The price of the overload. If it is too high, add engines or shorten the queue.",
)
BYPASSES = _counter(
    "bypasses_total",
    (),
    "Grants that passed an older request which did not fit yet.",
    "Large and small requests are mixed. Harmless: the bound is the setting `bypass`.",
    Across.LARGEST,
)
PINS = _counter(
    "pins_total",
    (),
    "Times an engine was kept free for a request that had been passed too often.",
    "Often: requests are large for the engines; capacity idles while one drains.",
    Across.LARGEST,
)
TENANT_QUEUE_DEPTH = _gauge(
    "tenant_queue_depth",
    ("tenant",),
    "Requests of the tenant that wait for a grant now, in all its classes.",
    "One tenant far above the others: it offers more than its share, or is at its tenant_limit_blocks.",
)
TENANT_OLDEST = _gauge(
    "tenant_queue_oldest_wait_seconds",
    ("tenant",),
    "How long the longest waiting request of the tenant has waited.",
    "Near its queue.wait: timeouts follow. Only one tenant: it is at its limit, or its weight is low.",
)
TENANT_BLOCKS = _gauge(
    "tenant_reserved_blocks",
    ("tenant",),
    "KV blocks that the tenant holds, on all engines of the pool: of each request the most that it is expected to "
    "hold, or its peak, added up. Not all get there at the same time, so by forecast it may be above "
    "ledger_reserved_blocks, and above what the engines have.",
    "At tenant_limit_blocks with a queue: its own limit holds it back. Below tenant_guarantee_blocks with a "
    "queue: others' requests are still running; it is next.",
)
TENANT_GUARANTEE = _gauge(
    "tenant_guarantee_blocks",
    ("tenant",),
    "KV blocks below which the tenant goes first: its guarantee of the pool as it is now.",
    "An engine came or went, or the policy changed.",
)
TENANT_LIMIT = _gauge(
    "tenant_limit_blocks",
    ("tenant",),
    "KV blocks that the tenant never exceeds at a grant: its limit of the pool as it is now.",
    "An engine came or went, or the policy changed.",
)
TENANT_WEIGHT = _gauge(
    "tenant_weight",
    ("tenant",),
    "The tenant's weight among those that wait in the same class.",
    "The policy changed, or an override began or ended.",
)
TENANT_SERVICE = _gauge(
    "tenant_service_tokens",
    ("tenant",),
    "Service charged to the tenant since the ledger began: prompt plus twice the output, tokens. A gauge, as the "
    "end of a request corrects what was charged at its grant, often downwards.",
    "Its slope, divided by the weight, is alike for all tenants that wait; see fairness_index.",
)
FAIRNESS = _gauge(
    "fairness_index",
    (),
    "Jain's index of service per weight, over the last minute and the tenants that waited at both ends of it: 1 "
    "when all got their share, 1/n when one of n got everything.",
    "Below 0.9 for minutes: a limit, a class or a guarantee gives to some more than their weight.",
)
LEDGER_MODE = _gauge(
    "ledger_mode",
    ("mode",),
    "1 for the mode the ledger works in: `memory`, `redis`, or while Redis is away `local`, `closed` or `open`. "
    "With several workers more than one mode can be 1.",
    "local, closed or open: Redis can't be reached; ledger_call_failures_total and the log say why.",
    Across.LARGEST,
)
LEDGER_PROCESSES = _gauge(
    "ledger_processes",
    (),
    "Processes that share the ledger, by their leases.",
    "Fewer than were started: one is down, or cut off from Redis. More: an old one is still draining.",
)
LEDGER_CALLS = _histogram(
    "ledger_call_duration_seconds",
    ("call",),
    CALL_BUCKETS_S,
    "Time of a call to the shared ledger, by what it was; each admitted request makes two.",
    "Mass above 10 ms: Redis or the network is slow, and each request waits for it.",
)
LEDGER_CALL_FAILURES = _counter(
    "ledger_call_failures_total",
    ("call",),
    "Calls to the shared ledger that got no answer. The next heartbeat puts right what they left.",
    "A few: a failover. Many: Redis is away or overloaded; see ledger_mode.",
)
LEDGER_EPOCHS = _counter(
    "ledger_epoch_changes_total",
    (),
    "Times this process found the shared ledger empty or replaced, and said again what it holds.",
    "Redis was restarted, flushed or failed over, once for each process. Grants pause for under a second.",
)
LEDGER_LEASES_LOST = _counter(
    "ledger_leases_lost_total",
    (),
    "Times this process had been taken for gone and came back.",
    "It was paused for longer than the lease (a stopped process, an overloaded machine), or Redis lost it.",
)
LEDGER_MODE_SWITCHES = _counter(
    "ledger_mode_switches_total",
    ("mode",),
    "Times the ledger went over to this mode.",
    "Often: the way to Redis is unsteady.",
)
LEDGER_GRANTS_ALONE = _counter(
    "ledger_grants_alone_total",
    ("mode",),
    "Requests that this process started by itself while Redis was away, by the mode.",
    "`open`: nobody checked whether they fit; engine_preemptions_total and the engines' queues show what it cost.",
)
LEDGER_REPAIRS = _counter(
    "ledger_repairs_total",
    ("cause",),
    "Times a heartbeat had to find out what became of a request: an unanswered call, a grant for one that had "
    "left, a gap in the stream of grants.",
    "Some with every outage, and with clients that leave. Steadily without either: report it.",
)
CAPACITY_BLOCKS = _gauge(
    "ledger_capacity_blocks",
    ("engine",),
    "KV blocks the ledger may reserve on the engine.",
    "Changes when an engine restarts with other settings.",
)
PEAK_BLOCKS = _gauge(
    "ledger_peak_blocks",
    ("engine",),
    "KV blocks that all reservations of the engine would have at their peaks, if all got there at the same time.",
    "Above ledger_capacity_blocks: that is what forecasts gain. With `reservation: guaranteed` it is what is reserved.",
)
EXPECTED_BLOCKS = _gauge(
    "ledger_expected_blocks",
    ("engine",),
    "KV blocks that the reservations of the engine should hold now: by forecast, or their peaks.",
    "Far from engine_kv_blocks_in_use: others use the engine, or prompts are counted wrong.",
)
AT_RISK_BLOCKS = _gauge(
    "ledger_at_risk_blocks",
    ("engine",),
    "KV blocks that are taken for a newcomer: what reservations should hold at their most, and what chance may add, at "
    "a risk of 1 %; never more than their peaks.",
    "At ledger_capacity_blocks: the engine is full, and others wait. Above: forecasts grew; nothing starts until it "
    "falls.",
)
RESERVED_BLOCKS = _gauge(
    "ledger_reserved_blocks",
    ("engine",),
    "KV blocks reserved on the engine: the peaks of requests, or by forecast the most that all are expected to hold at "
    "a time. What `reserved` means wherever it is told; ledger_peak_blocks has the sum of the peaks.",
    "At the capacity with a queue: full, as meant. Far below it with a queue: see ledger_reserved_seqs.",
)
SHARED_BLOCKS = _gauge(
    "ledger_shared_blocks",
    ("engine",),
    "KV blocks that running requests of this process hold and others have reserved, because their prompts begin alike: "
    "what reservations are smaller by.",
    "0 with `prefix_sharing: on`: prompts differ in their first block, or their token ids are not known (learned).",
    Across.SUM,
)
USABLE_BLOCKS = _gauge(
    "ledger_usable_blocks",
    ("engine",),
    "KV blocks the ledger fills at present: the capacity, less what the engine's own numbers speak against.",
    "Below ledger_capacity_blocks: engine_trust, engine_bias and engine_foreign_blocks say why.",
)
SEQ_SLOTS = _gauge(
    "ledger_seq_slots",
    ("engine",),
    "Sequences the engine may run at once (max_num_seqs).",
    "A setting.",
)
RESERVED_SEQS = _gauge(
    "ledger_reserved_seqs",
    ("engine",),
    "Sequence slots reserved on the engine.",
    "At ledger_seq_slots with free blocks: raise max_num_seqs on the engines and here.",
)
RESERVED_PREFILL = _gauge(
    "ledger_reserved_prefill_tokens",
    ("engine",),
    "Prompt tokens given to the engine that are not computed yet.",
    "At its bound with a queue: prefill is the bottleneck.",
)
BLOCKS_IN_USE = _gauge(
    "engine_kv_blocks_in_use",
    ("engine",),
    "KV blocks in use by the engine's own gauge, as of the last probe.",
    "Near the capacity is what the hardware was bought for.",
    Across.LARGEST,
)
DRIFT_BLOCKS = _gauge(
    "ledger_drift_blocks",
    ("engine",),
    "At the last probe: blocks in use by the engine's gauge − ledger_at_risk_blocks of that moment: what is reserved, "
    "and by forecast what chance may add. Below 0 as a rule.",
    "Above 0 for more than a few probes: traffic that bypasses kvgate, or prices that are too low.",
    Across.LARGEST,
)

# Forecasts of how long answers get.
FORECAST_CALIBRATION = _counter(
    "forecast_calibration_total",
    ("q", "exceeded"),
    "Answers by whether they were longer than a quantile of the lengths that was forecast when they were granted. Of "
    "those above 0.9 a tenth should be. Left out are answers whose limit is below the quantile, and those cut short.",
    "More exceed it than should: answers have become longer, and will be learned. With `reservation: guaranteed` it "
    "says how right forecasts would be.",
)
FORECAST_CHANGES = _counter(
    "forecast_changes_total",
    ("tenant", "change"),
    "Times the lengths of a tenant's answers (`all`: of everybody's) were found to be `longer` than forecast, so that "
    "its peaks are reserved, and `relearned` after that.",
    "longer: another model, prompt or client. Waits grow until it is relearned, after some thirty answers. Often: its "
    "lengths can't be forecast; give it reservation: guaranteed.",
)
FORECAST_GUARDED = _gauge(
    "forecast_guarded_tenants",
    (),
    "Tenants that reserve their peaks although their policy says forecast, because their answers became longer.",
    "Above 0 for minutes: few of their answers end. Steadily: set max_tokens for them.",
    Across.LARGEST,
)
FORECAST_REVOCATIONS = _counter(
    "forecast_revocations_total",
    (),
    "Running requests of class batch that were sent back to the queue because forecasts turned out too low; only of "
    "tenants with `revocable: on`.",
    "Each lost the work done so far. Steadily: lower risk.",
)

# The engines, as of the last probe.
ENGINE_UP = _gauge(
    "engine_up",
    ("engine",),
    "1 while the engine is well: it may be busy or draining, but it answers.",
    "0: look at the engine. Its requests were queued again or ended.",
)
ENGINE_STATE = _gauge(
    "engine_state",
    ("engine", "state"),
    "1 for the state the engine is in, 0 for the others.",
    "busy: it refuses work by itself. suspended: it answers without tokens, as when it shuts down. stalled: it has "
    "requests and makes no tokens. trial: "
    "it failed requests and gets one at a time. error: it cannot be used; /admin/engines says why.",
)
ENGINE_RUNNING = _gauge(
    "engine_requests_running",
    ("engine",),
    "Sequences the engine runs, by its own gauge.",
    "Above ledger_reserved_seqs: traffic that bypasses kvgate.",
    Across.LARGEST,
)
ENGINE_WAITING = _gauge(
    "engine_requests_waiting",
    ("engine",),
    "Requests that wait inside the engine, by its own gauge.",
    "Above 0 for long: max_num_seqs here is higher than the engine's.",
    Across.LARGEST,
)
ENGINE_PREEMPTIONS = _counter(
    "engine_preemptions_total",
    ("engine",),
    "Preemptions the engine counted since it started.",
    "A few in a thousand grants are what forecasts cost. More, or any where all is guaranteed: something runs on the "
    "engine that the ledger does not know, or costs are too low.",
    Across.LARGEST,
)
ENGINE_TRUST = _gauge(
    "engine_trust",
    ("engine",),
    "Part of the engine's capacity that is trusted: 7 % less after preemptions, down to a half, and back within "
    "seconds without. Missing, as the next two, while the engine's numbers are old.",
    "Below 1: it preempts; see engine_preemptions_total.",
    Across.LARGEST,
)
ENGINE_BIAS = _gauge(
    "engine_bias",
    ("engine",),
    "Blocks in use by the engine's gauge over those that the ledger takes to be held now, 1 to 1.5, smoothed over ten "
    "seconds. Always 1 where all reservations are guaranteed.",
    "Above 1.1: prices are too low; see prompt_estimate_ratio.",
    Across.LARGEST,
)
ENGINE_FOREIGN = _gauge(
    "engine_foreign_blocks",
    ("engine",),
    "Blocks in use that requests of the ledger cannot account for; charged against the capacity.",
    "Above 0: somebody sends requests to the engine beside kvgate.",
    Across.LARGEST,
)
ENGINE_GAUGES_AGE = _gauge(
    "engine_gauges_age_seconds",
    ("engine",),
    "Since the engine's own numbers were last new: read, and not the same as before although it works. Told by the "
    "process that scrapes it.",
    "Above 15: they count for nothing until they move again, and the ledger goes by its own sums; /admin/engines says "
    "what went wrong.",
    Across.LARGEST,
)
ENGINE_STALLS = _counter(
    "engine_stalls_total",
    ("engine",),
    "Times the engine was found to have requests and to make no tokens, not even one that was asked of it.",
    "Any: its core hangs behind a server that answers. Its requests are left to their timeouts; restart it.",
    Across.LARGEST,
)

# The request log.
REQUEST_LOG_DROPPED = _counter(
    "request_log_dropped_total",
    (),
    "Requests that are missing in the request log, because it was not written fast enough.",
    "The disk is full or slow, or the file may not be written: the log on stderr says which.",
)

# Traces.
TRACE_SPANS = _counter(
    "trace_spans_total",
    ("result",),
    "Spans of traces by what became of them: `ended`, and of these `exported` to the collector or `failed`. What is "
    "left of `ended` waits (a second), or was dropped because the queue was full.",
    "failed, or ended far ahead of exported: the collector is away or too slow; the log says why. Requests are not "
    "affected.",
)

# The policy.
POLICY_REFUSED = _gauge(
    "policy_refused",
    (),
    "1 while the policy file on the disk is not the one in force, because it was refused.",
    "1: the log and /admin/policy say what is wrong with it; the last good one stays in force.",
    Across.LARGEST,
)
POLICY_RELOADS = _counter(
    "policy_reloads_total",
    ("result",),
    "Times the policy was read again, by what came of it: taken or refused.",
    "refused: see policy_refused. taken, without anyone having changed the file: something else writes it.",
    Across.LARGEST,
)

METRICS: tuple[Metric, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Metric))
"""The whole table, in the order above."""
