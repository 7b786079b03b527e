"""How long will it get? What a pool knows of its tenants' output lengths.

One `Lengths` for each pool. Its owner tells it of every sequence when it starts, how far it has come (as it
streams, at each heartbeat) and how it ended, asks it for the curve to price a request with
(`forecast_occupancy`), and calls `review` at each heartbeat. The straight line, for a request that starts:

    cohort = lengths.start(tenant)
    vector = guaranteed(peak) if lengths.guarded(tenant) else forecast_occupancy(lengths.curve(tenant), …)
    … lengths.reach(tenant, cohort, before, after) …      tokens that could have been the last
    lengths.end(tenant, cohort, length)                   only if it ended by itself (`finish_reason=stop`)

Promises:

* A tenant's curve leans on its pool's, the pool's on a wide prior, bin by bin (`forecast_survival`).
* Sequences are counted while they run; cut ones, and those the client left, count as far as they came.
* What is old fades: the last 512 sequences of the pool count in full, and up to 400 before them.
* When sequences outlive their forecast, what was learned before is dropped at once, and the tenant, or the
  pool with all tenants whose own sequences do not speak against it, is *guarded*: a request that starts reserves
  its guaranteed peak. Those that run by a forecast are priced by the new curve, the others keep their peak; when
  enough ends were seen, all are priced by it. Who was guarded for the pool's sake is trusted again with the pool.
* One tenant's change is not the pool's: the pool has changed if it shows whichever of its tenants is left out, and
  what a tenant that changed by itself did is left out from then on. A pool of one tenant is that tenant.
* A curve is made anew at a review, when there is news enough: a tenant that is idle costs nothing.
* Memory is bounded: `TENANTS_MAX` records, each of at most 1 + 1 + `COHORTS_MAX` histograms; the one longest
  without a start is forgotten first.
* Replicas share by statements, plain lists of numbers, one for each tenant (`forecast_record`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence

from kvgate_policies.forecast_change import (
    COHORT_SEQUENCES,
    EVIDENCE_MIN,
    RATIO_MAX,
    Fate,
    changed_whoever_is_left_out,
)
from kvgate_policies.forecast_record import LengthRecord
from kvgate_policies.forecast_survival import Survival, prior

TENANTS_MAX = 256
"""Tenants with a record of their own: about 5 MB. The pool's curve serves the others."""
POOL = ""
"""The name under which the pool as a whole is stated; no tenant has it."""


