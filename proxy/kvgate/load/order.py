"""What `kvgate load` was asked to do, and doing it: one run, two to compare, average beside worst case, or a search.

Runs follow each other and never overlap: side by side they would measure each other. Ctrl-C ends the one that
runs, keeps what it saw, and skips the rest.
"""

from __future__ import annotations

import asyncio
import signal
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from kvgate.errors import ConfigError
from kvgate.load.ceiling import CeilingSearch
from kvgate.load.client import Patience
from kvgate.load.lengths import Longest, Sizes
from kvgate.load.mix import ALONE, SESSIONS_MAX, Tenant, drawn, fresh_salt, poisson
from kvgate.load.result import Result
from kvgate.load.score import Objective
from kvgate.load.target import Target, look_at
from kvgate.load.trial import Bounds, Stop, Trial
from kvgate.load.workload import PromptKind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

AVERAGE, WORST = "as drawn", "worst case"


@dataclass(frozen=True, slots=True)
class Order:
    """The command line, read."""

    urls: Mapping[str, str]
    """By the name of the run; several are compared."""
    sizes: Sizes
    engines: tuple[str, ...] = ()
    model: str | None = None
    rate: float | None = None
    """Requests a second (an open loop); None is a closed loop."""
    concurrency: int = 8
    """Clients of a closed loop."""
    in_flight_max: int = 512
    """Of an open loop, and sessions of the search for the ceiling."""
    requests: int | None = None
    """How many are sent; None: as many as there is time for."""
    bounds: Bounds = field(default_factory=Bounds)
    tenants: tuple[Tenant, ...] = ALONE
    kind: PromptKind = PromptKind.TOKEN_IDS
    objective: Objective = field(default_factory=Objective)
    patience: Patience = field(default_factory=lambda: Patience(retries_max=0))
    seed: int = 1
    tells_lengths: bool = True
    """Whether requests say how long their answers get."""
    worst_case: bool = False
    find_ceiling: bool = False

    @property
    def what(self) -> str:
        """What is sent, in words."""
        prompt, output = self.sizes.largest
        if self.find_ceiling:
            return f"Sessions of {prompt:,} + {output:,} tokens, ever more of them at once."
        how = (
            f"{self.rate:g} requests a second"
            if self.rate
            else f"{self.concurrency:,} clients, one request each"
        )
        most = f", {self.requests:,} requests" if self.requests else ""
        longest = f"the longest session is {prompt:,} + {output:,} tokens"
        return f"{how}{most}, at most {self.bounds.duration_s:g} s; {longest}."


async def carry_out(order: Order, progress: Callable[[Trial], None] = lambda _: None) -> Result:
    """Do it. Raises ConfigError when a URL gives no answer or its window is too short for the sessions."""
    targets = {name: await _target(order, url) for name, url in order.urls.items()}
    stop = Stop()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, stop.say)
    try:
        if order.find_ceiling:
            [target] = targets.values()
            ceiling = await _search(order, target).run(stop, progress)
            return Result(order.what, order.objective, (), ceiling, stop.said)
        outcomes = []
        for name, target, sizes in _runs(order, targets):
            if not stop.said:
                outcomes.append(await _trial(order, name, target, sizes).run(stop, progress))
        return Result(order.what, order.objective, tuple(outcomes), None, stop.said)
    finally:
        loop.remove_signal_handler(signal.SIGINT)


def _runs(order: Order, targets: Mapping[str, Target]) -> list[tuple[str, Target, Sizes]]:
    if not order.worst_case:
        return [(name, target, order.sizes) for name, target in targets.items()]
    several = len(targets) > 1
    both = ((AVERAGE, order.sizes), (WORST, Longest(order.sizes)))
    return [
        (f"{name}, {how}" if several else how, target, sizes)
        for name, target in targets.items()
        for how, sizes in both
    ]


async def _target(order: Order, url: str) -> Target:
    target = await look_at(url, order.model, order.tenants[0].key)
    prompt, output = order.sizes.largest
    if target.max_model_len is not None and prompt + output > target.max_model_len:
        raise ConfigError(
            f"--prompt, --output: the longest session is {prompt} + {output} tokens, but {target.model!r} at {url} has "
            f"a window of {target.max_model_len}; take shorter ones"
        )
    return target


def _trial(order: Order, name: str, target: Target, sizes: Sizes) -> Trial:
    count = order.requests or SESSIONS_MAX
    workload = drawn(
        target.model,
        count,
        sizes,
        seed=order.seed,
        kind=order.kind,
        tenants=order.tenants,
        salt=fresh_salt(),
        tells_lengths=order.tells_lengths,
    )
    return Trial(
        name,
        target.url,
        workload,
        concurrency=order.in_flight_max if order.rate else min(order.concurrency, count),
        arrivals_s=islice(poisson(order.rate, order.seed), count) if order.rate else None,
        engines=order.engines,
        patience=order.patience,
        bounds=order.bounds,
        objective=order.objective,
    )


def _search(order: Order, target: Target) -> CeilingSearch:
    prompt_tokens, output_tokens = order.sizes.largest
    return CeilingSearch(
        target.url,
        target.model,
        engines=order.engines or (target.url,),
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        sessions_max=order.in_flight_max,
        kind=order.kind,
        seed=order.seed,
        key=order.tenants[0].key,
        patience=order.patience,
        bounds=order.bounds,
        objective=order.objective,
    )
