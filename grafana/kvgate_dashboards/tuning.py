"""Tuning: where capacity is wasted and answers are refused, and which setting that is."""

from __future__ import annotations

from kvgate.telemetry import catalogue as c
from kvgate_dashboards import parts as p
from kvgate_dashboards import queries as q
from kvgate_dashboards.board import Board, Section
from kvgate_dashboards.parts import About, Ask

RESERVED, TAKEN, IN_USE, CAPACITY = (
    q.whole(m) for m in (c.RESERVED_BLOCKS, c.AT_RISK_BLOCKS, c.BLOCKS_IN_USE, c.CAPACITY_BLOCKS)
)


def board() -> Board:
    sections = (
        Section("Waste: reserved against used", _waste()),
        Section("Forecasts", _forecasts()),
        Section("Output limits", _limits()),
        Section("Counting prompts", _counts()),
        Section("Refused, and what enforcing would do", _refused()),
    )
    about = (
        "Waste, rewritten output limits, the error of prompt counts, and refusals: what to turn, and how far."
    )
    return Board("kvgate-tuning", "Tuning", about, sections)


def _waste() -> list[p.PanelBuilder]:
    mean = [
        f"sum ({q.over_time('avg_over_time', m, 'engine')})" for m in (c.BLOCKS_IN_USE, c.RESERVED_BLOCKS)
    ]
    return [
        p.number(
            About(
                "Reserved and never used",
                "Mean over the time shown, of what was reserved.",
                "Above a half where peaks are reserved: lower max_tokens.default and max_tokens.cap towards "
                "what answers really take, or reserve forecasts. By forecast: lengths vary much, or few are "
                "known yet.",
                width=6,
            ),
            p.SHARE,
            [Ask(f"1 - {mean[0]} / {mean[1]}", "unused")],
            ((None, p.GREEN), (0.5, p.YELLOW), (0.75, p.ORANGE)),
        ),
        p.lines(
            About(
                "Reserved and not in use",
                "Share of the reserved blocks that is empty at the moment.",
                "Some is needed: answers grow into it. Steadily above a half: limits are far above answers, "
                "where peaks are reserved.",
                width=9,
            ),
            p.SHARE,
            [Ask(f"1 - {IN_USE} / ({RESERVED} > 0)", "{{pool}}")],
        ),
        p.lines(
            About(
                "Free while somebody waits",
                "Share of the pool that is open to a newcomer, at times with a queue. 0 while nobody waits.",
                "Steadily above 0.2: requests are large for the engines, slots are short, or limits hold "
                "tenants back.",
                "What would help",
                width=9,
            ),
            p.SHARE,
            [Ask(f"(1 - {TAKEN} / {CAPACITY}) * on (pool) ({q.now(c.QUEUE_DEPTH)} > bool 0)", "{{pool}}")],
        ),
    ]


def _forecasts() -> list[p.PanelBuilder]:
    longer = q.per_second(c.FORECAST_CALIBRATION, "q", where='exceeded="yes"')
    return [
        p.lines(
            About(
                "Longer than forecast",
                "Share of the answers that exceeded a quantile of the forecast at their grant.",
                "Should be 0.5, 0.1 and 0.01. Above: answers became longer. Below: room is left unused. With "
                "reservation: guaranteed it says how right forecasts would be.",
                "Forecasts too low",
            ),
            p.SHARE,
            [Ask(f"{longer} / {q.per_second(c.FORECAST_CALIBRATION, 'q')}", "above {{q}}")],
        ),
        p.lines(
            About(
                "Expected, at risk, in use",
                "Blocks of the pool: what reservations should hold now, what a newcomer finds taken, what "
                "is in use, what there is; and the peaks, if all got there.",
                "At risk at the capacity: full, as meant. In use far above expected: see Drift.",
                "Forecasts too low",
            ),
            p.BLOCKS,
            [
                Ask(q.whole(metric), legend)
                for metric, legend in (
                    (c.EXPECTED_BLOCKS, "expected"),
                    (c.AT_RISK_BLOCKS, "at risk"),
                    (c.BLOCKS_IN_USE, "in use"),
                    (c.CAPACITY_BLOCKS, "capacity"),
                    (c.PEAK_BLOCKS, "peaks"),
                )
            ],
        ),
        p.lines(
            About(
                "Guarded tenants",
                "Tenants that reserve their peaks because their answers became longer.",
                "Above 0 for minutes: few of their answers end. Have them set max_tokens.",
                "Forecasts too low",
            ),
            p.COUNT,
            [Ask(q.now(c.FORECAST_GUARDED), "{{pool}}")],
            ((None, p.GREEN), (1, p.YELLOW)),
        ),
        p.bars(
            About(
                "Lengths that changed",
                "Over the time shown: found longer than forecast, and known again after that.",
                "Often for one tenant: its lengths can't be forecast. Give it reservation: guaranteed.",
                "Forecasts too low",
                width=12,
            ),
            p.COUNT,
            [Ask(q.counted(c.FORECAST_CHANGES, "tenant", "change"), "{{tenant}}: {{change}}")],
            ((None, p.BLUE),),
        ),
        p.lines(
            About(
                "Sent back to the queue",
                "Running requests of class batch that were stopped for others.",
                "Each lost its work. Steadily: lower risk.",
                "Forecasts too low",
                width=12,
            ),
            p.REQUESTS_S,
            [Ask(q.per_second(c.FORECAST_REVOCATIONS, "pool"), "{{pool}}")],
        ),
    ]


