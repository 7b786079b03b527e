"""The line of a request with forecasts: what is written, charged, held, sent back and learned, in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import httpx
import pytest

from kvgate.admission.contract import Call, Ended
from kvgate.admission.line import Admission
from kvgate.admission.pricing import Pricer
from kvgate.config import Settings
from kvgate.forecasting import Forecaster
from kvgate.telemetry.record import RequestRecord
from kvgate_policies.forecast_fit import z_of
from kvgate_policies.forecast_lengths import LengthHistogram
from kvgate_policies.types import (
    ZERO_COST,
    Endpoint,
    EngineLimits,
    InferenceRequest,
    Outcome,
    PriorityClass,
    PromptSize,
    TenantPolicy,
    TenantRules,
)
from support.virtual_loop import run_virtual
from unit.admission.test_line import DONE, SHAPE, Client, Counter, House, soon, token, usage

FORECAST = TenantPolicy("t", max_tokens_default=None, reservation="forecast")
BATCH = TenantPolicy(
    "b", max_tokens_default=None, reservation="forecast", revocable=True, priority=PriorityClass.BATCH
)

SHORT = [max(1, round(random.Random(n).lognormvariate(4.1, 0.5))) for n in range(200)]
"""Lengths of about 70 tokens."""


def stream(tokens: int, step_s: float = 0.02, finish: str | None = "stop") -> list[Any]:
    """An answer that streams, a token each step."""
    steps: list[Any] = []
    for _ in range(tokens - 1):
        steps += [token(), step_s]
    return [*steps, token("z", finish), DONE]


class ForecastHouse(House):
    """A house whose requests set no limit, and are forecast."""

    def __init__(self, *script: Any, blocks: int = 1000) -> None:
        super().__init__(*script, blocks=blocks)
        self.forecaster = Forecaster(self.ledger, self.clock, watch=self.telemetry.forecasts)
        self.admission = Admission(
            engines=self.engines,
            ledger=self.ledger,
            pricer=Pricer(Counter(), self.engines, self.forecaster),
            upstream=httpx.MockTransport(self._answer),
            telemetry=self.telemetry,
            clock=self.clock,
            settings=Settings(backends=("http://e:1",)),
            forecaster=self.forecaster,
        )
        self.limits_written: list[int] = []

    def teach(self, tenant: str, lengths: Sequence[int]) -> None:
        for length in lengths:
            cohort = self.forecaster.lengths.start(tenant)
            self.forecaster.lengths.reach(tenant, cohort, 0, length)
            self.forecaster.lengths.end(tenant, cohort, length)
            self.forecaster.lengths.review()

    async def lengthen(self, tenant: str) -> None:
        """Answers of 600 tokens run, and it is noticed."""
        for _ in range(20):
            cohort = self.forecaster.lengths.start(tenant)
            self.forecaster.lengths.reach(tenant, cohort, 0, 600)
        await self.forecaster.beat()

    async def ask(
        self,
        name: str,
        tenant: TenantPolicy = FORECAST,
        *,
        stream: bool = True,
        prompt: int = 100,
        client: Client | None = None,
        **more: Any,
    ) -> Ended:
        request = InferenceRequest(
            Endpoint.CHAT, "m", stream=stream, prompts=(PromptSize(utf8_bytes=prompt),), max_tokens=None,
            max_tokens_field="max_tokens", **more,
        )  # fmt: skip

        def written(limit: int) -> bytes:
            self.limits_written.append(limit)
            return b"{}"

        call = Call(
            "POST", "/v1/chat/completions", [(b"x-request-id", name.encode())], b"{}", self.clock.monotonic(),
            tenant, tenant.priority, None, written,
        )  # fmt: skip
        record = self.records[name] = RequestRecord(name, tenant.name)
        return await self.admission.serve(request, call, client or Client(), record)

    @property
    def reserved(self) -> Any:
        return self.ledger.view().engines[0].reserved


def test_nothing_is_written_and_less_than_the_peak_is_held():
    async def main() -> None:
        house = ForecastHouse(stream(50))
        await house.open(t=TenantRules())
        house.teach("t", SHORT)
        async with house.forecaster.serving():
            task = asyncio.create_task(house.ask("r"))
            await soon()
            assert house.reserved.blocks == 256  # the window
            assert house.reserved.use_blocks < 20
            assert (await task).outcome is Outcome.SERVED
        assert house.limits_written == []
        record = house.records["r"]
        assert record.reservation == "forecast"
        assert record.output_tokens_expected == pytest.approx(70, rel=0.3)
        assert record.blocks_reserved is not None
        assert record.blocks_reserved < 20
        assert house.reserved == ZERO_COST

    run_virtual(main())


def test_the_policys_own_default_is_written_all_the_same():
    async def main() -> None:
        house = ForecastHouse(stream(5))
        await house.open()
        await house.ask("r", TenantPolicy("t", max_tokens_default=300, reservation="forecast"))
        await house.ask("r", TenantPolicy("t", max_tokens_default=2048, reservation="guaranteed"))
        assert house.limits_written == [300, 2048]

    run_virtual(main())


def test_service_and_budgets_are_charged_what_is_expected_and_corrected_at_the_end():
    async def main() -> None:
        house = ForecastHouse([5.0, token("a", "stop"), usage(100, 40), DONE])
        await house.open(t=TenantRules(tokens_per_minute=1000))
        house.teach("t", SHORT)
        task = asyncio.create_task(house.ask("r"))
        await soon()
        charged = house.use().service
        assert charged == 100 + 2 * house.records["r"].output_tokens_expected  # type: ignore[operator]
        assert charged < 400
        await task
        assert house.use().service == 100 + 2 * 40

    run_virtual(main())


@pytest.mark.parametrize("risk", [0.001, 0.01, 0.5])
def test_the_tenants_risk_is_what_the_ledger_is_asked_with(risk: float, monkeypatch: pytest.MonkeyPatch):
    async def main() -> None:
        house = ForecastHouse(stream(3))
        await house.open()
        asked = []
        reserve = house.ledger.reserve

        async def noting(ask: Any) -> Any:
            asked.append(ask.z)
            return await reserve(ask)

        monkeypatch.setattr(house.ledger, "reserve", noting)
        await house.ask("r", TenantPolicy("t", reservation="forecast", risk=risk))
        assert asked == [z_of(risk)]

    run_virtual(main())


def test_who_waits_keeps_the_price_on_a_shape_that_joined_when_lengths_change():
    async def main() -> None:
        house = ForecastHouse(stream(50), blocks=256)
        await house.open()
        house.teach("t", SHORT)
        first = asyncio.create_task(
            house.ask("first", TenantPolicy("g", max_tokens_default=3996, reservation="guaranteed"))
        )
        await soon()
        second = asyncio.create_task(house.ask("second"))
        await soon()
        assert house.ledger.view().queued == 1
        wide = replace(SHAPE, block_size=2 * SHAPE.block_size)
        house.engines.shapes = lambda: frozenset({SHAPE, wide})  # type: ignore[method-assign]
        await house.admission.shapes_changed()
        await house.admission.lengths_changed(frozenset({"t"}))
        house.engines.ids |= {"http://wide"}
        await house.ledger.observe(EngineLimits("http://wide", wide, 1000, 64, 100_000))
        await soon()
        assert house.records["second"].engine_id == "http://wide"
        await asyncio.gather(first, second)

    run_virtual(main())


def test_more_run_at_once_than_peaks_would_allow_and_none_of_it_stays():
    """An engine that holds three windows, and answers that are a fraction of one."""

    async def main() -> None:
        house = ForecastHouse(stream(60), blocks=800)
        await house.open(t=TenantRules())
        house.teach("t", SHORT)
        most = 0
        async with house.forecaster.serving(), asyncio.TaskGroup() as tasks:
            for number in range(60):
                tasks.create_task(house.ask(f"r{number}"))
            await soon()
            for _ in range(40):
                most = max(most, house.ledger.view().engines[0].reservations)
                await asyncio.sleep(0.1)
        assert most > 3 * 5
        assert house.reserved == ZERO_COST
        assert house.ledger.view().queued == 0

    run_virtual(main())


def test_a_client_that_leaves_is_learned_from_as_far_as_it_came():
    async def main() -> None:
        house = ForecastHouse([*stream(40)[:-2], 60.0, DONE])
        await house.open()
        async with house.forecaster.serving():
            task = asyncio.create_task(house.ask("r"))
            await asyncio.sleep(30)
            task.cancel()
            await asyncio.wait([task])
        statement = house.forecaster.lengths.statements()["t"]
        trials, found = _counted(statement)
        assert trials == 39  # tokens that were not the last
        assert found == 0
        assert house.reserved == ZERO_COST

    run_virtual(main())


@pytest.mark.parametrize(("finish", "ends"), [("stop", 1), ("tool_calls", 1), ("length", 0)])
def test_only_what_ended_by_itself_is_an_end(finish: str, ends: int):
    async def main() -> None:
        house = ForecastHouse(stream(30, finish=finish))
        await house.open()
        await house.ask("r")
        statement = house.forecaster.lengths.statements()["t"]
        assert _counted(statement) == (30, ends)

    run_virtual(main())


def test_a_prompt_that_is_longer_than_counted_is_held_with_what_it_will_grow_to():
    async def main() -> None:
        house = ForecastHouse([token(), usage(900, 1), 5.0, token("z", "stop"), DONE])
        await house.open()
        house.teach("t", SHORT)
        task = asyncio.create_task(house.ask("r"))
        await asyncio.sleep(1.0)
        assert house.reserved.expected is not None
        assert house.reserved.use_blocks >= 900 // 16
        await task
        assert house.reserved == ZERO_COST

    run_virtual(main())


def test_several_sequences_that_could_fill_more_than_an_engine_are_let_in():
    async def main() -> None:
        house = ForecastHouse(stream(5), blocks=300)
        await house.open()
        task = asyncio.create_task(house.ask("r", n=4))
        await soon()
        assert house.reserved.blocks == 300  # the engine: four windows are 1024
        assert 0 < house.reserved.use_blocks < 300
        assert (await task).outcome is Outcome.SERVED
        assert house.limits_written == []
        refused = await house.ask("r", replace(FORECAST, reservation="guaranteed"), n=4)
        assert refused.outcome is Outcome.REJECTED_NEVER_FITS
        assert refused.answer is not None
        assert "needs 1024 KV blocks" in refused.answer.message
        assert house.reserved == ZERO_COST

    run_virtual(main())


def test_a_tenant_whose_lengths_changed_reserves_at_most_what_it_may_have():
    async def main() -> None:
        house = ForecastHouse(stream(5))
        await house.open(t=TenantRules(limit=0.2))
        house.teach("t", SHORT)
        await house.lengthen("t")
        assert house.forecaster.lengths.guarded("t")
        task = asyncio.create_task(house.ask("r"))
        await soon()
        assert (house.reserved.blocks, house.reserved.expected) == (200, None)  # not the window, 256
        assert (await task).outcome is Outcome.SERVED

    run_virtual(main())


def test_what_is_expected_to_be_more_than_a_tenant_may_have_takes_all_that_it_may_have():
    """Not refused for what its answer could come to, which is learned: nobody knows it before."""

    async def main() -> None:
        house = ForecastHouse(stream(5))
        await house.open(t=TenantRules(limit=0.01))
        task = asyncio.create_task(house.ask("r"))
        await soon()
        assert (house.reserved.blocks, house.reserved.use_blocks) == (10, 10)
        assert (await task).outcome is Outcome.SERVED
        assert house.reserved == ZERO_COST

    run_virtual(main())


def test_what_its_prompt_alone_takes_is_refused_where_a_tenant_may_not_have_it():
    async def main() -> None:
        house = ForecastHouse(stream(5))
        await house.open(t=TenantRules(limit=0.01))
        refused = await house.ask("r", prompt=400)
        assert refused.outcome is Outcome.REJECTED_NEVER_FITS
        assert refused.answer is not None
        assert "the policy gives you at most 10" in refused.answer.message

    run_virtual(main())


def test_those_that_wait_are_priced_anew_when_lengths_change():
    async def main() -> None:
        house = ForecastHouse([60.0, token("z", "stop"), DONE], blocks=270)
        await house.open()
        house.teach("t", SHORT)
        first = asyncio.create_task(
            house.ask("first", TenantPolicy("other", max_tokens_default=4096, reservation="guaranteed"))
        )
        await soon()
        waiting = asyncio.create_task(house.ask("waiting", prompt=300))
        await soon()
        assert house.ledger.view().queued == 1
        repriced: list[tuple[str, Any]] = []
        reprice = house.ledger.reprice

        async def noting(request_id: str, costs: Any) -> None:
            repriced.append((request_id, costs[SHAPE]))
            await reprice(request_id, costs)

        house.ledger.reprice = noting  # type: ignore[method-assign]
        await house.lengthen("t")
        assert house.forecaster.lengths.guarded("t")
        assert [cost.expected for _, cost in repriced] == [None]
        first.cancel()
        waiting.cancel()
        await asyncio.wait([first, waiting])

    run_virtual(main())


@pytest.mark.parametrize("as_stream", [True, False])
def test_a_batch_request_that_has_shown_nothing_is_sent_back_to_its_old_place(as_stream: bool):
    """Others outgrow their forecast; the batch request is stopped at once and served in the end, all of it once."""

    async def main() -> None:
        house = ForecastHouse([900.0, token("z", "stop"), DONE], stream(4000), stream(20), blocks=260)
        await house.open(t=TenantRules(), b=TenantRules())
        house.teach("t", SHORT)
        house.teach("b", SHORT)
        client = Client()
        async with house.forecaster.serving():
            batch = asyncio.create_task(
                house.ask("batch", BATCH, stream=as_stream, client=client, prompt=1600)
            )
            await soon()
            growing = asyncio.create_task(house.ask("growing", prompt=100))
            async with asyncio.timeout(100):
                while not house.records["batch"].requeues:
                    await asyncio.sleep(0.25)
            await asyncio.sleep(BATCH.queue_wait_s_max - 1)  # running was no waiting
            assert house.clock.monotonic() > BATCH.queue_wait_s_max + 5
            assert not batch.done()
            assert house.use("b").reservations == 0
            assert client.body == b""
            waited_at = house.clock.monotonic()
            growing.cancel()
            await asyncio.wait([growing])
            ended = await batch
            assert house.clock.monotonic() - waited_at < 10
        assert ended.outcome is Outcome.SERVED
        assert client.body.endswith(DONE)
        assert house.reserved == ZERO_COST
        assert _count(house, "kvgate_forecast_revocations_total") == 1
        assert _count(house, "kvgate_upstream_requeues_total") == 1

    run_virtual(main())


def _counted(statement: Sequence[float]) -> tuple[float, float]:
    """Trials and ends that a statement of one tenant has."""
    lengths = LengthHistogram.from_numbers(statement[1:])
    return sum(lengths.trials), sum(lengths.ends)


def _count(house: House, name: str) -> float:
    return sum(
        sample.value
        for family in house.telemetry.registry.collect()
        for sample in family.samples
        if sample.name == name
    )


def test_once_its_client_has_seen_something_it_stays():
    async def main() -> None:
        house = ForecastHouse([token(), 900.0, token("z", "stop"), DONE], stream(4000), blocks=260)
        await house.open()
        house.teach("t", SHORT)
        async with house.forecaster.serving():
            batch = asyncio.create_task(house.ask("batch", BATCH, prompt=1600))
            await soon()
            growing = asyncio.create_task(house.ask("growing", prompt=100))
            await asyncio.sleep(60)
            assert house.records["batch"].requeues == 0
            for task in (batch, growing):
                task.cancel()
            await asyncio.wait([batch, growing])
        assert house.reserved == ZERO_COST

    run_virtual(main())
