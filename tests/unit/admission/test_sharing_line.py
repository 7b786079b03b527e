"""Requests that begin alike, along the whole line: a real ledger, and a model of vLLM's scheduler that answers."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections.abc import AsyncIterator, Awaitable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from kvgate.admission.contract import Call
from kvgate.admission.line import Admission
from kvgate.admission.pricing import Pricer
from kvgate.config import Settings
from kvgate.forecasting import Forecaster
from kvgate.ledger.memory import MemoryLedger
from kvgate.telemetry.metrics import Telemetry
from kvgate.telemetry.record import RequestRecord
from kvgate_policies.engine_model import EngineModel, SimRequest
from kvgate_policies.occupancy import SCALE
from kvgate_policies.types import (
    ZERO_COST,
    Endpoint,
    EngineLimits,
    EngineShape,
    InferenceRequest,
    Outcome,
    PriorityClass,
    PromptSize,
    TenantPolicy,
)
from support.virtual_loop import LoopClock, run_virtual
from unit.admission.test_line import DONE, Client, Counter, OneEngine, token

BLOCK, STEP_S = 4, 0.02
SHAPE = EngineShape(BLOCK, 480, prefix_caching=True)
TENANT = TenantPolicy("t", queue_wait_s_max=500.0, queue_depth_max=1000)
FORECAST = replace(TENANT, reservation="forecast")


class Engines(OneEngine):
    def shapes(self) -> frozenset[EngineShape]:
        return frozenset({SHAPE})


class Stream(httpx.AsyncByteStream):
    """One answer; closing it early is how the engine learns to stop."""

    def __init__(self, house: House, name: str) -> None:
        self.house, self.name = house, name
        self.chunks = house.answers[name] = asyncio.Queue[bytes]()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (chunk := await self.chunks.get()) != DONE:
            yield chunk
        yield DONE

    async def aclose(self) -> None:
        del self.house.answers[self.name]
        self.house.engine.abort(self.name)


class House:
    """`run` lets the engine work, and looks at each step whether what it holds is reserved."""

    def __init__(self, *, blocks: int, sharing: bool = True, budget: int = 2048) -> None:
        self.engine = EngineModel(
            num_gpu_blocks=blocks + 1, block_size=BLOCK, max_model_len=SHAPE.max_model_len, max_num_seqs=256,
            max_num_batched_tokens=budget,
        )  # fmt: skip
        self.clock = LoopClock()
        self.ledger = MemoryLedger(self.clock)
        self.limits = EngineLimits("http://e:1", SHAPE, blocks, 256, 10**6)
        self.answers: dict[str, asyncio.Queue[bytes]] = {}
        self.names = itertools.count()
        self.records: list[RequestRecord] = []
        self.most = 0
        engines = Engines()
        self.forecaster = Forecaster(self.ledger, self.clock)
        self.admission = Admission(
            engines=engines,
            ledger=self.ledger,
            pricer=Pricer(Counter(), engines, self.forecaster),
            upstream=httpx.MockTransport(self._answer),
            telemetry=Telemetry("p", CollectorRegistry()),
            clock=self.clock,
            settings=Settings(backends=("http://e:1",), prefix_sharing=sharing),
            forecaster=self.forecaster,
        )

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        sent, name = json.loads(request.content), f"s{next(self.names)}"
        self.engine.add(
            SimRequest(name, len(sent["prompt"]), sent["max_tokens"], token_ids=tuple(sent["prompt"]))
        )
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=Stream(self, name))

    async def run(self) -> None:
        async with self.forecaster.serving():
            while True:
                await asyncio.sleep(STEP_S)
                result = self.engine.step()
                assert result.preempted == ()
                self.most = max(self.most, result.running)
                [use] = self.ledger.view().engines
                assert use.reserved.occupancy.means[0] >= result.kv_used * SCALE
                finished = {name for name, _ in result.finished}
                for name in result.tokens:
                    self.answers[name].put_nowait(token(finish="length" if name in finished else None))
                    if name in finished:
                        self.answers[name].put_nowait(DONE)

    async def ask(self, ids: tuple[int, ...], output: int, tenant: TenantPolicy = TENANT) -> None:
        body = json.dumps({"prompt": ids, "max_tokens": output, "stream": True}).encode()
        size = PromptSize(tokens=len(ids), utf8_bytes=len(ids))
        request = InferenceRequest(
            Endpoint.COMPLETIONS, "m", stream=True, prompts=(size,), max_tokens=output,
            max_tokens_field="max_tokens", ignore_eos=True,
        )  # fmt: skip
        call = Call(
            "POST", "/v1/completions", [], body, self.clock.monotonic(), tenant, PriorityClass.STANDARD, None,
            lambda _: body,
        )  # fmt: skip
        record = RequestRecord("r", "t")
        self.records.append(record)
        ended = await self.admission.serve(request, call, Client(), record)
        assert ended.outcome is Outcome.SERVED

    def nothing_is_left(self) -> None:
        [use] = self.ledger.view().engines
        assert use.reserved == ZERO_COST
        assert (self.ledger.view().queued, self.engine.kv_used, self.answers) == (0, 0, {})
        assert self.admission.shared_blocks("http://e:1") == 0
        assert self.admission._sharing._at == {}


async def served(house: House, asked: Awaitable[Any]) -> None:
    """Let the engine work until all is answered."""
    await house.ledger.observe(house.limits)
    engine, done = asyncio.create_task(house.run()), asyncio.ensure_future(asked)
    await asyncio.wait([engine, done], return_when=asyncio.FIRST_COMPLETED)
    if engine.done():
        engine.result()
    await done
    engine.cancel()
    with suppress(asyncio.CancelledError):
        await engine
    house.nothing_is_left()


def alike(count: int, blocks: int) -> list[tuple[int, ...]]:
    """Prompts that have so many blocks in common, and a block alone."""
    rng = random.Random(1)
    beginning = tuple(rng.randrange(1000) for _ in range(blocks * BLOCK))
    return [(*beginning, *(rng.randrange(1000) for _ in range(BLOCK))) for _ in range(count)]


@pytest.mark.parametrize(
    ("sharing", "blocks", "most"), [(False, 5, 12), (True, 5, 23), (False, 60, 1), (True, 60, 12)]
)
def test_as_many_run_as_the_engine_holds(sharing: bool, blocks: int, most: int) -> None:
    """Five blocks alone and `blocks` together in 120: `blocks + 5 * n`, where a blind ledger counts `n * (blocks + 5)`."""

    async def main() -> None:
        house = House(blocks=120, sharing=sharing)
        await served(house, asyncio.gather(*(house.ask(ids, 17) for ids in alike(48, blocks))))
        assert house.most == most

    run_virtual(main())


def test_forecasts_share_too() -> None:
    async def most(sharing: bool) -> int:
        house = House(blocks=120, sharing=sharing)
        await served(house, asyncio.gather(*(house.ask(ids, 17, FORECAST) for ids in alike(48, 5))))
        return house.most

    assert run_virtual(most(True)) >= 1.5 * run_virtual(most(False))


def test_one_that_comes_later_is_priced_by_what_runs_already() -> None:
    """65 blocks each, 60 together."""

    async def main() -> None:
        house = House(blocks=120)

        async def later(ids: tuple[int, ...], delay_s: float) -> None:
            await asyncio.sleep(delay_s)
            await house.ask(ids, 17)

        first, second = alike(2, 60)
        await served(house, asyncio.gather(later(first, 0.0), later(second, 5 * STEP_S)))
        assert house.most == 2
        assert [record.requeues for record in house.records] == [0, 0]

    run_virtual(main())


def test_one_whose_price_rested_on_others_that_have_ended_is_queued_again() -> None:
    """111 blocks each, 60 together: the second does not fit beside the first even so, and is granted at its end."""

    async def main() -> None:
        house = House(blocks=120)
        await served(house, asyncio.gather(*(house.ask(ids, 200) for ids in alike(2, 60))))
        assert [record.requeues for record in house.records] == [0, 1]
        assert house.most == 1

    run_virtual(main())


@pytest.mark.parametrize("reservation", ["guaranteed", "forecast"])
@pytest.mark.parametrize("seed", range(12))
def test_whatever_comes_and_goes(seed: int, reservation: Any) -> None:
    """Clients come in crowds, and some leave, queued or in the middle; nobody is preempted, and nothing is left."""
    rng, tenant = random.Random(seed), replace(TENANT, reservation=reservation)
    beginnings = [tuple(rng.randrange(1000) for _ in range(rng.randint(4, 200))) for _ in range(3)]

    async def client(house: House) -> None:
        await asyncio.sleep(rng.choice([0.0, 1.0, rng.random() * 3]))
        begins = rng.choice(beginnings)[: rng.choice([40, 200])]
        ids = (*begins, *(rng.randrange(1000) for _ in range(rng.randint(1, 30))))
        with suppress(TimeoutError):
            async with asyncio.timeout(rng.choice([0.5, 3.0, 1000.0, 1000.0])):
                await house.ask(ids, rng.randint(1, 60), tenant)

    async def main() -> None:
        house = House(blocks=120, budget=rng.choice([16, 2048]))
        await served(house, asyncio.gather(*(client(house) for _ in range(60))))

    run_virtual(main())