class Lengths:
    """The output lengths of one pool, by tenant."""

    def __init__(self, tenants_max: int = TENANTS_MAX, evidence_min: float = EVIDENCE_MIN) -> None:
        """`evidence_min`: how sure a change must be (`forecast_change`); infinite to look for none."""
        self._tenants_max = tenants_max
        self._evidence_min = evidence_min
        self._tenants: OrderedDict[str, LengthRecord] = OrderedDict()
        """The one that started last at the end."""
        self._pool = LengthRecord(evidence_min)
        self._vouched: set[str] = set()
        """Tenants that are as they were while the pool as a whole is guarded."""
        self._suspected: set[str] = set()
        """Tenants that are guarded for the pool's sake, not by what they did themselves."""
        self._started = 0

    # Asking

    def curve(self, tenant: str) -> Survival:
        """The survival curve to price this tenant's requests with."""
        pool = self._pool.curve(prior())
        record = self._tenants.get(tenant)
        return pool if record is None else record.curve(pool)

    def guarded(self, tenant: str) -> bool:
        """Whether a request that starts now must reserve its guaranteed peak."""
        record = self._tenants.get(tenant)
        if record is not None and record.guarded:
            return True
        return self._pool.guarded and tenant not in self._vouched

    @property
    def guarded_names(self) -> frozenset[str]:
        """Whose lengths have become longer than forecast and are not known well enough yet; `POOL` for all."""
        return frozenset(name for name, record in self._records() if record.guarded)

    def is_suspected(self, name: str) -> bool:
        """Whether it is guarded for the pool's sake alone: nothing shows that its own lengths are as they were."""
        return name in self._suspected

    # Telling

    def start(self, tenant: str) -> int:
        """A sequence begins. Returns its cohort, to be named with all that is told of it later."""
        cohort = self._cohort
        self._started += 1
        record = self._record(tenant)
        self._tenants.move_to_end(tenant)
        self._drop_oldest()
        record.start(cohort)
        self._pool.start(cohort)
        return cohort

    def reach(self, tenant: str, cohort: int, before: int, after: int) -> None:
        """It has emitted `after` tokens, `before` of them already told. No-op when nothing came.

        Leave out tokens that could not be the last (those below `min_tokens`, all under `ignore_eos`).
        """
        if after <= before:
            return
        curve = self.curve(tenant)
        come, came = curve.expected_ends(0, after), curve.expected_ends(0, before)
        ends, due = come - came, min(come, 1.0) - min(came, 1.0)
        expected = Fate(ends, doubt=ends / curve.seen_ends, due=due)
        self._pool.reach(cohort, before, after, expected)
        if (record := self._tenants.get(tenant)) is not None:
            record.reach(cohort, before, after, expected)

    def end(self, tenant: str, cohort: int, length: int) -> None:
        """It ended by itself with its `length`-th token, which `reach` was told of."""
        self._pool.end(cohort, length)
        if (record := self._tenants.get(tenant)) is not None:
            record.end(cohort, length)

    def review(self, now_s: float = 0.0) -> tuple[str, ...]:
        """To be called at each heartbeat: curves follow what was told, changes are looked for. `now_s` is any clock,
        for the longest time that somebody stays guarded.

        Returns whose lengths were just found to be longer than forecast; `POOL` stands for all.
        """
        changed = [
            name for name, record in self._tenants.items() if record.review(self._cohort, now_s) is not None
        ]
        self._suspected.difference_update(changed)
        self._leave_out(changed)
        since = self._pool.review(self._cohort, now_s, self._is_of_many)
        if since is not None:
            changed += [POOL, *self._suspects(since, changed)]
        if not self._pool.guarded:
            self._vouched.clear()
            self._trust_suspects()
        return tuple(changed)

    def _leave_out(self, changed: Iterable[str]) -> None:
        """They changed by themselves, or another replica says so: that says nothing of the pool."""
        for name in changed:
            dropped = self._tenants[name].take_dropped()
            if len(self._tenants) > 1:
                self._pool.leave_out(dropped)

    def _is_of_many(self, since: int) -> bool:
        """Whether what began since that cohort has changed whoever of the tenants is left out."""
        if len(self._tenants) < 2:
            return True
        parts = (record.fate(since) for record in self._tenants.values())
        return changed_whoever_is_left_out(self._pool.fate(since), parts)

    def _suspects(self, since: int, known: list[str]) -> list[str]:
        """The pool changed: every tenant whose own ends do not speak against it changed with it."""
        suspects: list[str] = []
        for name, record in self._tenants.items():
            if name in known:
                continue
            if record.as_forecast(since):
                self._vouched.add(name)
            else:
                record.forget_before(since, RATIO_MAX)
                record.take_dropped()  # the pool has given them up as well
                self._suspected.add(name)
                suspects.append(name)
        return suspects

    def _trust_suspects(self) -> None:
        """Of the pool enough is known again: so much is known of each of them as of a tenant that is new."""
        for name in self._suspected & self._tenants.keys():
            self._tenants[name].guarded = False
        self._suspected.clear()

    # Sharing

    def statements(self, names: Iterable[str] | None = None) -> dict[str, list[float]]:
        """What was counted here, by tenant and for the `POOL`: plain numbers, for a store or the other replicas.

        Of these names alone, where some are given.
        """
        wanted = None if names is None else frozenset(names)
        return {
            name: record.statement() for name, record in self._records() if wanted is None or name in wanted
        }

    def marks(self) -> dict[str, int]:
        """A number for each name that changes when its statement does."""
        return {name: record.told for name, record in self._records()}

    def hear(self, statements: Iterable[Mapping[str, Sequence[float]]]) -> None:
        """Take the present statements of all other replicas, in place of those heard before.

        Tenants that never started here are left to their replica. Raises ValueError for what is no statement.
        """
        heard, guarded = list(statements), self.guarded_names
        for name, record in self._records():
            record.hear([theirs[name] for theirs in heard if name in theirs])
        newly = self.guarded_names - guarded - {POOL}
        self._leave_out(newly)
        if self._pool.guarded:
            self._suspected |= newly

    def restore(self, statements: Mapping[str, Sequence[float]]) -> None:
        """Begin with what was counted before a restart. Raises ValueError for what is no statement."""
        for name, numbers in statements.items():
            self._named(name).restore(numbers)
        self._drop_oldest()

    def adopt(self, statements: Mapping[str, Sequence[float]]) -> None:
        """Count as one's own what a replica had counted that is gone. Raises ValueError for what is no statement.

        Of an older era than one's own it is void; a newer one makes one's own count void, as when it is heard.
        """
        for name, numbers in statements.items():
            self._named(name).adopt(numbers)
        self._drop_oldest()

    @property
    def _cohort(self) -> int:
        return self._started // COHORT_SEQUENCES

    def _record(self, tenant: str) -> LengthRecord:
        if tenant not in self._tenants:
            self._tenants[tenant] = LengthRecord(self._evidence_min)
        return self._tenants[tenant]

    def _named(self, name: str) -> LengthRecord:
        return self._pool if name == POOL else self._record(name)

    def _drop_oldest(self) -> None:
        while len(self._tenants) > self._tenants_max:
            self._tenants.popitem(last=False)

    def _records(self) -> list[tuple[str, LengthRecord]]:
        return [(POOL, self._pool), *self._tenants.items()]
