"""Engines: what is reserved on each against what it really uses, its headroom, preemptions and state."""

from __future__ import annotations

from kvgate.telemetry import catalogue as c
from kvgate.telemetry.scrape import ENGINE_STATES
from kvgate_dashboards import parts as p
from kvgate_dashboards import queries as q
from kvgate_dashboards.board import Board, Section
from kvgate_dashboards.parts import About, Ask

COLOURS = {
    "up": p.GREEN,
    "busy": p.BLUE,
    "draining": "purple",
    "trial": p.YELLOW,
    "suspended": p.ORANGE,
    "stalled": "#fa6400",
    "down": p.RED,
    "error": "dark-red",
    "unknown": p.GREY,
}
STATE_NAMES = {at: (state, COLOURS[state]) for at, state in enumerate(ENGINE_STATES)}
"""The number that stands for each state in the strip."""


def _state_number() -> str:
    """The state as a number: each engine is in exactly one by the word of each process; the worst of their words."""
    selectors = (q.selector(c.ENGINE_STATE, f'state="{state}"') for state in ENGINE_STATES)
    each = (f"({c.ENGINE_STATE.name}{selector} == 1) * {at}" for at, selector in enumerate(selectors))
    return "max by (pool, engine) (" + " or ".join(each) + ")"


RESERVED = q.now(c.RESERVED_BLOCKS, "engine")
TAKEN = q.now(c.AT_RISK_BLOCKS, "engine")
CAPACITY = q.now(c.CAPACITY_BLOCKS, "engine")
IN_USE = q.now(c.BLOCKS_IN_USE, "engine")


def board() -> Board:
    sections = (
        Section("Are they well", _state()),
        Section("KV blocks: reserved against used", _blocks()),
        Section("Sequences and prompts", _sequences()),
        Section("What went wrong", _troubles()),
    )
    about = "Each engine: reserved against real use, headroom, preemptions, state."
    return Board("kvgate-engines", "Engines", about, sections)


def _state() -> list[p.PanelBuilder]:
    return [
        p.states(
            About(
                "State",
                "Of each engine, as the processes of kvgate see it; where they disagree, the worst.",
                "down: look at the engine. suspended: it answers without tokens, as when it shuts down. "
                "stalled: it has requests and makes no tokens: restart it. trial: it failed requests and "
                "gets one at a time. error: /admin/engines says why.",
                "Engine stalled",
                16,
                7,
            ),
            [Ask(_state_number(), "{{engine}}")],
            STATE_NAMES,
        ),
        p.number(
            About(
                "Engines down",
                "Engines that do not answer.",
                "Bring them back. What ran there was queued again or ended with 502.",
                "Engine down",
                4,
                7,
            ),
            p.COUNT,
            [Ask(f"sum (1 - {q.now(c.ENGINE_UP, 'engine')})", "down")],
            ((None, p.GREEN), (1, p.RED)),
        ),
        p.number(
            About(
                "Preemptions",
                "Over the time shown, by the engine's own count.",
                "By forecast a few in a thousand requests; 0 where peaks are reserved. More: something "
                "reaches the engine beside kvgate, a price is too low, or answers became longer.",
                "Preemptions",
                4,
                7,
            ),
            p.COUNT,
            [Ask(q.counted(c.ENGINE_PREEMPTIONS, "pool", "engine"), "{{engine}}")],
            ((None, p.GREEN), (1, p.YELLOW)),
        ),
    ]


