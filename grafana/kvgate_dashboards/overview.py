"""Overview: is anyone waiting, who, why, and what would help. The first row is the answer; the rest is the evidence."""

from __future__ import annotations

from kvgate.telemetry import catalogue as c
from kvgate_dashboards import parts as p
from kvgate_dashboards import queries as q
from kvgate_dashboards.board import Board, Section
from kvgate_dashboards.parts import About, Ask

WAITING = q.now(c.QUEUE_DEPTH)
TENANT_WAITING = q.now(c.TENANT_QUEUE_DEPTH, "tenant")
FULL = f"{q.whole(c.AT_RISK_BLOCKS)} / {q.whole(c.CAPACITY_BLOCKS)}"
"""As a newcomer finds it: what is reserved, and what is kept free for answers that get longer."""
SLOTS = f"{q.whole(c.RESERVED_SEQS)} / {q.whole(c.SEQ_SLOTS)}"
USED = f"{q.whole(c.BLOCKS_IN_USE)} / {q.whole(c.RESERVED_BLOCKS)}"
OWN_LIMIT = f"({q.now(c.TENANT_LIMIT, 'tenant')} < on (pool) group_left () {q.whole(c.CAPACITY_BLOCKS)})"

HELP = (
    Ask(f"{q.now(c.ENGINE_UP, 'engine')} == 0", "{{engine}} is down: bring it back"),
    Ask(
        f"({FULL} > 0.9) and on (pool) ({WAITING} > 0)",
        "{{pool}}: the KV cache is full. Add an engine, or lower max_tokens",
    ),
    Ask(
        f"(({SLOTS} > 0.95) and on (pool) ({FULL} < 0.9)) and on (pool) ({WAITING} > 0)",
        "{{pool}}: sequence slots are full, blocks are not. Raise max_num_seqs on the engines and here",
    ),
    Ask(
        f"({q.now(c.TENANT_BLOCKS, 'tenant')} >= on (pool, tenant) 0.7 * {OWN_LIMIT}) "
        f"and on (pool, tenant) ({TENANT_WAITING} > 0)",
        "{{tenant}} is at its own limit. Raise it, or let it wait",
    ),
    Ask(
        f"({USED} < 0.5) and on (pool) ({WAITING} > 0)",
        "{{pool}}: half of what is reserved is not used. Lower limits (max_tokens), or let lengths be "
        "learned",
    ),
    Ask(
        q.now(c.LEDGER_MODE, "mode", where='mode=~"local|closed|open"') + " == 1",
        "{{pool}}: the ledger is in mode {{mode}}. Bring Redis back",
    ),
    Ask(f"{q.now(c.POLICY_REFUSED)} == 1", "{{pool}}: the policy file was refused. /admin/policy says why"),
)
"""Each is there only while it is so. The order is that in which to try."""


def board() -> Board:
    sections = (
        Section("Is anyone waiting, who, why, what would help", _answer()),
        Section("The queue", _queue()),
        Section("Room and speed", _room()),
        Section("kvgate itself", _machinery()),
    )
    about = "Is anyone waiting for a vLLM server, who, why, for how long, and what would help."
    return Board("kvgate-overview", "Overview", about, sections)


