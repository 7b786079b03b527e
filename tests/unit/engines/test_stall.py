"""An engine that hangs behind a server that answers: found out, set aside, and taken back when it moves."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kvgate.engines.health import BACKOFF_S_MAX
from kvgate.engines.probe import CANARY_TIMEOUT_S
from kvgate.engines.stall import Quiet, quiet_step
from support.upstream import EngineFace
from support.virtual_loop import run_virtual
from unit.engines.world import Server, World, virtual

STALL_S = 30.0
FOUND_S = STALL_S + CANARY_TIMEOUT_S + 3.0
"""A probe before and one after, and the canary between."""
CANARY = "/v1/completions"


def a_world(*, elects: bool = True, **server: Any) -> World:
    world = World({"a": Server(EngineFace(running=2, usage=0.3), **server)}, stall_after_s=STALL_S)
    world.ledger.elects = elects
    return world


@virtual
async def test_an_engine_that_hangs_is_set_aside_and_back_when_it_moves() -> None:
    async with a_world(mute=True).running() as world:
        await asyncio.sleep(STALL_S - 1)
        assert world.state() == "up"
        assert await world.until(lambda: world.state() == "stalled") <= CANARY_TIMEOUT_S + 3
        assert not world.accepting()
        assert world.pool.available() == frozenset()
        status = world.status()
        assert (status.stalled, status.stalls) == (True, 1)
        assert "makes no tokens" in status.why
        await asyncio.sleep(300)
        assert world.state() == "stalled", "a canary that gets no answer lets nobody try"
        assert world.servers["a"].asked(CANARY) < 30, "asked ever more rarely"
        world.servers["a"].face.generation_tokens += 1
        assert await world.until(lambda: world.state() == "up") <= 1.2
        assert world.accepting()
        assert (world.status().stalled, world.status().stalls) == (False, 1)


def test_it_is_logged_with_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        async with a_world(mute=True).running():
            await asyncio.sleep(FOUND_S)

    run_virtual(run())
    [line] = [record for record in caplog.records if "stalled" in record.getMessage()]
    assert line.levelname == "WARNING"
    assert line.getMessage().endswith(
        "up → stalled: it has requests, makes no tokens, and did not answer a canary"
    )


@virtual
async def test_a_process_that_is_not_elected_finds_it_out_too() -> None:
    async with a_world(mute=True, elects=False).running() as world:
        await world.until(lambda: world.state() == "stalled")
        world.servers["a"].face.generation_tokens += 1
        await world.until(lambda: world.state() == "up", timeout_s=12)


@virtual
async def test_a_canary_that_gets_its_token_clears_it() -> None:
    """Its metrics stand still, and it works: asked once in a while, it stays in."""
    async with a_world().running() as world:
        await asyncio.sleep(4 * STALL_S)
        assert world.accepting()
        assert world.status().stalls == 0
        assert 1 <= world.servers["a"].asked(CANARY) <= 4


@virtual
async def test_an_engine_that_cannot_be_asked_stays_in() -> None:
    async with a_world(completes=False).running() as world:
        await asyncio.sleep(4 * STALL_S)
        assert world.accepting()


@pytest.mark.parametrize("number", ["usage", "generation_tokens", "waiting", "preemptions"])
def test_any_number_that_moves_is_a_sign_of_life(number: str) -> None:
    """A long prompt moves no counter until it is computed, only the KV cache fills."""

    async def run() -> None:
        async with a_world(mute=True).running() as world:
            face = world.servers["a"].face
            for second in range(100):
                setattr(face, number, 0.3 + second / 1000 if number == "usage" else second)
                await asyncio.sleep(1)
            assert world.accepting()
            assert world.servers["a"].asked(CANARY) == 0

    run_virtual(run())


@virtual
async def test_answers_that_pass_are_a_sign_of_life_although_its_metrics_stand_still() -> None:
    async with a_world(mute=True).running() as world:
        target = world.pool.target("http://a")
        assert target is not None
        assert target.pulse is not None
        for _ in range(100):
            target.pulse.beats += 1
            await asyncio.sleep(1)
        assert world.accepting()
        assert world.servers["a"].asked(CANARY) == 0
        await asyncio.sleep(FOUND_S)
        assert world.state() == "stalled"
        target.pulse.beats += 1
        await world.until(lambda: world.state() == "up", timeout_s=1.2)


@virtual
async def test_one_that_shows_nothing_at_work_and_holds_requests_is_asked() -> None:
    """A paused engine takes requests, and its gauges say 0."""
    async with a_world(mute=True).running() as world:
        world.servers["a"].face.running = 0
        world.servers["a"].face.usage = 0.0
        await asyncio.sleep(3 * STALL_S)
        assert world.servers["a"].asked(CANARY) == 0, "an idle engine is left in peace"
        assert await world.grant("held")
        await world.until(lambda: world.state() == "stalled", timeout_s=FOUND_S)
        world.servers["a"].mute = False
        await world.until(lambda: world.state() == "up", timeout_s=BACKOFF_S_MAX)


@virtual
async def test_without_metrics_streams_and_canaries_tell() -> None:
    async with a_world(mute=True).running() as world:
        world.servers["a"].face.metrics = False
        await asyncio.sleep(3 * STALL_S)
        assert world.state() == "up", "nothing is known of what it runs"
        assert await world.grant("held")
        await world.until(lambda: world.state() == "stalled", timeout_s=FOUND_S)


@virtual
async def test_a_restart_lifts_it() -> None:
    async with a_world(mute=True).running() as world:
        await world.until(lambda: world.state() == "stalled")
        world.servers["a"].face.start_time_s += 60
        await world.until(lambda: world.state() == "up", timeout_s=1.2)


@virtual
async def test_other_engines_take_the_work() -> None:
    world = World({"a": Server(EngineFace(running=2), mute=True), "b": Server()}, stall_after_s=STALL_S)
    async with world.running():
        await asyncio.sleep(FOUND_S)
        assert world.pool.available() == {"http://b"}
        grants = [await world.grant(str(number)) for number in range(10)]
        assert {grant.engine_id for grant in grants if grant} == {"http://b"}
        assert all(grants)


@virtual
async def test_a_probe_that_is_late_is_no_death_while_streams_flow() -> None:
    async with a_world().running() as world:
        target = world.pool.target("http://a")
        assert target is not None
        assert target.pulse is not None
        world.servers["a"].hangs = True
        for _ in range(60):
            target.pulse.beats += 1
            await asyncio.sleep(0.5)
        assert world.state() == "up"
        await asyncio.sleep(20)
        assert world.state() == "down"


def test_quiet_is_counted_from_the_last_sign_of_life() -> None:
    quiet = quiet_step(Quiet(), moved=False, at_work=True, now_s=1.0)
    assert not quiet.suspects(30.9, STALL_S)
    assert quiet.suspects(31.0, STALL_S)
    assert quiet_step(quiet, moved=False, at_work=True, now_s=20.0) == quiet
    assert quiet_step(quiet, moved=True, at_work=True, now_s=20.0) == Quiet(20.0)
    assert quiet_step(quiet, moved=False, at_work=False, now_s=20.0) == Quiet(20.0)
    assert not Quiet().suspects(1e9, STALL_S)
