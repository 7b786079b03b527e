"""One request from its grant to its end: how far it has come, and how it ended.

A stream is counted as it goes by. One event may carry several tokens (speculative decoding, a `--stream-interval`):
what is surely there is what forecasts learn from, what is probably there is what the vector is made for. An answer that
comes in one piece shows nothing: by the engine's pace it is taken to be somewhere, and half of that, less what it may
have waited, is learned from, so that answers which outlive their forecast are noticed before they are over. Where its
length is known, nothing is left to chance: it is where the slowest pace has brought it, and as large (`unsure`) as the
fastest has made it.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

import anyio

from kvgate.forecasting.rates import TOKENS_PER_S_UNKNOWN
from kvgate.sse import Finish
from kvgate_policies.forecast_lengths import LENGTH_MAX
from kvgate_policies.forecast_occupancy import LAG_TOKENS
from kvgate_policies.forecast_revocation import REVOCATIONS_MAX
from kvgate_policies.forecast_survival import Survival
from kvgate_policies.types import KVCost, PriorityClass, TenantPolicy

if TYPE_CHECKING:
    from kvgate.forecasting.rates import Speed
    from kvgate.ledger.base import Grant
    from kvgate_policies.forecast_request import Outlook
    from kvgate_policies.occupancy import Occupancy
    from kvgate_policies.types import EngineShape

TOLD_SHARE = 0.5
"""Of an estimate by time, that is learned from: a pace is known to a factor of two, and what was told stays told."""

TOLD_AFTER_S = 2.0
"""Of that time nothing is learned from: it may have waited in the engine, or be on its way back already."""


UNSURE_TOKENS = 4
"""Of an answer in one piece, either way, whatever the pace: on its way there, and behind the prompts of others."""
SETTLED_S = 0.25
"""After which a token that ended its answer would be known to have: by then the end of the stream has come, too. An end
that is heard of later than the tokens which other answers survived makes all of them look longer than they are."""


class Meter(Protocol):
    """What is counted beside a stream."""

    @property
    def tokens_seen(self) -> int: ...

    @property
    def completion_tokens(self) -> int | None: ...


class Held(Protocol):
    """The grant that it runs on."""

    @property
    def cost(self) -> KVCost: ...

    @property
    def released(self) -> bool: ...

    @property
    def blocks_apart(self) -> int:
        """Of its blocks, those that are no part of what `expect` is told: others hold them too."""
        ...

    def expect(self, expected: Occupancy) -> None:
        """Hold that from now on; the ledger is told by whoever says it."""
        ...


class Keeper(Protocol):
    """Whoever keeps all that run."""

    def begins(self, run: Running) -> None: ...

    def is_over(self, run: Running) -> None: ...

    def corrected(self, run: Running, cost: KVCost) -> KVCost: ...


class Running:
    """Entered at the grant, left at the end of the attempt, by whichever door."""

    __slots__ = (
        "ahead",
        "behind",
        "cohort",
        "covered",
        "curve",
        "engine_id",
        "finish",
        "held",
        "keeper",
        "length",
        "likely",
        "meter",
        "outlook",
        "placed_s",
        "reached",
        "request_id",
        "reshaped",
        "revoked",
        "scope",
        "settled",
        "settling",
        "shape",
        "shown",
        "since_s",
        "tenant",
        "told",
        "unsure",
        "vector_at",
    )

    def __init__(
        self,
        keeper: Keeper,
        held: Held,
        grant: Grant,
        outlook: Outlook | None,
        tenant: TenantPolicy,
        *,
        curve: Survival,
        since_s: float,
        revocations: int = 0,
    ) -> None:
        """`since_s`: when its first token is due, if it shows none; `revocations`: how often it was sent back."""
        self.keeper = keeper
        self.held = held
        self.request_id = grant.request_id
        self.engine_id = grant.engine_id
        self.shape: EngineShape = grant.shape
        self.outlook = outlook
        """None for what generates nothing."""
        self.tenant = tenant
        self.curve = curve
        """That of its tenant at the grant, by which it is judged at the end."""
        self.cohort: int | None = None
        """None until its lengths were told of."""
        self.since_s = since_s
        self.meter: Meter | None = None
        self.settled = 0
        """Tokens of a stream's sequence that were seen `SETTLED_S` ago or earlier: none of them was its last."""
        self.settling = (0, float("-inf"))
        """Those that will have settled next, and since when they are seen."""
        self.told = 0
        """Tokens of a sequence that were learned from."""
        self.placed_s = since_s
        """Up to when the next three are added up: where an answer in one piece is, by the engine's pace."""
        self.behind = self.likely = self.ahead = 0.0
        self.reached = 0
        """Tokens of a sequence that it has probably come to."""
        self.unsure = 0
        """Tokens by which it may be beyond that; `LENGTH_MAX` where it may be anywhere."""
        self.vector_at = 0
        """`reached`, when its vector was made."""
        self.covered = LAG_TOKENS
        """Tokens of a sequence up to which its vector covers it."""
        self.reshaped = 0
        """The keeper's number of changes of all curves, when its vector was made."""
        self.shown = False
        self.revoked = False
        self.scope = _scope(tenant, grant.priority, revocations)
        """Cancelled when it is sent back; None where that may not be."""
        self.finish: Finish | None = None
        self.length: int | None = None

    def __enter__(self) -> Self:
        self.keeper.begins(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.keeper.is_over(self)

    # Told by the line

    def follows(self, meter: Meter) -> None:
        """It streams, and this counts it."""
        self.meter = meter
        if self.reached:  # by time, while its headers were waited for
            self.reached = self.vector_at = self.covered = 0

    def shows(self) -> bool:
        """Its client is about to see something, so that it can't be sent back any more. False: it was already."""
        self.shown = True
        return not self.revoked

    def corrected(self, cost: KVCost, prompt_tokens: int) -> KVCost:
        """The prompt is longer than it was counted: what it costs now, `cost` being its peak."""
        if self.outlook is None:
            return cost
        self.outlook = replace(self.outlook, prompts=(prompt_tokens,))
        return cost if self.held.cost.expected is None else self.keeper.corrected(self, cost)

    def ended(self, finish: Finish | None, output_tokens: int | None) -> None:
        """The engine ended it in good order; `output_tokens` of all sequences together."""
        self.finish = finish
        if output_tokens is not None and self.outlook is not None:
            self.length = output_tokens // self.outlook.sequences

    # Asked at beats

    @property
    def is_exact(self) -> bool:
        """Whether only its limit ends it."""
        return self.outlook is not None and self.outlook.is_exact

    @property
    def revocable(self) -> bool:
        return self.scope is not None and not self.shown and not self.revoked and not self.held.released

    def revoke(self) -> None:
        """Stop it; whoever runs it queues it again."""
        self.revoked = True
        if self.scope is not None:
            self.scope.cancel()

    def seen(self) -> int:
        """Tokens of a sequence that surely came."""
        if self.meter is None or self.outlook is None:
            return 0
        meter = self.meter
        return max(meter.completion_tokens or 0, meter.tokens_seen) // self.outlook.sequences

    def advance(self, now_s: float, tokens_per_event: float, speed: Speed | None) -> int:
        """Where it probably is by now; never back, and never at its limit. Returns how far it went since asked last."""
        outlook = self.outlook
        if outlook is None:
            return 0
        meter = self.meter
        if meter is None:
            tokens = self._placed(now_s, speed)
        else:
            probably = max(meter.completion_tokens or 0, meter.tokens_seen * tokens_per_event)
            tokens = probably / outlook.sequences
            self.unsure = 0
            self._settle(now_s)
        before = self.reached
        self.reached = max(before, min(int(tokens), outlook.max_tokens - 1))
        return self.reached - before

    def _placed(self, now_s: float, speed: Speed | None) -> float:
        """Where it is by the engine's pace."""
        if speed is not None and now_s > self.placed_s:
            span_s, self.placed_s = now_s - self.placed_s, now_s
            self.behind += speed.slowest * span_s
            self.likely += speed.likely * span_s
            self.ahead += speed.fastest * span_s
        if not self.is_exact:
            return self.likely if speed is not None else max(now_s - self.since_s, 0.0) * TOKENS_PER_S_UNKNOWN
        behind = max(self.behind - UNSURE_TOKENS, 0.0)
        self.unsure = LENGTH_MAX if speed is None else ceil(self.ahead + UNSURE_TOKENS) - int(behind)
        return behind

    def _settle(self, now_s: float) -> None:
        seen, since_s = self.settling
        if now_s - since_s >= SETTLED_S:
            self.settled, self.settling = seen, (self.seen(), now_s)


def _scope(tenant: TenantPolicy, priority: PriorityClass, revocations: int) -> anyio.CancelScope | None:
    may = tenant.revocable and priority is PriorityClass.BATCH
    return anyio.CancelScope() if may and revocations < REVOCATIONS_MAX else None
