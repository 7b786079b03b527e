"""The health of one engine as a value, and how each thing seen changes it. Pure: no clock, no I/O.

        ┌── probe good ──► UP ◄──── success ──── TRIAL ◄── probe good, back-off over ──┐
    UNKNOWN               │ ▲ └ "busy" ► BUSY ─ hold over ► UP                         │
                          │ └───── probe good ───────────────────────────────── DOWN (refused, silent)
                          └─ failures in a row ──────────────────────────────── DOWN (tripped)
      UP ─ two empty answers, or an aborted canary ► SUSPENDED ─ canary lives ► UP; can't tell, back-off ►
      TRIAL
      UP ─ at work, and no token, not even a canary's ► STALLED ─ anything moves ► UP; can't tell, back-off ► TRIAL

* DOWN has two kinds. A refused connection is a process that is gone: the next good probe re-opens it whole.
  A tripped breaker is a process that answers probes and fails requests: a good probe after the back-off
  opens it on TRIAL, where the ledger starts one prompt at a time (`prefill_tokens=1`: the next one starts
  when the one before has its first token or is over, so a trial that ends without a verdict gives its place
  back by itself).
* 4xx never comes here and "busy" never counts as a failure: the engine is well, and full.
* A probe that merely times out needs `PROBE_FAILURES_MAX` in a row: a loaded API server answers late.
* SUSPENDED is for an engine that drains: it answers 200 without a token, its probes are good and the
  requests it still runs succeed. So neither lifts it; only a canary (one token asked of it) or the back-off
  does.
* STALLED is for an engine whose core hangs: its probes are good, its requests wait (they are left to their
  timeouts). A sign of life lifts it: a counter that moves, a byte of an answer, a canary's token. A canary that gets
  no answer holds it; the back-off lifts it only where a canary can't be asked at all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import assert_never

from kvgate.engines.base import Trouble

FAILURES_MAX = 3
"""Failed requests in a row, with no success between, before the breaker opens: one is an accident, and a
burst of streams that break together is one crash."""
PROBE_FAILURES_MAX = 3
EMPTY_WINDOW_S = 10.0
"""Two empty answers within it confirm each other; vLLM drains for seconds to a minute."""
BACKOFF_S_MIN = 1.0
BACKOFF_S_MAX = 30.0
"""A restart takes a minute: doubling up to half of it asks an engine ten times at most before it is back."""


class State(StrEnum):
    UNKNOWN = "unknown"
    """Never discovered."""
    UP = "up"
    TRIAL = "trial"
    """Half open: one prompt at a time until a request succeeds."""
    BUSY = "busy"
    """Full by its own word, for a moment."""
    SUSPENDED = "suspended"
    """It answers without tokens, as an engine that drains does."""
    STALLED = "stalled"
    """It has requests and makes no tokens, although it answers its probes."""
    DOWN = "down"
    DRAINING = "draining"
    """Shown, never stepped to: by an operator's word no new work, whatever the health."""
    ERROR = "error"
    """Shown, never stepped to: it answers, but can't be used; the status says why."""


class Seen(StrEnum):
    """What kvgate itself saw of an engine, beside the `Trouble` of requests."""

    PROBE_GOOD = "probe good"
    PROBE_REFUSED = "connection refused"
    PROBE_UNHEALTHY = "unhealthy by its own word"
    PROBE_SILENT = "no answer to a probe"
    SUCCESS = "a request succeeded"
    CANARY_ALIVE = "a canary got its token"
    CANARY_ABORTED = "a canary was aborted"
    CANARY_UNCLEAR = "a canary told nothing"
    CANARY_SILENT = "a canary got no answer"
    STALLED = "it has requests, makes no tokens, and did not answer a canary"
    MOVED = "it makes tokens again"
    RESTARTED = "the engine restarted"
    HOLD_OVER = "the hold is over"


@dataclass(frozen=True, slots=True)
class Health:
    state: State = State.UNKNOWN
    why: str = ""
    """What put it there, for people."""
    failures: int = 0
    """Failed requests since the last success."""
    probe_failures: int = 0
    empty_at_s: float | None = None
    """When an empty answer was last seen."""
    until_s: float = 0.0
    """BUSY: the end of the hold. SUSPENDED, STALLED and tripped DOWN: not before this."""
    backoff_s: float = 0.0

    @property
    def takes_work(self) -> bool:
        return self.state in {State.UP, State.TRIAL}

    @property
    def is_unblemished(self) -> bool:
        """Up, with nothing that a success would wipe out."""
        return self.state is State.UP and not self.failures and not self.backoff_s

    @property
    def tripped(self) -> bool:
        """Holds on TRIAL too, so that one failure there closes the engine again."""
        return self.failures >= FAILURES_MAX


def step(health: Health, event: Seen | Trouble, now_s: float, *, busy_hold_s: float) -> Health:
    """The health after an event. Equal to `health` when the event changes nothing."""
    if isinstance(event, Trouble):
        return _after_trouble(health, event, now_s, busy_hold_s)
    return _after_sight(health, event, now_s)


def _after_trouble(health: Health, trouble: Trouble, now_s: float, busy_hold_s: float) -> Health:
    match trouble:
        case Trouble.CONNECT:
            return _gone(health, "a connection was refused")
        case Trouble.BUSY:
            return _busy(health, now_s + busy_hold_s)
        case Trouble.RESET | Trouble.ERROR | Trouble.TIMEOUT:
            return _failed(health, trouble, now_s)
        case Trouble.EMPTY:
            return _empty(health, now_s)
        case _:
            assert_never(trouble)