def _blocks() -> list[p.PanelBuilder]:
    return [
        p.lines(
            About(
                "Reserved",
                "Share of the engine's blocks that is reserved: expected at the most, or the peaks.",
                "Near 100 % with a queue: full, as meant; by forecast some is left for chance. Uneven "
                "engines: one is draining for a large request.",
            ),
            p.SHARE,
            [Ask(f"{RESERVED} / {CAPACITY}", "{{engine}}")],
        ),
        p.lines(
            About(
                "In use, by the engine's gauge",
                "Share of the blocks that hold something, as of the last probe.",
                "Far below what is reserved: answers end much sooner than their limits, or than is known of "
                "them yet. See the board Tuning.",
            ),
            p.SHARE,
            [Ask(f"{IN_USE} / {CAPACITY}", "{{engine}}")],
        ),
        p.lines(
            About(
                "Headroom",
                "Blocks that could still be reserved for a newcomer; by forecast, without those left for "
                "chance.",
                "Plenty, with a queue: the slots are full, or one large request has the engine kept free "
                "for it.",
            ),
            p.BLOCKS,
            [Ask(f"{CAPACITY} - {TAKEN}", "{{engine}}")],
        ),
        p.lines(
            About(
                "Drift",
                "Blocks in use minus what reservations take: the peaks, or by forecast the most that is "
                "expected and what chance may add. Below 0 as a rule.",
                "Above 0 for more than a few probes: traffic that bypasses kvgate, or prices that are too "
                "low.",
                "Drift",
            ),
            p.BLOCKS,
            [Ask(q.now(c.DRIFT_BLOCKS, "engine"), "{{engine}}")],
            ((None, p.GREEN), (1, p.RED)),
        ),
        p.lines(
            About(
                "Capacity",
                "Blocks the ledger may reserve, and those it fills at present.",
                "A step: the engine restarted with other settings. Tenants' guarantees and limits moved "
                "with it. Usable below it: see Trust.",
            ),
            p.BLOCKS,
            [Ask(CAPACITY, "{{engine}}"), Ask(q.now(c.USABLE_BLOCKS, "engine"), "{{engine}}: usable")],
            steps=True,
        ),
        p.lines(
            About(
                "Trust",
                "What the engine's own numbers take from its capacity: trust (lowered by preemptions), and "
                "bias (it uses so many times what it should).",
                "Both 1 when all is well. Trust below 1: it preempts. Bias above 1: prices are too low.",
                "Preemptions",
            ),
            p.PLAIN,
            [
                Ask(q.now(c.ENGINE_TRUST, "engine"), "{{engine}}: trust"),
                Ask(q.now(c.ENGINE_BIAS, "engine"), "{{engine}}: bias"),
            ],
        ),
        p.lines(
            About(
                "Foreign",
                "Blocks in use that requests of the ledger cannot account for. They are charged against the "
                "capacity.",
                "Above 0: somebody sends requests to the engine beside kvgate.",
                "Drift",
            ),
            p.BLOCKS,
            [Ask(q.now(c.ENGINE_FOREIGN, "engine"), "{{engine}}")],
        ),
        p.lines(
            About(
                "Age of its numbers",
                "Since the engine's own numbers were last new.",
                "Above 15 s: they count for nothing, the ledger goes by its own sums. /admin/engines has "
                "last_error.",
                "Metrics of an engine are old",
            ),
            p.SECONDS,
            [Ask(q.now(c.ENGINE_GAUGES_AGE, "engine"), "{{engine}}")],
        ),
        p.lines(
            About(
                "Passed and kept free",
                "Grants that passed an older request that did not fit yet, and engines that were kept free "
                "for one.",
                "Kept free often: requests are large for these engines, and capacity idles while one drains.",
            ),
            p.REQUESTS_S,
            [
                Ask(q.per_second(c.BYPASSES, "pool"), "{{pool}}: passed"),
                Ask(q.per_second(c.PINS, "pool"), "{{pool}}: kept free"),
            ],
        ),
        p.lines(
            About(
                "Shared",
                "Blocks that running requests hold and others have reserved, because their prompts begin "
                "alike: what reservations are smaller by.",
                "0 with prefix_sharing on: nothing is alike, or token ids are not known (prompt_tokens: "
                "learned).",
                width=24,
            ),
            p.BLOCKS,
            [Ask(q.now(c.SHARED_BLOCKS, "engine"), "{{engine}}")],
        ),
    ]


def _sequences() -> list[p.PanelBuilder]:
    return [
        p.lines(
            About(
                "Sequence slots reserved",
                "Of what the engine may run at once (max_num_seqs).",
                "At 100 % while blocks are free: raise max_num_seqs on the engines and here.",
                "What would help",
            ),
            p.SHARE,
            [Ask(f"{q.now(c.RESERVED_SEQS, 'engine')} / {q.now(c.SEQ_SLOTS, 'engine')}", "{{engine}}")],
        ),
        p.lines(
            About(
                "Running",
                "Sequences: reserved by the ledger, and running by the engine's gauge.",
                "More running than reserved: traffic that bypasses kvgate.",
                "Drift",
            ),
            p.COUNT,
            [
                Ask(q.now(c.RESERVED_SEQS, "engine"), "{{engine}}: reserved"),
                Ask(q.now(c.ENGINE_RUNNING, "engine"), "{{engine}}: running"),
            ],
        ),
        p.lines(
            About(
                "Waiting inside the engine",
                "Requests that were sent and that the engine has not started, by its gauge.",
                "Above 0 for long: max_num_seqs here is higher than the engine's.",
            ),
            p.COUNT,
            [Ask(q.now(c.ENGINE_WAITING, "engine"), "{{engine}}")],
        ),
        p.lines(
            About(
                "Prompts not computed yet",
                "Prompt tokens that were given to the engine and are not in its cache yet.",
                "At its bound (8,192 unless set otherwise) with a queue: prefill is what is short.",
            ),
            p.TOKENS,
            [Ask(q.now(c.RESERVED_PREFILL, "engine"), "{{engine}}")],
        ),
    ]


def _troubles() -> list[p.PanelBuilder]:
    return [
        p.lines(
            About(
                "Preemptions",
                "Per second, by the engine's own count.",
                "By forecast a few in a thousand requests; 0 where peaks are reserved. More: something "
                "reaches the engine beside kvgate, a price is too low, or answers became longer.",
                "Preemptions",
            ),
            p.REQUESTS_S,
            [Ask(q.per_second(c.ENGINE_PREEMPTIONS, "pool", "engine"), "{{engine}}")],
            ((None, p.GREEN), (0.001, p.RED)),
        ),
        p.lines(
            About(
                "Stalls",
                "Times an engine was found to have requests and to make no tokens.",
                "Its core hangs behind a server that answers. Restart it.",
                "Engine stalled",
            ),
            p.COUNT,
            [Ask(q.counted(c.ENGINE_STALLS, "pool", "engine"), "{{engine}}")],
            ((None, p.GREEN), (1, p.RED)),
        ),
        p.lines(
            About(
                "Queued again",
                "Granted requests that went back to the queue, by what they saw of the engine.",
                "busy: max_num_seqs here is above the engine's, or others use it too. connect, reset: see "
                "its state.",
                "Engine down",
            ),
            p.REQUESTS_S,
            [Ask(q.per_second(c.REQUEUES, "cause"), "{{cause}}")],
        ),
        p.lines(
            About(
                "Sent again",
                "Requests sent a second time after the engine broke off without an answer.",
                "Engines crash, or are restarted without kvgate engines drain.",
                "Engine down",
            ),
            p.REQUESTS_S,
            [Ask(q.per_second(c.RESENDS), "sent again")],
        ),
    ]
