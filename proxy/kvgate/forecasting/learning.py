"""What a request teaches about lengths: while it runs, and with its end.

Every request does, of whichever kind, so that what forecasts would say can be judged before they are used. What the
client left or an engine broke off teaches as far as it came. Several sequences teach nothing: only their sum is known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvgate.sse import Finish
from kvgate_policies.forecast_request import longer_than_said
from kvgate_policies.kv_cost import output_tokens

if TYPE_CHECKING:
    from kvgate.forecasting.running import Running
    from kvgate.forecasting.watching import ForecastWatch
    from kvgate_policies.forecast import Lengths
    from kvgate_policies.forecast_request import Outlook

EVENT_WEIGHT = 0.05
"""Of the newest stream in the mean tokens of an event: the mean of the last few dozen."""
EVENT_TOKENS_MAX = 64.0
"""Of one event; what is above it is a usage that is wrong."""


class Learning:
    """One for each pool."""

    def __init__(self, lengths: Lengths, watch: ForecastWatch) -> None:
        self._lengths = lengths
        self._watch = watch
        self.tokens_per_event = 1.0

    def tell(self, run: Running, length: int) -> None:
        """Of tokens that could have been the last. What never got one is not even counted as begun."""
        outlook, tenant = run.outlook, run.tenant.name
        if outlook is None or not outlook.telling or length <= run.told:
            return
        if run.cohort is None:
            run.cohort = self._lengths.start(tenant)
        self._lengths.reach(tenant, run.cohort, max(run.told, outlook.sure), length)
        run.told = length

    def ended(self, run: Running) -> None:
        """Let its length be known, as far as it is."""
        self._learn_events(run)
        outlook = run.outlook
        if outlook is None or not outlook.telling or run.revoked:
            return
        length = self._length(run)
        self.tell(run, length or run.told)
        if length and run.finish is not None:
            self._judge(run, outlook, length)
        if length > outlook.sure and run.finish is Finish.STOP and run.cohort is not None:
            self._lengths.end(run.tenant.name, run.cohort, length)

    def _length(self, run: Running) -> int:
        """Tokens of its one sequence, by the engine's word or else as they were counted; 0 where nothing says it."""
        if run.meter is None:
            return run.length or 0
        if run.length is not None and run.meter.completion_tokens:
            return run.length
        return run.seen() if run.finish is None else round(run.seen() * self.tokens_per_event)

    def _learn_events(self, run: Running) -> None:
        meter = run.meter
        if meter is None or run.finish is None or not meter.completion_tokens or not meter.tokens_seen:
            return
        found = min(max(meter.completion_tokens / meter.tokens_seen, 1.0), EVENT_TOKENS_MAX)
        self.tokens_per_event += EVENT_WEIGHT * (found - self.tokens_per_event)

    def _judge(self, run: Running, outlook: Outlook, length: int) -> None:
        limit = output_tokens(run.shape, outlook.prompts[0], outlook.max_tokens)
        came_to = limit if run.finish is Finish.LIMIT else min(length, limit)
        for quantile, exceeded in longer_than_said(run.curve, came_to, limit=limit, sure=outlook.sure):
            self._watch.calibrated(quantile, exceeded=exceeded)
