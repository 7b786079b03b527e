"""What a pool learns from its requests, and what it lets its ledger know, in virtual time and with a real ledger."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from kvgate.admission.holding import Holding
from kvgate.forecasting import Forecaster, Running
from kvgate.forecasting import forecaster as module
from kvgate.forecasting.pace import SLICE
from kvgate.forecasting.rates import Rates
from kvgate.ledger.base import Ask, Grant
from kvgate.ledger.memory import MemoryLedger
from kvgate.sse import Finish
from kvgate_policies.forecast import POOL
from kvgate_policies.forecast_lengths import NUMBERS, LengthHistogram
from kvgate_policies.forecast_occupancy import LAG_TOKENS, blocks_of_request
from kvgate_policies.forecast_request import Outlook, request_occupancy
from kvgate_policies.kv_cost import price
from kvgate_policies.occupancy import GRID, SCALE
from kvgate_policies.types import (
    ZERO_COST,
    EngineLimits,
    EngineShape,
    KVCost,
    PriorityClass,
    TenantPolicy,
)
from support.virtual_loop import LoopClock, run_virtual

SHAPE = EngineShape(block_size=16, max_model_len=8192)
FORECAST = TenantPolicy("t", max_tokens_default=None, reservation="forecast")
GUARANTEED = TenantPolicy("t", reservation="guaranteed")
SHORT = [max(1, round(random.Random(n).lognormvariate(4.1, 0.5))) for n in range(200)]
"""Lengths of about 70 tokens."""


@dataclass
class Meter:
    tokens_seen: int = 0
    completion_tokens: int | None = None


@dataclass(frozen=True)
class Status:
    """Of an engine whose streams are all there is to see."""

    id: str
    gauges: None = None
    gauges_age_s: None = None


class Watch:
    def __init__(self) -> None:
        self.calibration: dict[tuple[float, bool], int] = {}
        self.changes: list[tuple[str, str]] = []
        self.guarded_now: list[int] = []
        self.revocations = 0

    def calibrated(self, quantile: float, *, exceeded: bool) -> None:
        self.calibration[quantile, exceeded] = self.calibration.get((quantile, exceeded), 0) + 1

    def lengths_changed(self, tenant: str, change: str) -> None:
        self.changes.append((tenant, change))

    def guarded(self, tenants: int) -> None:
        self.guarded_now.append(tenants)

    def revoked(self) -> None:
        self.revocations += 1


class Counting(MemoryLedger):
    """Notes what it is told of many at once."""

    def __init__(self) -> None:
        super().__init__(LoopClock())
        self.told: list[dict[str, KVCost]] = []

    async def renew_many(self, costs: Mapping[str, KVCost]) -> None:
        self.told.append(dict(costs))
        await super().renew_many(costs)


@dataclass
class House:
    """One engine, one forecaster, and requests that are granted, run and end by hand."""

    blocks: int = 100_000
    watch: Watch = field(default_factory=Watch)
    ledger: Counting = field(default_factory=Counting)

    def __post_init__(self) -> None:
        self.waiting = 0
        self.forecaster = Forecaster(
            self.ledger,
            LoopClock(),
            rates=Rates(lambda: (Status("e"),)),
            watch=self.watch,
            waiting=lambda: self.waiting,
        )
        self.asked = 0

    async def open(self) -> None:
        await self.ledger.observe(EngineLimits("e", SHAPE, self.blocks, 100_000, 10**9))

    async def begin(
        self,
        tenant: TenantPolicy = FORECAST,
        outlook: Outlook | None = None,
        *,
        priority: PriorityClass = PriorityClass.STANDARD,
        stream: bool = True,
        revocations: int = 0,
    ) -> Request:
        outlook = outlook or Outlook((100,), 8000)
        peak = price(SHAPE, outlook.prompts, outlook.max_tokens, outlook.n)
        cost = self.forecaster.cost(tenant, outlook, SHAPE, peak)
        self.asked += 1
        ticket = await self.ledger.reserve(
            Ask(f"r{self.asked}", tenant.name, {SHAPE: cost}, 1000, priority=priority, force=True)
        )
        grant = await ticket.granted()  # type: ignore[union-attr]
        assert isinstance(grant, Grant)
        held = Holding(self.ledger, grant, 0.3)
        run = self.forecaster.running(held, grant, outlook, tenant, revocations)
        run.__enter__()
        request = Request(held, run)
        if stream:
            run.follows(request.meter)
        return request

    async def answer(
        self, length: int, finish: Finish | None = Finish.STOP, tenant: TenantPolicy = FORECAST
    ) -> None:
        """A whole request, of which nothing is seen but its end."""
        request = await self.begin(tenant, stream=False)
        await request.end(finish, length)

    async def teach(self, *lengths: int, tenant: TenantPolicy = FORECAST) -> None:
        for length in lengths:
            await self.answer(length, tenant=tenant)
            self.forecaster.lengths.review()


@dataclass
class Request:
    held: Holding
    run: Running
    meter: Meter = field(default_factory=Meter)

    async def end(self, finish: Finish | None = Finish.STOP, tokens: int | None = None) -> None:
        """Without a finish it was broken off."""
        if finish is not None:
            self.run.ended(finish, self.meter.tokens_seen if tokens is None else tokens)
        self.run.__exit__(None, None, None)
        await self.held.done()


def counted(statement: list[float]) -> LengthHistogram:
    return LengthHistogram.from_numbers(statement[1:])


# Prices.


def test_a_request_is_priced_by_what_was_learned_of_its_tenant():
    async def main() -> None:
        house = House()
        await house.open()
        outlook, peak = Outlook((100,), 8000), price(SHAPE, (100,), 8000, 1)
        before = house.forecaster.cost(FORECAST, outlook, SHAPE, peak)
        await house.teach(*SHORT)
        after = house.forecaster.cost(FORECAST, outlook, SHAPE, peak)
        assert after.blocks == before.blocks == peak.blocks
        assert after.use_blocks < before.use_blocks < peak.blocks
        assert after.expected == request_occupancy(house.forecaster.lengths.curve("t"), outlook, SHAPE)
        mean = sum(SHORT) / len(SHORT)
        assert house.forecaster.expected_output(FORECAST, outlook) == pytest.approx(mean, rel=0.2)

    run_virtual(main())


def test_a_guaranteed_tenant_reserves_its_peak_and_teaches_all_the_same():
    async def main() -> None:
        house = House()
        await house.open()
        await house.teach(*SHORT, tenant=GUARANTEED)
        peak = price(SHAPE, (100,), 2048, 1)
        assert house.forecaster.cost(GUARANTEED, Outlook((100,), 2048), SHAPE, peak) == peak
        assert house.forecaster.expected_output(GUARANTEED, Outlook((100,), 2048)) is None
        assert house.forecaster.lengths.curve("t").alive(0, 300) < 0.05
        assert house.watch.calibration

    run_virtual(main())


# What is learned.


def test_a_client_that_leaves_is_counted_as_far_as_it_came():
    async def main() -> None:
        house = House()
        await house.open()
        await house.teach(*SHORT)
        sure = house.forecaster.lengths.curve("t").alive(0, 200)
        for _ in range(4):
            request = await house.begin()
            request.meter.tokens_seen = 150
            await request.end(None)
        house.forecaster.lengths.review()
        statement = house.forecaster.lengths.statements()["t"]
        assert sum(counted(statement).ends) == len(SHORT)
        assert house.forecaster.lengths.curve("t").alive(0, 200) > sure

    run_virtual(main())


def test_an_answer_cut_at_its_limit_is_no_end():
    async def main() -> None:
        house = House()
        await house.open()
        for _ in range(50):
            await house.answer(500, Finish.LIMIT)
        house.forecaster.lengths.review()
        assert house.forecaster.lengths.curve("t").alive(0, 499) > 0.9

    run_virtual(main())


@pytest.mark.parametrize(
    ("outlook", "length"),
    [
        (Outlook((100,), 8000, n=2), 800),
        (Outlook((100, 100), 8000), 800),
        (Outlook((100,), 400, ignore_eos=True), 400),
    ],
)
def test_what_says_nothing_about_others_teaches_nothing(outlook: Outlook, length: int):
    async def main() -> None:
        house = House()
        await house.open()
        request = await house.begin(outlook=outlook)
        request.meter.tokens_seen = length
        await house.forecaster.beat()
        await request.end()
        assert sum(house.forecaster.lengths.statements()[POOL]) == 0

    run_virtual(main())


def test_tokens_that_cannot_be_the_last_are_no_trials():
    async def main() -> None:
        house = House()
        await house.open()
        for _ in range(20):
            request = await house.begin(outlook=Outlook((100,), 8000, min_tokens=101))
            request.meter.tokens_seen = 60
            await house.forecaster.beat()
            request.meter.tokens_seen = 150
            await request.end()
        statement = house.forecaster.lengths.statements()["t"]
        assert statement[1] == 20  # sequences
        assert sum(counted(statement).trials) == 20 * 50

    run_virtual(main())


def test_what_a_stream_brings_in_one_event_is_learned_from_those_that_say_it():
    """Three tokens an event: half of the streams have a usage, the others are taken to be alike."""

    async def main() -> None:
        house = House()
        await house.open()
        for number in range(200):
            request = await house.begin()
            request.meter.tokens_seen = 50
            if number % 2:
                request.meter.completion_tokens = 150
            await request.end(tokens=150 if number % 2 else 50)
        request = await house.begin()
        request.meter.tokens_seen = 40
        await house.forecaster.beat()
        await asyncio.sleep(0.25)
        request.meter.tokens_seen = 60
        await house.forecaster.beat()
        assert request.run.reached == pytest.approx(180, abs=4)
        assert request.run.told == 40  # the last of those that came since may have been its last
        await request.end(tokens=60)
        house.forecaster.lengths.review()
        assert house.forecaster.lengths.curve("t").quantile(0.5) == pytest.approx(150, rel=0.2)

    run_virtual(main())


def test_every_quantile_is_exceeded_as_often_as_it_should_be():
    async def main() -> None:
        house = House()
        await house.open()
        rng = random.Random(6)
        lengths = [max(1, round(rng.lognormvariate(5.0, 0.7))) for _ in range(2500)]
        await house.teach(*lengths[:1000])
        house.watch.calibration.clear()
        await house.teach(*lengths[1000:])
        seen = house.watch.calibration
        for quantile, share in ((0.5, 0.5), (0.9, 0.1), (0.99, 0.01)):
            over, under = seen.get((quantile, True), 0), seen.get((quantile, False), 0)
            assert over + under == 1500
            assert over / 1500 == pytest.approx(share, abs=0.04 if quantile == 0.5 else 0.02)

    run_virtual(main())


# Beats.


def test_a_vector_is_made_anew_before_it_is_outgrown():
    """And for no more than it may grow by: seven tokens in a quarter of a second."""

    async def main() -> None:
        house = House()
        await house.open()
        request = await house.begin()
        first = house.ledger.view().engines[0].reserved
        await house.forecaster.beat()
        assert house.ledger.told == []  # nothing came
        for beat in range(1, 21):
            await asyncio.sleep(0.25)
            assert request.run.covered >= 7 * beat
            request.meter.tokens_seen = 7 * beat
            await house.forecaster.beat()
        lag = request.run.covered - request.run.reached
        assert 7 < lag < LAG_TOKENS
        now = house.ledger.view().engines[0].reserved
        assert now != first
        curve = house.forecaster.lengths.curve("t")
        assert now.expected == request_occupancy(
            curve, Outlook((100,), 8000), SHAPE, request.run.vector_at, lag_tokens=lag
        )
        told = len(house.ledger.told)
        await house.forecaster.beat()
        assert len(house.ledger.told) == told  # nothing came
        await request.end()
        assert house.ledger.view().engines[0].reserved == ZERO_COST

    run_virtual(main())


def test_looks_follow_each_other_faster_while_requests_wait():
    """In the time of four beats there are up to twenty then, and what a vector covers shrinks with the pause."""

    async def main() -> None:
        house = House()
        await house.open()
        request = await house.begin()
        covers: dict[int, int] = {}
        told: dict[int, int] = {}
        async with house.forecaster.serving():
            for number in range(4):  # quiet and busy in turn
                house.waiting = 5 * (number % 2)
                await asyncio.sleep(1)
                before = len(house.ledger.told)
                for _ in range(100):
                    await asyncio.sleep(0.02)
                    request.meter.tokens_seen += 1
                told[number] = len(house.ledger.told) - before
                covers[number] = request.run.covered - request.run.vector_at
        assert [told[0], told[2]] == pytest.approx([8, 8], abs=1)
        assert 3 * told[0] < min(told[1], told[3])
        assert max(told[1], told[3]) <= 40
        assert covers[1] < covers[0] / 2

    run_virtual(main())


def test_beats_take_turns_when_more_run_than_one_beat_is_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "VECTORS_MAX", 10)

    async def main() -> None:
        house = House()
        await house.open()
        requests = [await house.begin() for _ in range(25)]
        for number in range(1, 4):
            for request in requests:
                request.meter.tokens_seen = 100
            await house.forecaster.beat()
            assert len(house.ledger.told) == number
        assert [len(told) for told in house.ledger.told] == [10, 10, 5]
        assert len({name for told in house.ledger.told for name in told}) == 25

    run_virtual(main())


def test_a_beat_lets_others_run_and_survives_requests_that_end_in_it():
    async def main() -> None:
        house = House()
        await house.open()
        requests = [await house.begin() for _ in range(4 * SLICE)]
        for request in requests:
            request.meter.tokens_seen = 100
        turns = 0

        async def others() -> None:
            nonlocal turns
            for request in requests:
                await request.end()
                turns += 1

        beat = asyncio.create_task(house.forecaster.beat())
        other = asyncio.create_task(others())
        await asyncio.wait([beat, other])
        assert beat.exception() is None
        assert turns == len(requests)
        assert house.ledger.view().engines[0].reserved == ZERO_COST

    run_virtual(main())


def test_an_answer_in_one_piece_is_where_the_engines_pace_puts_it():
    async def main() -> None:
        house = House()
        await house.open()
        streams = [await house.begin() for _ in range(4)]
        whole = await house.begin(stream=False)
        for beat in range(1, 41):
            await asyncio.sleep(0.25)
            for stream in streams:
                stream.meter.tokens_seen = 10 * beat  # 40 a second
            await house.forecaster.beat()
        assert whole.run.reached == pytest.approx(400, rel=0.1)
        assert whole.run.told == pytest.approx((whole.run.reached - 2 * 40) / 2, abs=5)
        assert house.ledger.told[-1]["r5"].expected == whole.held.cost.expected
        await whole.end(tokens=250)
        assert sum(counted(house.forecaster.lengths.statements()["t"]).ends) == 1

    run_virtual(main())


def test_a_known_length_in_one_piece_ends_as_if_behind_and_is_as_large_as_if_ahead():
    async def main() -> None:
        house = House()
        await house.open()
        streams = [await house.begin() for _ in range(4)]
        whole = await house.begin(outlook=Outlook((100,), 400, ignore_eos=True), stream=False)
        for beat in range(1, 41):
            await asyncio.sleep(0.25)
            for stream in streams:
                stream.meter.tokens_seen = 5 * beat  # 20 a second
            await house.forecaster.beat()
            expected, place = whole.held.cost.expected, 5 * beat
            assert expected is not None
            lasting = sum(map(bool, expected.means))
            assert lasting >= sum(tokens < 400 - place for tokens in GRID), "its end"
            assert expected.means[0] >= blocks_of_request(SHAPE, 100, 1)(place) * SCALE, "its size"
            assert max(expected.means) == whole.held.cost.blocks * SCALE
        assert whole.run.reached < 200 < whole.run.reached + whole.run.unsure < 400
        assert whole.run.told == 0, "only its limit ends it"

    run_virtual(main())


def test_a_stream_whose_headers_come_late_is_where_it_is_counted_to_be():
    async def main() -> None:
        house = House()
        await house.open()
        stream = await house.begin(stream=False)
        for _ in range(8):
            await asyncio.sleep(0.25)
            await house.forecaster.beat()
        assert stream.run.reached > 20, "by time"
        stream.run.follows(stream.meter)
        stream.meter.tokens_seen = 3
        await house.forecaster.beat()
        assert stream.run.reached == stream.run.vector_at == 3

    run_virtual(main())


@pytest.mark.parametrize(
    ("outlook", "is_exact"),
    [
        (Outlook((100,), 400, ignore_eos=True), True),
        (Outlook((100,), 400, min_tokens=400), True),
        (Outlook((100,), 400, min_tokens=399), False),
        (Outlook((100,), 400), False),
        (Outlook((100,), 1), True),
    ],
)
def test_known_is_a_length_that_only_its_limit_ends(outlook: Outlook, is_exact: bool):
    assert outlook.is_exact == is_exact


def test_of_a_known_length_in_one_piece_the_peak_is_held_while_no_pace_is_known():
    async def main() -> None:
        house = House()
        await house.open()
        whole = await house.begin(outlook=Outlook((100,), 400, ignore_eos=True), stream=False)
        for _ in range(8):
            await asyncio.sleep(0.25)
            await house.forecaster.beat()
        expected = whole.held.cost.expected
        assert expected is not None
        assert set(expected.means) == {whole.held.cost.blocks * SCALE}, "it may be anywhere"

    run_virtual(main())


def test_longer_answers_are_noticed_while_they_run_and_relearned_from_their_ends():
    """Answers get three times as long: the tenant reserves its peaks, until enough of the new ones have ended."""

    async def main() -> None:
        house = House()
        await house.open()
        changed: list[frozenset[str]] = []

        async def note(names: frozenset[str]) -> None:
            changed.append(names)

        house.forecaster.on_change = note
        rng = random.Random(7)
        draw = lambda: max(20, round(rng.lognormvariate(5.0, 0.4)))  # noqa: E731
        await house.teach(*(draw() for _ in range(400)))
        peak = price(SHAPE, (100,), 8000, 1)

        def is_guaranteed() -> bool:
            return house.forecaster.cost(FORECAST, Outlook((100,), 8000), SHAPE, peak).expected is None

        running: list[tuple[Request, int]] = []
        noticed_after: int | None = None
        relearned = False
        assert not is_guaranteed()
        for _ in range(2000):
            if len(running) < 64:
                running.append((await house.begin(), 3 * draw()))
            for request, length in running:
                request.meter.tokens_seen = min(request.meter.tokens_seen + 8, length)
            await house.forecaster.beat()
            if noticed_after is None and is_guaranteed():
                noticed_after = sum(request.meter.tokens_seen == length for request, length in running)
                assert house.watch.changes[0][1] == "longer"
            for request, length in [one for one in running if one[0].meter.tokens_seen == one[1]]:
                await request.end()
                running.remove((request, length))
            if noticed_after is not None and not is_guaranteed():
                relearned = True
                break
        assert noticed_after is not None
        assert relearned
        assert ("t", "relearned") in house.watch.changes
        assert house.watch.guarded_now[-1] == 0
        assert any({"t", POOL} & names for names in changed)
        assert house.forecaster.lengths.curve("t").quantile(0.5) > 300

    run_virtual(main())


def test_ends_that_are_heard_of_a_little_later_than_their_tokens_raise_no_alarm():
    """Many short answers at once, each of which is over here a moment after its last token was seen."""

    async def main() -> None:
        house = House()
        await house.open()
        rng = random.Random(8)
        await house.teach(*(max(1, round(rng.lognormvariate(3.7, 0.6))) for _ in range(200)))
        over: list[Request] = []
        running: list[tuple[Request, int]] = []
        for beat in range(60):
            for request in over:
                await request.end()
            over = [request for request, length in running if request.meter.tokens_seen == length]
            running = [one for one in running if one[0].meter.tokens_seen < one[1]]
            while beat < 45 and len(running) + len(over) < 150:
                running.append((await house.begin(), max(1, round(rng.lognormvariate(3.7, 0.6)))))
            await asyncio.sleep(0.24)
            for request, length in running:
                request.meter.tokens_seen = min(request.meter.tokens_seen + 10, length)
            await asyncio.sleep(0.01)
            await house.forecaster.beat()
        assert house.watch.changes == []

    run_virtual(main())


def test_who_was_granted_its_peak_keeps_it_until_its_lengths_are_known_again():
    async def main() -> None:
        house = House()
        await house.open()
        await house.teach(*SHORT)
        before = await house.begin()
        longer = [await house.begin() for _ in range(100)]
        for tokens in range(20, 600, 20):
            for request in (before, *longer):
                request.meter.tokens_seen = tokens
            await asyncio.sleep(0.25)
            await house.forecaster.beat()
        assert house.forecaster.lengths.guarded("t")
        guarded = await house.begin()
        for tokens in range(20, 400, 20):
            for request in (before, guarded):
                request.meter.tokens_seen += 20
            await asyncio.sleep(0.25)
            await house.forecaster.beat()
            assert guarded.held.cost.expected is None, tokens
            assert not house.ledger.told or guarded.run.request_id not in house.ledger.told[-1]
        assert before.held.cost.expected is not None
        assert guarded.run.told > 300  # it teaches all the same
        for request in longer:
            await request.end(tokens=580)
        for _ in range(3):
            guarded.meter.tokens_seen += 20
            await asyncio.sleep(0.25)
            await house.forecaster.beat()
        assert not house.forecaster.lengths.guarded("t")
        assert guarded.held.cost.expected is not None
        assert house.ledger.told[-1][guarded.run.request_id].expected == guarded.held.cost.expected

    run_virtual(main())


# Sent back.

BATCH = TenantPolicy("b", max_tokens_default=None, reservation="forecast", revocable=True)


@pytest.mark.parametrize(
    ("tenant", "priority", "shown", "revocations", "expected"),
    [
        (BATCH, PriorityClass.BATCH, False, 0, True),
        (BATCH, PriorityClass.BATCH, False, 2, False),
        (BATCH, PriorityClass.BATCH, True, 0, False),
        (BATCH, PriorityClass.STANDARD, False, 0, False),
        (FORECAST, PriorityClass.BATCH, False, 0, False),
    ],
)
def test_only_batch_requests_that_allow_it_and_have_shown_nothing_are_sent_back(
    tenant: TenantPolicy, priority: PriorityClass, shown: bool, revocations: int, expected: bool
):
    async def main() -> None:
        house = House(blocks=120)
        await house.open()
        request = await house.begin(tenant, priority=priority, revocations=revocations)
        others = [await house.begin() for _ in range(8)]
        if shown:
            assert request.run.shows()
        for one in (request, *others):
            one.meter.tokens_seen = 400
        await house.forecaster.beat()
        assert request.run.revoked is expected
        assert house.watch.revocations == expected
        assert request.run.shows() is not expected

    run_virtual(main())


def test_no_more_is_sent_back_than_has_to_go_and_the_youngest_first():
    async def main() -> None:
        house = House(blocks=200)
        await house.open()
        await house.teach(*SHORT)
        batch = [await house.begin(BATCH, priority=PriorityClass.BATCH) for _ in range(6)]
        for number, one in enumerate(batch):
            one.meter.tokens_seen = 100 + 40 * number
        others = [await house.begin() for _ in range(3)]
        for one in others:
            one.meter.tokens_seen = 200
        await house.forecaster.beat()
        gone = [one.run.revoked for one in batch]
        assert 0 < sum(gone) < 6
        assert gone == sorted(gone, reverse=True)
        await house.forecaster.beat()
        assert [one.run.revoked for one in batch] == gone  # their blocks are not free yet

    run_virtual(main())


# Life.


def test_it_beats_until_it_is_left_and_a_beat_that_fails_is_not_the_last():
    class Broken(Counting):
        async def renew_many(self, costs: Mapping[str, KVCost]) -> None:
            self.told.append(dict(costs))
            raise RuntimeError("no")

    async def main() -> None:
        house = House(ledger=Broken())
        await house.open()
        async with house.forecaster.serving():
            request = await house.begin()
            for tokens in range(30, 330, 30):
                request.meter.tokens_seen = tokens
                await asyncio.sleep(0.25)
        assert 5 < len(house.ledger.told) <= 10
        told = len(house.ledger.told)
        request.meter.tokens_seen = 1000
        await asyncio.sleep(10)
        assert len(house.ledger.told) == told

    run_virtual(main())


def test_attempts_that_came_to_nothing_are_not_counted_as_begun():
    async def main() -> None:
        house = House()
        await house.open()
        for _ in range(100):
            await (await house.begin()).end(None)
        assert house.forecaster.lengths.statements() == {POOL: [0.0] * (1 + NUMBERS)}

    run_virtual(main())


def test_an_answer_in_one_piece_that_does_not_say_its_length_is_no_end():
    """Too large to be looked into, or without a usage: what it may have had by its pace is all there is."""

    async def main() -> None:
        house = House()
        await house.open()
        request = await house.begin(stream=False)
        for _ in range(40):
            await asyncio.sleep(0.25)
            await house.forecaster.beat()
        assert request.run.told > 0
        request.run.ended(Finish.STOP, None)
        request.run.__exit__(None, None, None)
        await request.held.done()
        assert sum(counted(house.forecaster.lengths.statements()["t"]).ends) == 0
        assert house.watch.calibration == {}

    run_virtual(main())
