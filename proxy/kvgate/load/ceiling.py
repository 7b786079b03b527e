"""At which concurrency do preemptions begin, and what does the pace of tokens do there?

Sessions of one size are sent at once, ever more of them: 1, 2, 4 … until the engine does not hold them all, then
by halves until two neighbours are known, of which one is held and the other is not. Held means that nothing was
preempted, and that nobody waited for another to end: of sessions of one size that run together, the last one gets
its first token before the first one ends.

The planner's number stands beside it: blocks of the engine, less the null block, by blocks of a session. It can
differ by a session, because the last blocks are needed only in the last steps, and the sessions do not begin in
the same step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import httpx

from kvgate.engines.metrics import read_metrics
from kvgate.engines.models import read_models, window
from kvgate.errors import ConfigError
from kvgate.load.lengths import Fixed, Independent
from kvgate.load.mix import Tenant, drawn, fresh_salt
from kvgate.load.target import ANSWER_S_MAX
from kvgate.load.trial import Bounds, Outcome, Stop, Trial
from kvgate_policies.kv_cost import price
from kvgate_policies.types import EngineShape

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from kvgate.load.client import Patience
    from kvgate.load.score import Objective
    from kvgate.load.workload import PromptKind


@dataclass(frozen=True, slots=True)
class Probe:
    """So many sessions at once, and how that went."""

    sessions: int
    outcome: Outcome

    @property
    def waited(self) -> int:
        """Sessions that got their first token only after another one had ended."""
        first_end_s = min((r.ended_s for r in self.outcome.records if r.ended_s is not None), default=0.0)
        return sum(not r.token_times_s or r.token_times_s[0] > first_end_s for r in self.outcome.records)

    @property
    def failed(self) -> int:
        return self.outcome.score.offered - self.outcome.score.completed

    @property
    def held(self) -> bool:
        return not (self.outcome.preemptions or self.waited or self.failed)


@dataclass(frozen=True, slots=True)
class Ceiling:
    """What was found."""

    prompt_tokens: int
    output_tokens: int
    probes: tuple[Probe, ...]
    """By sessions."""
    planned: int | None
    """By the blocks that the engines report; None where they do not."""
    interrupted: bool = False

    @property
    def sessions(self) -> int | None:
        """The most that were held; None when not even one was, or the search did not come to its end."""
        over = self.first_over
        return None if over is None or over == 1 else over - 1

    @property
    def first_over(self) -> int | None:
        """The fewest that were not held, if the number below them was."""
        over = min((probe.sessions for probe in self.probes if not probe.held), default=None)
        held = max((probe.sessions for probe in self.probes if probe.held), default=0)
        return over if over is not None and over == held + 1 else None

    @property
    def preempts(self) -> int | None:
        """The fewest sessions with which something was preempted."""
        return min((probe.sessions for probe in self.probes if probe.outcome.preemptions), default=None)


async def search(probe: Callable[[int], Awaitable[Probe | None]], most: int) -> list[Probe]:
    """Double until one is not held, then halve. None from `probe` ends the search. Each number is tried once."""
    done: dict[int, Probe] = {}
    held, over, number = 0, most + 1, 1
    while over - held > 1:
        found = await probe(number)
        if found is None:
            break
        done[number] = found
        held, over = (number, over) if found.held else (held, number)
        number = min(2 * number, most) if over > most else (held + over) // 2
    return [done[key] for key in sorted(done)]


class CeilingSearch:
    """The search at one URL."""

    def __init__(
        self,
        url: str,
        model: str,
        *,
        engines: Sequence[str],
        prompt_tokens: int,
        output_tokens: int,
        sessions_max: int,
        kind: PromptKind,
        seed: int,
        key: str | None,
        patience: Patience,
        bounds: Bounds,
        objective: Objective,
    ) -> None:
        self._url, self._model = url, model
        self._engines = tuple(engines)
        self._sizes = Independent(Fixed(prompt_tokens), Fixed(output_tokens))
        self._sessions_max = sessions_max
        self._kind, self._seed = kind, seed
        self._tenants = (Tenant("", key),)
        self._patience, self._bounds, self._objective = patience, bounds, objective
        self._spent_s = 0.0

    async def run(self, stop: Stop, progress: Callable[[Trial], None]) -> Ceiling:
        """Search; bounded by the duration of all probes together."""

        async def probe(sessions: int) -> Probe | None:
            left_s = self._bounds.duration_s - self._spent_s
            if stop.said or left_s <= 0:
                return None
            trial = self._trial(sessions, left_s)
            outcome = await trial.run(stop, progress)
            self._spent_s += trial.elapsed_s
            return None if outcome.cut_off else Probe(sessions, outcome)

        prompt_tokens, output_tokens = self._sizes.largest
        planned = await planned_sessions(self._engines, prompt_tokens, output_tokens)
        probes = await search(probe, self._sessions_max)
        return Ceiling(prompt_tokens, output_tokens, tuple(probes), planned, stop.said)

    def _trial(self, sessions: int, left_s: float) -> Trial:
        return Trial(
            f"{sessions} at once",
            self._url,
            drawn(
                self._model,
                sessions,
                self._sizes,
                seed=self._seed,
                kind=self._kind,
                tenants=self._tenants,
                salt=fresh_salt(),
            ),
            concurrency=sessions,
            engines=self._engines,
            patience=self._patience,
            bounds=Bounds(left_s, drain_s=0.0),
            objective=self._objective,
        )


async def planned_sessions(engines: Sequence[str], prompt_tokens: int, output_tokens: int) -> int | None:
    """What fits into all engines by the blocks they report. Raises ConfigError when one gives no answer."""
    async with httpx.AsyncClient(timeout=ANSWER_S_MAX, trust_env=False) as http:
        found = [await _planned(http, url, prompt_tokens, output_tokens) for url in engines]
    known = [one for one in found if one is not None]
    return sum(known) if found and len(known) == len(found) else None


async def _planned(http: httpx.AsyncClient, url: str, prompt_tokens: int, output_tokens: int) -> int | None:
    try:
        page = (await http.get(f"{url}/metrics")).raise_for_status().text
        models = (await http.get(f"{url}/v1/models")).raise_for_status().content
        cache, longest = read_metrics(page).cache, window(read_models(models))
    except (httpx.HTTPError, ValueError) as error:
        raise ConfigError(
            f"--engine: {url} does not tell its metrics ({type(error).__name__}: {error}). Name the vLLM server "
            "itself, not a proxy in front of it"
        ) from error
    if cache is None or cache.num_gpu_blocks is None or cache.block_size is None:
        return None
    shape = EngineShape(cache.block_size, longest or prompt_tokens + output_tokens)
    blocks = price(shape, [prompt_tokens], output_tokens, 1).blocks
    return len(cache.ranks) * ((cache.num_gpu_blocks - 1) // blocks)
