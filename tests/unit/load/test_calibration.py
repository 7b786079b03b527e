"""Which probes are sent, what is read from their streams, and engines that can't be measured."""

from __future__ import annotations

import pytest

from kvgate.errors import ConfigError
from kvgate.load import StreamEnd, StreamRecord
from kvgate.load.calibration import (
    OUTPUT_TOKENS,
    PREFILL_TOKENS_MAX,
    Room,
    plan,
    room_of,
    steps_of,
    undisturbed,
)
from kvgate.load.fit import Observation
from kvgate.sim import SimServer


def test_probes_stay_within_half_of_the_cache_and_the_window() -> None:
    room = Room("u", "m", max_model_len=4096, tokens=32_000)
    probing = plan(room, 16)
    assert all(batch * (prompt + OUTPUT_TOKENS) <= 16_000 for batch, prompt in probing.decodes)
    assert {batch for batch, _ in probing.decodes} == {1, 2, 4, 8, 16}
    assert max(probing.prefills) == PREFILL_TOKENS_MAX
    assert len(set(probing.prefills)) == 5


def test_a_small_engine_gets_small_probes() -> None:
    probing = plan(Room("u", "m", max_model_len=512, tokens=1600), 16)
    assert {batch for batch, _ in probing.decodes} == {1, 2, 4, 8}
    assert max(prompt for _, prompt in probing.decodes) <= 512 - OUTPUT_TOKENS


@pytest.mark.parametrize(("window", "tokens"), [(128, 100_000), (4096, 200)])
def test_too_small_to_be_measured(window: int, tokens: int) -> None:
    with pytest.raises(ConfigError, match="too small to be measured"):
        plan(Room("u", "m", window, tokens), 16)


def stream(*times_s: float) -> StreamRecord:
    return StreamRecord(0, "u", len(times_s), 0.0, list(times_s), StreamEnd.COMPLETED, times_s[-1])


def test_a_step_is_the_gap_while_all_streams_generate() -> None:
    early = stream(0.0, 9.0, *(10.0 + step for step in range(9)))
    late = stream(*(10.0 + step for step in range(9)), 30.0)
    found = list(steps_of([early, late], prompt_tokens=100))
    assert [seen.seconds for seen in found] == [1.0, 1.0]
    assert [seen.decoding for seen in found] == [2, 2]
    assert 200 < found[0].kv_tokens < found[1].kv_tokens < 220


def test_of_repeated_runs_the_shorter_steps_count() -> None:
    runs = [
        [Observation("a", 1, 1.0, 0, 0.3), Observation("b", 1, 2.0, 0, 0.1)],
        [Observation("a", 1, 1.0, 0, 0.2)],
    ]
    assert [seen.seconds for seen in undisturbed(runs)] == [0.2]
    assert [seen.seconds for seen in undisturbed(runs[:1])] == [0.3, 0.1]


def test_tokens_that_came_together_share_their_time() -> None:
    found = list(steps_of([stream(0.0, 2.0, 2.0, 4.0, 4.0)], prompt_tokens=1))
    assert {seen.seconds for seen in found} == {1.0, 2.0}


async def test_the_room_of_an_engine() -> None:
    async with SimServer(blocks=101, block_size=16, max_model_len=1024, profile="instant", model="m") as sim:
        assert await room_of(sim.url, None) == Room(sim.url, "m", 1024, 1600)
        with pytest.raises(ConfigError, match=r"--model: .* has no 'other'; it has m"):
            await room_of(sim.url, "other")


async def test_nobody_answers() -> None:
    with pytest.raises(ConfigError, match="gave no list of models"):
        await room_of("http://127.0.0.1:9", None)