def _answer() -> list[p.PanelBuilder]:
    return [
        p.number(
            About(
                "Waiting now",
                "Requests that wait for room on an engine.",
                "0: nothing. Above 0 for minutes, more is asked than fits: go on to the right.",
                "Queue growing",
                4,
                6,
            ),
            p.COUNT,
            [Ask(f"sum ({WAITING})", "waiting")],
            ((None, p.GREEN), (1, p.YELLOW), (100, p.RED)),
        ),
        p.number(
            About(
                "Oldest wait",
                "How long the request that has waited longest has waited.",
                "Near the wait limit (queue.wait, 30 s unless set otherwise) requests time out with 429 "
                "next.",
                "Queue growing",
                4,
                6,
            ),
            p.SECONDS,
            [Ask(f"max ({q.now(c.QUEUE_OLDEST)})", "oldest")],
            ((None, p.GREEN), (5, p.YELLOW), (25, p.RED)),
        ),
        p.bars(
            About(
                "Who waits",
                "Waiting requests of the ten tenants that have most.",
                "One far ahead: it offers more than its share, or is at its limit. Open the board Tenants.",
                "Tenant starved",
                5,
                6,
            ),
            p.COUNT,
            [Ask(f"topk(10, {TENANT_WAITING} > 0)", "{{tenant}}")],
            ((None, p.BLUE), (10, p.YELLOW), (100, p.RED)),
            empty="Nobody",
        ),
        p.bars(
            About(
                "Why: what is full",
                "Of the whole pool: KV blocks that are taken for a newcomer, sequence slots that are "
                "reserved, and the blocks really in use.",
                "Taken near 100 %: full, as meant. Waiting while both are low: one large request waits for "
                "an engine to drain, or a tenant is at its limit.",
                "Queue growing",
                5,
                6,
            ),
            p.SHARE,
            [
                Ask(FULL, "{{pool}}: blocks taken"),
                Ask(SLOTS, "{{pool}}: slots reserved"),
                Ask(f"{q.whole(c.BLOCKS_IN_USE)} / {q.whole(c.CAPACITY_BLOCKS)}", "{{pool}}: blocks in use"),
            ],
            ((None, p.GREEN), (0.8, p.YELLOW), (0.95, p.ORANGE)),
            largest=1,
        ),
        p.number(
            About(
                "What would help",
                "What holds requests back right now and can be changed, the first thing to try on top.",
                "What it says. Empty, with a queue: wait, the next answers that end make room.",
                "What would help",
                6,
                6,
            ),
            p.PLAIN,
            HELP,
            ((None, p.BLUE),),
            names=True,
            empty="Nothing to do",
        ),
    ]


def _queue() -> list[p.PanelBuilder]:
    return [
        p.lines(
            About(
                "Waiting, by tenant",
                "Requests that wait for room.",
                "A hill is a burst, and goes away by itself. A plateau is overload: add an engine or lower "
                "limits.",
                "Queue growing",
            ),
            p.COUNT,
            [Ask(TENANT_WAITING, "{{tenant}}")],
            stacked=True,
        ),
        p.lines(
            About(
                "Wait before the grant",
                "Of requests that were granted in the last minutes. Those that gave up are not in it.",
                "If it is too high for your users: more engines, or a shorter queue.wait, which turns it "
                "into 429.",
            ),
            p.SECONDS,
            [Ask(q.quantile(x, c.QUEUE_WAIT), f"p{x * 100:g}") for x in (0.5, 0.95, 0.99)],
        ),
        p.lines(
            About(
                "Arrived, granted, refused",
                "Requests per second.",
                "Arrivals above grants: the rest waits or is refused. Grants at 0 with a queue: look at "
                "engines.",
            ),
            p.REQUESTS_S,
            [
                Ask(q.per_second(c.REQUESTS_ARRIVED), "arrived"),
                Ask(q.per_second(c.GRANTS), "granted"),
                Ask(q.per_second(c.REJECTIONS), "refused"),
            ],
        ),
        p.lines(
            About(
                "Refused, by reason",
                "Requests that kvgate answered with an error itself.",
                "queue_full, queue_timeout: overload. no_backend, upstream_failed: engines. Others are the "
                "client's.",
                "High rejection rate",
            ),
            p.REQUESTS_S,
            [Ask(q.per_second(c.REJECTIONS, "reason"), "{{reason}}")],
            stacked=True,
        ),
        p.lines(
            About(
                "How requests ended",
                "Each request once. With rejected_… kvgate said no, with upstream_failed the engine broke "
                "off.",
                "Anything but served and client_gone that grows: look at the reasons beside.",
                "High rejection rate",
            ),
            p.REQUESTS_S,
            [Ask(q.per_second(c.REQUESTS, "outcome"), "{{outcome}}")],
            stacked=True,
        ),
        p.lines(
            About(
                "Oldest wait",
                "How long the request that has waited longest has waited, by pool.",
                "Rising by one second each second: nothing is granted. A depth of 1 or 2: one large request "
                "waits.",
                "Queue growing",
            ),
            p.SECONDS,
            [Ask(q.now(c.QUEUE_OLDEST), "{{pool}}")],
        ),
    ]


