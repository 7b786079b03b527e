"""Tenants: what each holds, waits and gets, beside what it was promised and what it may have."""

from __future__ import annotations

from kvgate.telemetry import catalogue as c
from kvgate_dashboards import parts as p
from kvgate_dashboards import queries as q
from kvgate_dashboards.board import Board, Section
from kvgate_dashboards.parts import About, Ask

HELD = q.now(c.TENANT_BLOCKS, "tenant")
GUARANTEE = q.now(c.TENANT_GUARANTEE, "tenant")
LIMIT = q.now(c.TENANT_LIMIT, "tenant")
WEIGHT = q.now(c.TENANT_WEIGHT, "tenant")
EVERY_BLOCK = f"on (pool) group_left () {q.whole(c.CAPACITY_BLOCKS)}"


def board() -> Board:
    sections = (
        Section("Now", [_table()]),
        Section("The KV cache: held against promised and allowed", _shares()),
        Section("Waiting and refused", _waits()),
        Section("What each got", _service()),
    )
    about = "Each tenant's share of the KV cache against its guarantee and limit, its waits, refusals and service."
    return Board("kvgate-tenants", "Tenants", about, sections)


def _table() -> p.PanelBuilder:
    columns = [
        (q.now(c.TENANT_QUEUE_DEPTH, "tenant"), "Waiting", p.COUNT),
        (q.now(c.TENANT_OLDEST, "tenant"), "Oldest wait", p.SECONDS),
        (HELD, "Blocks held", p.COUNT),
        (GUARANTEE, "Guarantee", p.COUNT),
        (LIMIT, "Limit", p.COUNT),
        (WEIGHT, "Weight", p.COUNT),
        (q.per_second(c.GRANTS, "pool", "tenant"), "Granted/s", p.REQUESTS_S),
        (q.per_second(c.REJECTIONS, "pool", "tenant"), "Refused/s", p.REQUESTS_S),
    ]
    return p.sheet(
        About(
            "Tenants now",
            "A line for each tenant and pool.",
            "Waits and holds its limit: its own limit holds it back. Waits below its guarantee: it is next. "
            "To change it: kvgate tenants set NAME limit=40% --for 1h.",
            "Tenant starved",
            24,
            9,
        ),
        [Ask(expr) for expr, _, _ in columns],
        "tenant",
        [(title, unit) for _, title, unit in columns],
    )


def _shares() -> list[p.PanelBuilder]:
    return [
        p.lines(
            About(
                "Share of the KV cache",
                "What each tenant holds of all blocks of the pool.",
                "While all of them wait, the shares go by weight. Somebody alone may have everything up to its limit.",
            ),
            p.SHARE,
            [Ask(f"{HELD} / {EVERY_BLOCK}", "{{tenant}}")],
            stacked=True,
        ),
        p.lines(
            About(
                "Held / guaranteed",
                "For tenants with a guarantee. Below 1 and waiting, a tenant goes before all others.",
                "Below 1 with a queue for minutes: it is starved, by requests of others that do not end.",
                "Tenant starved",
            ),
            p.SHARE,
            [Ask(f"{HELD} / ({GUARANTEE} > 0)", "{{tenant}}")],
            ((None, p.GREEN), (1, p.BLUE)),
        ),
        p.lines(
            About(
                "Held / limit",
                "1 is as much as the tenant may ever hold. Without a limit of its own that is the pool.",
                "At 1 with a queue, its own limit holds it back. Raise the limit, or let it wait.",
                "What would help",
            ),
            p.SHARE,
            [Ask(f"{HELD} / ({LIMIT} > 0)", "{{tenant}}")],
            ((None, p.GREEN), (1, p.ORANGE)),
        ),
    ]


