"""The search for the ceiling: how it halves, and that it finds the planner's number on a simulated engine."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from kvgate.errors import ConfigError
from kvgate.load import Bounds, Objective, Patience, PromptKind, Stop
from kvgate.load.ceiling import Ceiling, CeilingSearch, Probe, planned_sessions, search
from kvgate.load.tables import headline
from kvgate.sim import SimServer


class Nothing:
    preemptions = 0


NOTHING = Nothing()


@dataclass
class Fake:
    """A probe whose answer is known."""

    sessions: int
    held: bool
    outcome: Any = field(default_factory=lambda: NOTHING)


def tried(ceiling: int, most: int, stop_after: int = 99) -> Any:
    count = iter(range(stop_after))

    async def probe(sessions: int) -> Any:
        return Fake(sessions, sessions <= ceiling) if next(count, None) is not None else None

    return asyncio.run(search(probe, most))


@pytest.mark.parametrize("most", [1, 2, 7, 16, 100])
@pytest.mark.parametrize("ceiling", [0, 1, 2, 3, 11, 12, 16, 99, 100, 500])
def test_it_ends_between_two_neighbours_and_tries_none_twice(ceiling: int, most: int) -> None:
    found = tried(ceiling, most)
    numbers = [one.sessions for one in found]
    assert numbers == sorted(set(numbers))
    assert max(numbers) <= most
    held = max((one.sessions for one in found if one.held), default=0)
    assert held == min(ceiling, most)
    assert held == most or held + 1 in numbers
    assert len(numbers) <= 2 * most.bit_length() + 2


def test_a_search_that_was_ended_names_no_ceiling() -> None:
    probes: Any = tried(12, 100, stop_after=5)
    assert [one.sessions for one in probes] == [1, 2, 4, 8, 16]
    found = Ceiling(10, 10, tuple(probes), 12)
    assert (found.sessions, found.first_over) == (None, None)
    assert headline(found).startswith("No ceiling found: 8 sessions of 10 + 10 tokens are held")


def test_not_even_one() -> None:
    probes: Any = tried(0, 8)
    assert headline(Ceiling(1, 1, tuple(probes), None)).startswith("Not even one")


STEP_MS = 4
"""Slow enough that all sessions are sent within a few steps, on a busy machine too."""


def search_at(url: str, **more: Any) -> CeilingSearch:
    known: dict[str, Any] = {
        "engines": [url], "prompt_tokens": 192, "output_tokens": 129, "sessions_max": 64,
        "kind": PromptKind.TOKEN_IDS, "seed": 1, "key": None, "patience": Patience(retries_max=0),
        "bounds": Bounds(120.0), "objective": Objective(),
    }  # fmt: skip
    return CeilingSearch(url, "m", **(known | more))


async def test_it_finds_the_planners_number() -> None:
    """A session of 192 + 129 tokens takes 10 blocks of 32: of 70 usable ones 7 fit."""
    planned = 7
    sim = SimServer(
        blocks=71, block_size=32, max_model_len=2048, max_num_seqs=256, profile=f"fast:{STEP_MS}", model="m"
    )
    async with sim:
        found = await search_at(sim.url).run(Stop(), lambda _: None)
    assert found.planned == planned
    assert found.sessions is not None
    assert abs(found.sessions - planned) <= 1
    at = {probe.sessions: probe for probe in found.probes}
    assert at[found.sessions].outcome.preemptions == 0
    assert (at[found.sessions + 1].outcome.preemptions or 0) + at[found.sessions + 1].waited > 0
    assert found.preempts is not None
    assert (
        f"{found.sessions} sessions of 192 + 129 tokens are held at once. With {found.preempts} preemptions begin"
        in (headline(found))
    )


async def test_a_cap_on_sequences_is_a_ceiling_without_preemptions() -> None:
    sim = SimServer(
        blocks=121, block_size=32, max_model_len=2048, max_num_seqs=3, profile=f"fast:{STEP_MS}", model="m"
    )
    async with sim:
        found = await search_at(sim.url, output_tokens=40).run(Stop(), lambda _: None)
    assert (found.sessions, found.preempts) == (3, None)
    assert "With more, some wait; nothing is preempted." in headline(found)


async def test_its_time_is_bounded_for_all_probes_together() -> None:
    async with SimServer(blocks=121, block_size=32, max_model_len=2048, profile="8b-80gb", model="m") as sim:
        found = await search_at(sim.url, bounds=Bounds(0.3)).run(Stop(), lambda _: None)
        stopped = Stop()
        stopped.say()
        nothing = await search_at(sim.url).run(stopped, lambda _: None)
    assert found.sessions is None
    assert (nothing.probes, nothing.interrupted) == ((), True)


async def test_an_engine_that_is_none() -> None:
    with pytest.raises(ConfigError, match=r"--engine: http://127\.0\.0\.1:9 does not tell its metrics"):
        await planned_sessions(["http://127.0.0.1:9"], 1, 1)
    assert await planned_sessions([], 1, 1) is None


def test_a_probe_with_a_failure_is_not_held() -> None:
    refused = SimpleNamespace(preemptions=0, records=(), score=SimpleNamespace(offered=2, completed=1))
    probe = Probe(2, refused)  # type: ignore[arg-type]
    assert (probe.failed, probe.held) == (1, False)