def _room() -> list[p.PanelBuilder]:
    return [
        p.lines(
            About(
                "KV blocks",
                "What the ledger may reserve, what it has reserved, what is taken with it for chance, and "
                "what the engines say is in use.",
                "Taken at the capacity with a queue: full, as meant. In use far below that: see the board "
                "Tuning.",
            ),
            p.BLOCKS,
            [
                Ask(q.whole(c.CAPACITY_BLOCKS), "{{pool}}: capacity"),
                Ask(q.whole(c.AT_RISK_BLOCKS), "{{pool}}: taken"),
                Ask(q.whole(c.RESERVED_BLOCKS), "{{pool}}: reserved"),
                Ask(q.whole(c.BLOCKS_IN_USE), "{{pool}}: in use"),
            ],
        ),
        p.lines(
            About(
                "Time to the first token, p95",
                "From the arrival: the part in the queue, the part in the engine, and both.",
                "The queue grows: overload, working as meant. The engine grows, with no queue: prefill is "
                "short.",
            ),
            p.SECONDS,
            [Ask(q.quantile(0.95, c.TTFT, "part"), "{{part}}")],
        ),
        p.lines(
            About(
                "Time between tokens",
                "Between two reads of a running stream. From a quarter of a second on people see the text "
                "stop.",
                "p99 above 0.5 s: streams freeze. Look for preemptions and drift on the board Engines.",
                "Preemptions",
            ),
            p.SECONDS,
            [Ask(q.quantile(x, c.GAPS), f"p{x * 100:g}") for x in (0.5, 0.99)],
        ),
        p.lines(
            About(
                "Whole request, p95",
                "From the arrival to the end of the answer, by how it ended.",
                "Compare with the wait above: if that explains it, capacity is short; if not, the engines "
                "are slow.",
            ),
            p.SECONDS,
            [Ask(q.quantile(0.95, c.DURATION, "outcome"), "{{outcome}}")],
        ),
        p.lines(
            About(
                "Tokens",
                "Of requests that ended: prompts and answers.",
                "Answers fall while there is a queue: the engines are slower than they were.",
            ),
            p.TOKENS_S,
            [
                Ask(q.per_second(c.PROMPT_TOKENS), "prompt"),
                Ask(q.per_second(c.COMPLETION_TOKENS), "answer"),
            ],
        ),
        p.lines(
            About(
                "Engines that are well",
                "By pool. Busy and draining ones count: they answer.",
                "Fewer than there should be: the board Engines says which, and since when.",
                "Engine down",
            ),
            p.COUNT,
            [Ask(q.whole(c.ENGINE_UP), "{{pool}}")],
            steps=True,
        ),
    ]