def _after_sight(health: Health, event: Seen, now_s: float) -> Health:  # noqa: C901, PLR0911, PLR0912 - a table
    match event:
        case Seen.PROBE_GOOD:
            return _probe_good(replace(health, probe_failures=0), now_s)
        case Seen.PROBE_REFUSED | Seen.PROBE_UNHEALTHY:
            return _gone(health, event)
        case Seen.PROBE_SILENT:
            return _silent(replace(health, probe_failures=health.probe_failures + 1), event)
        case Seen.SUCCESS:
            return _succeeded(health)
        case Seen.CANARY_ALIVE:
            return _canary_alive(health)
        case Seen.CANARY_ABORTED:
            return _suspended(health, event, now_s)
        case Seen.CANARY_UNCLEAR:
            return _canary_unclear(health, now_s)
        case Seen.CANARY_SILENT:
            return _canary_silent(health, now_s)
        case Seen.STALLED:
            return _stalled(health, now_s)
        case Seen.MOVED:
            return Health(State.UP, event) if health.state is State.STALLED else health
        case Seen.RESTARTED:
            return Health(State.UP, event)
        case Seen.HOLD_OVER:
            return _hold_over(health, now_s)
        case _:
            assert_never(event)


def _gone(health: Health, why: str) -> Health:
    """What comes back is another process: it starts without a record."""
    return health if health.state is State.DOWN and not health.tripped else Health(State.DOWN, why)


def _busy(health: Health, until_s: float) -> Health:
    if health.takes_work or health.state is State.BUSY:
        return replace(health, state=State.BUSY, why="busy by its own word", until_s=until_s)
    return health


def _failed(health: Health, trouble: Trouble, now_s: float) -> Health:
    """Requests that were running when the engine went out fail too; only news of an open engine counts."""
    if health.state not in {State.UP, State.TRIAL, State.BUSY}:
        return health
    failed = replace(health, failures=health.failures + 1)  # on TRIAL the first one is one too many
    if not failed.tripped:
        return failed
    why = f"{failed.failures} requests failed in a row, the last by {trouble.value}"
    return _back_off(replace(failed, state=State.DOWN, why=why), now_s)


def _empty(health: Health, now_s: float) -> Health:
    seen = replace(health, empty_at_s=now_s)
    before = health.empty_at_s
    confirmed = before is not None and now_s - before <= EMPTY_WINDOW_S
    if health.state is State.TRIAL or (health.state is State.UP and confirmed):
        return _suspended(seen, "requests got answers without a token", now_s)
    return seen


def _suspended(health: Health, why: str, now_s: float) -> Health:
    if health.state in {State.DOWN, State.UNKNOWN}:
        return health
    return _back_off(replace(health, state=State.SUSPENDED, why=why), now_s)


def _back_off(health: Health, now_s: float) -> Health:
    backoff_s = min(max(2 * health.backoff_s, BACKOFF_S_MIN), BACKOFF_S_MAX)
    return replace(health, backoff_s=backoff_s, until_s=now_s + backoff_s)


def _probe_good(health: Health, now_s: float) -> Health:
    if health.state is State.UNKNOWN or (health.state is State.DOWN and not health.tripped):
        return Health(State.UP, Seen.PROBE_GOOD)
    if health.state is State.DOWN and now_s >= health.until_s:
        return replace(health, state=State.TRIAL, why="on trial after a good probe")
    return health


def _silent(health: Health, why: str) -> Health:
    if health.state is State.DOWN or health.probe_failures < PROBE_FAILURES_MAX:
        return health
    return Health(State.DOWN, why, probe_failures=health.probe_failures)


def _stalled(health: Health, now_s: float) -> Health:
    if health.state not in {State.UP, State.TRIAL, State.BUSY}:
        return health
    return _back_off(replace(health, state=State.STALLED, why=Seen.STALLED), now_s)


def _canary_silent(health: Health, now_s: float) -> Health:
    """Of a stalled engine that is an answer; of any other it tells nothing."""
    if health.state is State.STALLED:
        return _back_off(health, now_s)
    return _canary_unclear(health, now_s)


def _succeeded(health: Health) -> Health:
    if health.state in {State.TRIAL, State.STALLED}:
        return Health(State.UP, Seen.SUCCESS)
    if health.state in {State.UP, State.BUSY}:
        return replace(health, failures=0, backoff_s=0.0)
    return health


def _canary_alive(health: Health) -> Health:
    if health.state in {State.SUSPENDED, State.STALLED}:
        return Health(State.UP, Seen.CANARY_ALIVE)
    return replace(health, empty_at_s=None)


def _canary_unclear(health: Health, now_s: float) -> Health:
    """Nothing but a request can tell: let one prompt at a time through. An empty answer closes it again."""
    if health.state in {State.SUSPENDED, State.STALLED} and now_s >= health.until_s:
        failures = max(health.failures, FAILURES_MAX)
        return replace(health, state=State.TRIAL, why="on trial after a suspension", failures=failures)
    return health


def _hold_over(health: Health, now_s: float) -> Health:
    if health.state is not State.BUSY or now_s < health.until_s:
        return health
    return replace(health, state=State.TRIAL if health.tripped else State.UP, why="no longer busy")
