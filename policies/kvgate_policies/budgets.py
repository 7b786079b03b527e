"""Is a budget per minute spent? The generic cell rate algorithm, GCRA (ITU-T I.371, ATM Forum TM 4.0).

In its *virtual scheduling* form the whole state of a budget is one time, TAT: when it would be full again if nobody
spent any more. An amount c of a budget of r per ms, with one minute's worth as its burst, is

    covered   when now ≥ min(TAT, TAT + c/r − burst/r)
    charged   TAT := max(TAT, now) + c/r
    corrected TAT := TAT + (what it was − what was charged)/r

It equals a bucket that holds one minute's worth and is refilled evenly, without a timer that refills it. An amount
above the whole burst is covered when the bucket is full, and puts it in debt: it would never be covered otherwise,
and the debt keeps the rate. Times are in ms, in one clock's order; a state that is not known is 0, a full bucket.

`covered_at_ms` is the only place where cover is decided: what it says of the future is exact, and asking again at
that time is a yes.
"""

from __future__ import annotations

BURST_MS = 60_000.0
"""One minute's worth: who has spent nothing for a minute may spend a minute's budget at once."""


def spell_ms(amount: int, per_minute: int) -> float:
    """How long the budget takes to refill by an amount; negative for one that is given back."""
    return amount * BURST_MS / per_minute


def covered_at_ms(tat_ms: float, amount: int, per_minute: int) -> float:
    """From when on an amount is covered, if nobody spends meanwhile; at or before now: it is."""
    return min(tat_ms, tat_ms + spell_ms(amount, per_minute) - BURST_MS)


def charged_ms(tat_ms: float, amount: int, per_minute: int, now_ms: float) -> float:
    """The state after an amount was spent. Whether it was covered is not asked here."""
    return max(tat_ms, now_ms) + spell_ms(amount, per_minute)


def corrected_ms(tat_ms: float, difference: int, per_minute: int) -> float:
    """The state after it turned out that a charge was too small by `difference` (negative: too large)."""
    return tat_ms + spell_ms(difference, per_minute)