def _machinery() -> list[p.PanelBuilder]:
    return [
        p.number(
            About(
                "Ledger",
                "The mode the ledger works in. Normal are memory and redis.",
                "local, closed, open: Redis cannot be reached. Bring it back; nothing else is needed.",
                "Ledger mode not normal",
                4,
                6,
            ),
            p.PLAIN,
            [Ask(f"{q.now(c.LEDGER_MODE, 'mode')} == 1", "{{mode}}")],
            ((None, p.BLUE),),
            names=True,
        ),
        p.number(
            About(
                "Processes",
                "Processes of kvgate that share the ledger, by their leases.",
                "Fewer than were started: one is down, or cut off from Redis.",
                "kvgate down",
                4,
                6,
            ),
            p.COUNT,
            [Ask(q.now(c.LEDGER_PROCESSES), "{{pool}}")],
            ((None, p.RED), (1, p.GREEN)),
        ),
        p.number(
            About(
                "Preemptions",
                "Over the time shown, by the engines' own count.",
                "A few in a thousand requests are what forecasts cost; where peaks are reserved 0. More: "
                "something runs there that the ledger does not know, or answers became longer.",
                "Preemptions",
                4,
                6,
            ),
            p.COUNT,
            [Ask(f"sum ({q.counted(c.ENGINE_PREEMPTIONS, 'pool', 'engine')})", "preemptions")],
            ((None, p.GREEN), (1, p.YELLOW)),
        ),
        p.number(
            About(
                "Policy file",
                "1 while the file on the disk was refused and the last good one stays in force.",
                "Refused: /admin/policy and the log say which line; save a mended file, it is read at once.",
                "Policy refused",
                4,
                6,
            ),
            p.COUNT,
            [Ask(f"max ({q.now(c.POLICY_REFUSED)})", "refused")],
            ((None, p.GREEN), (1, p.RED)),
        ),
        p.number(
            About(
                "Versions",
                "Processes by the version of kvgate that they run.",
                "Two of them for longer than a rollout takes: it is stuck.",
                width=8,
                height=6,
            ),
            p.COUNT,
            [Ask(f"count by (version) ({c.BUILD_INFO.name}{q.selector(c.BUILD_INFO)})", "{{version}}")],
            p.CALM,
        ),
        p.lines(
            About(
                "Calls to the shared ledger, p99",
                "Time of a call, by what it was. Each admitted request makes two. Nothing with memory://.",
                "Above 10 ms: Redis or the network is slow, and each request waits for it.",
                "Ledger mode not normal",
            ),
            p.SECONDS,
            [Ask(q.quantile(0.99, c.LEDGER_CALLS, "call"), "{{call}}")],
        ),
        p.lines(
            About(
                "Troubles of the shared ledger",
                "Unanswered calls, changes of mode, requests started without Redis, and repairs after it "
                "came back.",
                "A few: a failover. Steadily: Redis is overloaded or the network unsteady.",
                "Ledger mode not normal",
            ),
            p.REQUESTS_S,
            [
                Ask(q.per_second(c.LEDGER_CALL_FAILURES, "call"), "unanswered: {{call}}"),
                Ask(q.per_second(c.LEDGER_MODE_SWITCHES, "mode"), "went over to {{mode}}"),
                Ask(q.per_second(c.LEDGER_GRANTS_ALONE, "mode"), "started alone: {{mode}}"),
                Ask(q.per_second(c.LEDGER_REPAIRS, "cause"), "repaired: {{cause}}"),
            ],
        ),
        p.lines(
            About(
                "Restarts of Redis, lost leases",
                "Times a process found the ledger empty or replaced, or had been taken for gone itself.",
                "Redis restarted, or a process was paused for longer than its lease: look at the machine it "
                "is on.",
                "Ledger mode not normal",
            ),
            p.COUNT,
            [
                Ask(q.counted(c.LEDGER_EPOCHS, "pool"), "{{pool}}: ledger replaced"),
                Ask(q.counted(c.LEDGER_LEASES_LOST, "pool"), "{{pool}}: lease lost"),
            ],
        ),
        p.lines(
            About(
                "Missing in the request log",
                "Requests over the time shown that could not be written fast enough.",
                "The disk is full or slow, or the file may not be written: the log on stderr says which.",
            ),
            p.COUNT,
            [Ask(q.counted(c.REQUEST_LOG_DROPPED), "missing")],
            ((None, p.GREEN), (1, p.ORANGE)),
        ),
        p.lines(
            About(
                "Spans of traces",
                "Over the time shown, by what became of them. Nothing where no traces are made.",
                "failed, or ended far above exported: the collector is away or too slow. Requests are not "
                "affected.",
            ),
            p.COUNT,
            [Ask(q.counted(c.TRACE_SPANS, "result"), "{{result}}")],
        ),
    ]