def _limits() -> list[p.PanelBuilder]:
    served = q.per_second(c.REQUESTS, "tenant", where='outcome="served"')
    return [
        p.lines(
            About(
                "Output limits that kvgate wrote",
                "Requests whose limit was set or lowered by max_tokens.default or max_tokens.cap.",
                "Clients send no limit. If answers are cut short, raise the default, or have clients set "
                "one.",
            ),
            p.REQUESTS_S,
            [Ask(q.per_second(c.REWRITES, "tenant"), "{{tenant}}")],
        ),
        p.lines(
            About(
                "Share of requests rewritten",
                "Of those that arrived.",
                "Near 100 % for a tenant: its default is what it really gets. Set it by the panel beside.",
            ),
            p.SHARE,
            [
                Ask(
                    f"{q.per_second(c.REWRITES, 'tenant')} / {q.per_second(c.REQUESTS_ARRIVED, 'tenant')}",
                    "{{tenant}}",
                )
            ],
        ),
        p.lines(
            About(
                "Length of answers, mean",
                "Output tokens for each served request, by tenant.",
                "A max_tokens.default of two or three times this wastes little and cuts few.",
            ),
            p.TOKENS,
            [Ask(f"{q.per_second(c.COMPLETION_TOKENS, 'tenant')} / {served}", "{{tenant}}")],
        ),
    ]


def _counts() -> list[p.PanelBuilder]:
    return [
        p.lines(
            About(
                "Estimated / real prompt tokens",
                "Where the count was an estimate. 1 is exact; below 1 too little was reserved.",
                "p5 below 1: use prompt_tokens: backend, or local. p50 far above 1: capacity is wasted.",
                width=12,
            ),
            p.COUNT,
            [Ask(q.quantile(x, c.ESTIMATE), f"p{x * 100:g}") for x in (0.05, 0.5, 0.95)],
            ((None, p.GREEN), (1, p.ORANGE)),
        ),
        p.lines(
            About(
                "Counted too low",
                "Share of the estimates that were at most 98 % of the real prompt.",
                "Above 5 %: use prompt_tokens: backend, or local.",
                "Drift",
                width=12,
            ),
            p.SHARE,
            [Ask(q.up_to(0.98, c.ESTIMATE), "too low")],
            ((None, p.GREEN), (0.05, p.RED)),
        ),
    ]


def _refused() -> list[p.PanelBuilder]:
    return [
        p.bars(
            About(
                "Refused, by reason",
                "Over the time shown.",
                "queue_full: queue.depth is short for the bursts. queue_timeout: more is asked than fits. "
                "never_fits: a client asks for more than the largest engine. The others are the clients' "
                "own.",
                "High rejection rate",
            ),
            p.COUNT,
            [Ask(q.counted(c.REJECTIONS, "reason"), "{{reason}}")],
            ((None, p.BLUE),),
        ),
        p.lines(
            About(
                "What enforcing would do",
                "To tenants in mode observe: granted at once, queued, or refused with a reason.",
                "Anything but granted: so many would notice mode enforce. Too many? Change the policy first.",
            ),
            p.REQUESTS_S,
            [Ask(q.per_second(c.OBSERVED, "tenant", "would"), "{{tenant}}: {{would}}")],
            stacked=True,
        ),
        p.lines(
            About(
                "Policy read again",
                "Over the time shown, by what came of it.",
                "refused: the last good one stays in force. taken, and nobody changed it: something else "
                "writes it.",
                "Policy refused",
            ),
            p.COUNT,
            [Ask(q.counted(c.POLICY_RELOADS, "pool", "result"), "{{pool}}: {{result}}")],
        ),
    ]
