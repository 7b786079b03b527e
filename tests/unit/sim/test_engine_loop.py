"""The step loop in virtual time: when tokens come, and that no job is left waiting."""

from __future__ import annotations

import asyncio

import pytest

from kvgate.sim.engine import SimEngine
from kvgate.sim.generation import Choice
from kvgate.sim.jobs import Fate, Job, Progress
from kvgate_policies.engine_model import EngineModel, StepProfile
from support.virtual_loop import LoopClock, run_virtual

STEP_S = 0.025


def make_engine(**changes) -> SimEngine:
    sizes = {"num_gpu_blocks": 121, "block_size": 32, "max_model_len": 2048, "max_num_seqs": 256}
    settings = {**sizes, "profile": StepProfile("p", STEP_S), **changes}
    return SimEngine(lambda: EngineModel(**settings), LoopClock())


def choice(prompt: int, output: int, stop_after: int | None = None) -> Choice:
    return Choice((9,) * prompt, mark=1, max_tokens=output, stop_after=stop_after)


def submit(engine: SimEngine, choices: list[Choice]) -> Job:
    job = engine.submit(choices)
    assert job is not None
    return job


async def read_all(job: Job) -> list[tuple[float, list[Progress]]]:
    """All news with the time it came, until every sequence ended or the fate is sealed."""
    loop = asyncio.get_running_loop()
    told: list[tuple[float, list[Progress]]] = []
    while True:
        news = await job.news()
        told.append((loop.time(), news))
        if (job.fate is not Fate.RUNNING and not news) or not job.unfinished:
            return told


def with_engine(main, **changes):
    async def run():
        engine = make_engine(**changes)
        steps = asyncio.create_task(engine.run())
        try:
            return await asyncio.wait_for(main(engine), 3600)
        finally:
            steps.cancel()

    return run_virtual(run())


def test_a_token_comes_at_the_end_of_every_step():
    async def main(engine: SimEngine):
        return await read_all(submit(engine, [choice(10, 4)]))

    told = with_engine(main)
    assert [time for time, _ in told] == pytest.approx([STEP_S * k for k in (1, 2, 3, 4)])
    assert [news for _, news in told] == [
        [Progress(0, 1)],
        [Progress(0, 1)],
        [Progress(0, 1)],
        [Progress(0, 1, "length")],
    ]


def test_a_slow_reader_finds_several_tokens_at_once():
    async def main(engine: SimEngine):
        job = submit(engine, [choice(10, 8, stop_after=5)])
        await asyncio.sleep(1)
        return await job.news()

    assert with_engine(main) == [Progress(0, 5, "stop")]


def test_an_idle_engine_steps_again_when_work_comes():
    async def main(engine: SimEngine):
        await read_all(submit(engine, [choice(10, 2)]))
        await asyncio.sleep(100)
        begin = asyncio.get_running_loop().time()
        (first, _), _ = await read_all(submit(engine, [choice(10, 2)]))
        return first - begin, engine.model.counters.steps

    waited, steps = with_engine(main)
    assert waited == pytest.approx(STEP_S)
    assert steps == 4


def test_a_released_job_leaves_nothing_behind():
    async def main(engine: SimEngine):
        job = submit(engine, [choice(100, 500), choice(100, 500)])
        await asyncio.sleep(STEP_S * 5.5)
        held = engine.model.kv_used
        engine.release(job)
        return held, engine.model.kv_used, engine.model.has_work, engine.jobs, engine.stats.ended

    held, left, work, jobs, ended = with_engine(main)
    assert (held, left, work, jobs) == (5, 0, False, 0)  # three shared blocks and one more each
    assert sum(ended.values()) == 0


def test_a_busy_engine_takes_all_of_a_job_or_nothing():
    async def main(engine: SimEngine):
        first = engine.submit([choice(10, 5)] * 2)
        return first is not None, engine.submit([choice(10, 5)] * 2), engine.model.waiting

    assert with_engine(main, max_num_queued_reqs=3) == (True, None, 2)


def test_a_stop_aborts_what_runs_and_what_comes_later():
    async def main(engine: SimEngine):
        running = submit(engine, [choice(10, 500)])
        await asyncio.sleep(STEP_S * 3.5)
        engine.stop()
        told = await read_all(running)
        late = submit(engine, [choice(10, 5)])
        return (
            sum(news.tokens for _, each in told for news in each),
            running.fate,
            late.fate,
            engine.stats.ended,
        )

    tokens, running, late, ended = with_engine(main)
    assert (tokens, running, late) == (3, Fate.ABORTED, Fate.ABORTED)
    assert ended["abort"] == 1


def test_a_restart_cuts_every_job_and_starts_anew():
    async def main(engine: SimEngine):
        job = submit(engine, [choice(100, 500)])
        await asyncio.sleep(STEP_S * 3.5)
        before = engine.stats.started_at
        engine.restart()
        fate = job.fate
        engine.release(job)
        again = await read_all(submit(engine, [choice(100, 2)]))
        counters = engine.model.counters
        return (
            fate,
            counters.prefix_hits,
            counters.generation_tokens,
            engine.stats.started_at > before,
            len(again),
        )

    assert with_engine(main) == (Fate.CUT, 0, 2, True, 2)


def test_a_frozen_engine_takes_requests_and_computes_nothing():
    async def main(engine: SimEngine):
        engine.freeze()
        job = submit(engine, [choice(10, 2)])
        await asyncio.sleep(100)
        frozen = engine.model.counters.steps
        engine.thaw()
        await read_all(job)
        return frozen, engine.model.counters.steps

    assert with_engine(main) == (0, 2)


def test_the_times_are_measured_as_vllm_measures_them():
    async def main(engine: SimEngine):
        await read_all(submit(engine, [choice(10, 5)]))
        return engine.stats

    stats = with_engine(main)
    assert (sum(stats.ttft.counts), stats.ttft.sum) == (1, pytest.approx(STEP_S))
    assert (sum(stats.itl.counts), stats.itl.sum) == (4, pytest.approx(4 * STEP_S))
    assert (sum(stats.e2e.counts), stats.e2e.sum) == (1, pytest.approx(5 * STEP_S))
    assert (sum(stats.iteration_tokens.counts), stats.iteration_tokens.sum) == (5, 15)
    assert stats.ended["length"] == 1


def test_the_log_has_every_step():
    async def main(engine: SimEngine):
        await read_all(submit(engine, [choice(10, 5)]))
        return list(engine.log)

    log = with_engine(main)
    assert [len(step.tokens) for step in log] == [1] * 5
    assert [step.kv_used for step in log] == [1] * 5


def test_only_the_first_fate_counts():
    job = Job(1)
    job.end(Fate.LEFT)
    job.end(Fate.CUT)
    assert job.fate is Fate.LEFT