def _waits() -> list[p.PanelBuilder]:
    return [
        p.lines(
            About(
                "Waiting",
                "Requests of each tenant that wait for room.",
                "One far above the others: it offers more than its share. Nobody else waits for it.",
            ),
            p.COUNT,
            [Ask(q.now(c.TENANT_QUEUE_DEPTH, "tenant"), "{{tenant}}")],
            stacked=True,
        ),
        p.lines(
            About(
                "Oldest wait",
                "How long the longest waiting request of each tenant has waited.",
                "Near its queue.wait, timeouts follow. Only one tenant: it is at its limit, or its weight is low.",
                "Tenant starved",
            ),
            p.SECONDS,
            [Ask(q.now(c.TENANT_OLDEST, "tenant"), "{{tenant}}")],
        ),
        p.lines(
            About(
                "Wait before the grant, p95",
                "Of requests that were granted in the last minutes.",
                "Too high for one that matters: give it a guarantee, a higher weight, or a higher class.",
            ),
            p.SECONDS,
            [Ask(q.quantile(0.95, c.QUEUE_WAIT, "tenant"), "{{tenant}}")],
        ),
        p.lines(
            About(
                "Refused",
                "Requests that kvgate answered with an error itself, by tenant and reason.",
                "tenant_rate: it is over its budget. queue_full, queue_timeout: it asks for more than it can get.",
                "High rejection rate",
            ),
            p.REQUESTS_S,
            [Ask(q.per_second(c.REJECTIONS, "tenant", "reason"), "{{tenant}}: {{reason}}")],
            stacked=True,
        ),
        p.lines(
            About(
                "Over budget",
                "Requests refused because a rate budget was spent, by the budget.",
                "The tenant sends more than it was sold: talk to it, or raise rate in its policy.",
            ),
            p.REQUESTS_S,
            [Ask(q.per_second(c.RATE_REFUSALS, "tenant", "budget"), "{{tenant}}: {{budget}}")],
        ),
        p.lines(
            About(
                "How requests ended",
                "By tenant, without those that were served.",
                "upstream_failed: an engine broke off. client_gone: the client left, often by a timeout of its own.",
            ),
            p.REQUESTS_S,
            [
                Ask(
                    q.per_second(c.REQUESTS, "tenant", "outcome", where='outcome!="served"'),
                    "{{tenant}}: {{outcome}}",
                )
            ],
        ),
    ]


def _service() -> list[p.PanelBuilder]:
    return [
        p.lines(
            About(
                "Service per weight",
                "Tokens charged per second (prompt + twice the output), divided by the weight.",
                "Alike for all tenants that wait in one class. If not, a limit or a guarantee is at work.",
            ),
            p.TOKENS_S,
            [Ask(f"{q.slope(c.TENANT_SERVICE, 'tenant')} / {WEIGHT}", "{{tenant}}")],
        ),
        p.lines(
            About(
                "Fairness",
                "Jain's index of service per weight among those that waited for the last minute: 1 is even.",
                "Below 0.9 for minutes: a class, a limit or a guarantee gives some more than their weight. Meant so?",
            ),
            p.SHARE,
            [Ask(q.now(c.FAIRNESS), "{{pool}}")],
        ),
        p.lines(
            About(
                "Weights",
                "As in force. A step is a change of the policy, or an override that began or ended.",
                "A step that nobody made: kvgate tenants shows where the value comes from.",
            ),
            p.COUNT,
            [Ask(WEIGHT, "{{tenant}}")],
            steps=True,
        ),
        p.lines(
            About(
                "Arrived",
                "Requests of each tenant, whatever became of them.",
                "The offered load: who grew?",
            ),
            p.REQUESTS_S,
            [Ask(q.per_second(c.REQUESTS_ARRIVED, "tenant"), "{{tenant}}")],
            stacked=True,
        ),
        p.lines(
            About("Granted", "Requests of each tenant that were given room.", "Compare with what arrived."),
            p.REQUESTS_S,
            [Ask(q.per_second(c.GRANTS, "tenant"), "{{tenant}}")],
            stacked=True,
        ),
        p.lines(
            About(
                "Tokens",
                "Prompt and output tokens of ended requests.",
                "For bills, and to see whose requests are large.",
            ),
            p.TOKENS_S,
            [
                Ask(q.per_second(c.PROMPT_TOKENS, "tenant"), "{{tenant}}: prompt"),
                Ask(q.per_second(c.COMPLETION_TOKENS, "tenant"), "{{tenant}}: answer"),
            ],
        ),
    ]
