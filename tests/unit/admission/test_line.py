"""The line of a request with a real ledger, in virtual time: what it is charged, where it stands, how it ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from kvgate.admission.contract import Call, Ended, Header, Reason
from kvgate.admission.line import Admission
from kvgate.admission.pricing import Pricer
from kvgate.config import Settings
from kvgate.engines.base import Target, Trouble
from kvgate.ledger.memory import MemoryLedger
from kvgate.telemetry.metrics import Telemetry
from kvgate.telemetry.record import RequestRecord
from kvgate_policies.types import (
    Endpoint,
    EngineLimits,
    EngineShape,
    InferenceRequest,
    Outcome,
    PriorityClass,
    PromptSize,
    TenantPolicy,
    TenantRules,
    TenantUse,
    TokenCount,
)
from support.virtual_loop import LoopClock, run_virtual

SHAPE = EngineShape(block_size=16, max_model_len=4096)
STANDARD, BATCH = PriorityClass.STANDARD, PriorityClass.BATCH
DONE = b"data: [DONE]\n\n"


def token(text: str = "a", finish: str | None = None) -> bytes:
    choice = {"index": 0, "text": text, "finish_reason": finish}
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


def usage(prompt: int, output: int) -> bytes:
    told = {"prompt_tokens": prompt, "completion_tokens": output}
    return b"data: " + json.dumps({"choices": [], "usage": told}).encode() + b"\n\n"


class OneEngine:
    """A pool of one engine that is always well, or of a second one with the same face."""

    def __init__(self, *ids: str) -> None:
        self.ids = frozenset(ids or ("http://e:1",))
        self.reports: list[Trouble] = []

    def shapes(self) -> frozenset[EngineShape]:
        return frozenset({SHAPE})

    def available(self) -> frozenset[str]:
        return self.ids

    def serves(self, model: str | None) -> bool:
        return True

    def without(self, model: str | None) -> frozenset[str]:
        return frozenset()

    def model_names(self) -> tuple[str, ...]:
        return ("m",)

    def target(self, engine_id: str) -> Target | None:
        return Target(engine_id, engine_id)

    async def report(self, engine_id: str, trouble: Trouble) -> None:
        self.reports.append(trouble)

    async def succeeded(self, engine_id: str) -> None: ...

    def any_target(self) -> Target | None:
        return None

    def targets(self) -> tuple[Target, ...]:
        return ()

    async def tokenize(self, body: Any) -> int:
        raise NotImplementedError


class Counter:
    """The prompt has as many tokens as its bytes."""

    async def count(self, request: InferenceRequest) -> TokenCount:
        return TokenCount(tuple(size.utf8_bytes for size in request.prompts), exact=True)

    async def count_exactly(self, request: InferenceRequest) -> TokenCount | None:
        return None

    def learn(self, request: InferenceRequest, prompt_tokens: int) -> None: ...


class Client:
    """A `Reply` that keeps what it is sent."""

    def __init__(self) -> None:
        self.started = False
        self.facts: list[Header] = []
        self.body = b""

    async def start(self, status: int, headers: Sequence[Header], facts: Sequence[Header]) -> None:
        self.started, self.facts = True, list(facts)

    async def send(self, chunk: bytes) -> None:
        self.body += chunk

    async def finish(self, last: bytes = b"") -> None:
        self.body += last


class House:
    """A pool of `blocks` blocks; the engine answers by `script`, in turn: chunks, seconds, a status, an error."""

    def __init__(self, *script: Any, blocks: int = 1000) -> None:
        self.script = list(script)
        self.seen: list[bytes] = []
        self.clock = LoopClock()
        self.ledger = MemoryLedger(self.clock)
        self.engines = OneEngine()
        self.blocks = blocks
        self.telemetry = Telemetry("p", CollectorRegistry())
        self.records: dict[str, RequestRecord] = {}
        self.admission = Admission(
            engines=self.engines,
            ledger=self.ledger,
            pricer=Pricer(Counter(), self.engines),
            upstream=httpx.MockTransport(self._answer),
            telemetry=self.telemetry,
            clock=self.clock,
            settings=Settings(backends=("http://e:1",)),
        )

    async def open(self, **rules: TenantRules) -> None:
        for engine_id in self.engines.ids:
            await self.ledger.observe(EngineLimits(engine_id, SHAPE, self.blocks, 64, 100_000))
        await self.ledger.set_tenants(rules)

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        self.seen.append(request.headers.get("x-request-id", "").encode())
        answer = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, int):
            return httpx.Response(answer, json={"error": {"message": "no"}})
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=_steps(answer))

    async def serve(
        self,
        name: str = "r",
        tenant: TenantPolicy | None = None,
        *,
        prompt: int = 100,
        max_tokens: int = 50,
        priority: PriorityClass = STANDARD,
        deadline_s: float | None = None,
        client: Client | None = None,
        stream: bool = True,
    ) -> Ended:
        policy = tenant or TenantPolicy("t")
        request = InferenceRequest(
            Endpoint.COMPLETIONS, "m", stream=stream, prompts=(PromptSize(utf8_bytes=prompt),),
            max_tokens=max_tokens, max_tokens_field="max_tokens",
        )  # fmt: skip
        headers = [(b"x-request-id", name.encode())]
        call = Call(
            "POST", "/v1/completions", headers, b"{}", self.clock.monotonic(), policy, priority, deadline_s,
            lambda _: b"{}",
        )  # fmt: skip
        record = self.records[name] = RequestRecord(name, policy.name)
        return await self.admission.serve(request, call, client or Client(), record)

    def use(self, tenant: str = "t") -> TenantUse:
        return next(use for use in self.ledger.view().tenants if use.name == tenant)


async def _steps(answer: Sequence[Any]) -> AsyncIterator[bytes]:
    for step in answer:
        if isinstance(step, bytes):
            yield step
        elif isinstance(step, Exception):
            raise step
        else:
            await asyncio.sleep(step)


async def soon() -> None:
    """Let everything go as far as it can without time."""
    for _ in range(50):
        await asyncio.sleep(0)


# What is charged.


@pytest.mark.parametrize(
    ("answer", "service"),
    [
        ((token(), token("b", "stop"), usage(90, 7), DONE), 90 + 2 * 7),
        ((token(), token("b", "stop"), DONE), 100 + 2 * 2),  # nothing was said: as counted beside the stream
        ((token(), token(), httpx.ReadError("broke")), 100 + 2 * 2),
        (404, 1),
        (400, 1),
    ],
)
def test_the_charge_is_corrected_to_what_was_served(answer: Any, service: int):
    async def main() -> None:
        house = House(answer)
        await house.open(t=TenantRules())
        await house.serve()
        assert house.use().service == service
        assert house.use().reservations == 0

    run_virtual(main())


def test_a_client_that_leaves_pays_for_what_it_got():
    async def main() -> None:
        house = House((token(), token(), 60.0, token(), DONE))
        await house.open(t=TenantRules())
        task = asyncio.create_task(house.serve())
        await asyncio.sleep(1)
        assert house.use().service == 100 + 2 * 50
        task.cancel()
        await asyncio.wait([task])
        assert house.use().service == 100 + 2 * 2

    run_virtual(main())


def test_an_attempt_that_came_to_nothing_is_charged_once_and_its_budget_once():
    """Twice not reached, then served: 150 tokens were charged to the budget at first, and 110 used in the end."""

    async def main() -> None:
        whole = (token("b", "stop"), usage(100, 10), DONE)
        house = House(httpx.ConnectError("no"), httpx.ConnectError("no"), whole)
        await house.open(t=TenantRules(tokens_per_minute=600))
        ended = await house.serve()
        assert (ended.outcome, len(house.seen)) == (Outcome.SERVED, 3)
        assert house.use().service == 100 + 2 * 10
        over = await house.serve(prompt=441, max_tokens=50)  # 110 of the 600 were used: 490 are left
        assert over.outcome is Outcome.REJECTED_TENANT_RATE
        assert (await house.serve(prompt=440, max_tokens=50)).outcome is Outcome.SERVED

    run_virtual(main())


def test_a_spent_budget_says_when_and_the_same_request_passes_then():
    async def main() -> None:
        house = House((token("b", "stop"), usage(100, 50), DONE))
        await house.open(t=TenantRules(tokens_per_minute=150))
        assert (await house.serve()).outcome is Outcome.SERVED
        refused = await house.serve()
        assert refused.outcome is Outcome.REJECTED_TENANT_RATE
        assert refused.answer is not None
        assert refused.answer.reason is Reason.TENANT_RATE
        assert refused.answer.exact
        after_s = refused.answer.retry_after_s
        assert after_s == 60.0
        await asyncio.sleep(60.0 - 0.01)
        assert (await house.serve()).outcome is Outcome.REJECTED_TENANT_RATE
        await asyncio.sleep(0.01)
        assert (await house.serve()).outcome is Outcome.SERVED

    run_virtual(main())


# Where it stands.


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("fifo", ["large", "small", "late", "hurry"]),
        ("deadline", ["hurry", "large", "small", "late"]),
        ("shortest", ["small", "late", "hurry", "large"]),
    ],
)
def test_the_order_inside_a_tenant(order, expected: list[str]):
    async def main() -> None:
        house = House((5.0, token("b", "stop"), usage(100, 50), DONE), blocks=40)
        await house.open(t=TenantRules())
        tenant = TenantPolicy("t", order=order)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(house.serve("first", tenant, prompt=500, max_tokens=100))
            await soon()
            for name, prompt, deadline_s in (
                ("large", 560, None), ("small", 380, None), ("late", 380, None), ("hurry", 400, 29.0),
            ):  # fmt: skip
                tasks.create_task(
                    house.serve(name, tenant, prompt=prompt, max_tokens=50, deadline_s=deadline_s)
                )
                await asyncio.sleep(0.1)
        assert [name.decode() for name in house.seen] == ["first", *expected]

    run_virtual(main())


def test_a_lower_class_waits_for_the_higher_one():
    async def main() -> None:
        house = House((5.0, token("b", "stop"), DONE), blocks=10)
        await house.open()
        async with asyncio.TaskGroup() as tasks:
            for name, priority in (("first", STANDARD), ("low", BATCH), ("high", STANDARD)):
                tasks.create_task(house.serve(name, TenantPolicy(name), priority=priority))
                await soon()
        assert house.seen == [b"first", b"high", b"low"]
        assert house.records["low"].priority == "batch"

    run_virtual(main())


# How it ends.


@pytest.mark.parametrize(
    ("deadline_s", "wait_s", "ended_s", "outcome"),
    [
        (None, 30.0, 30.0, Outcome.EVICTED_QUEUE_TIMEOUT),
        (2.5, 30.0, 2.5, Outcome.EVICTED_DEADLINE),
        (0.0, 30.0, 0.0, Outcome.EVICTED_DEADLINE),
        (90.0, 30.0, 30.0, Outcome.EVICTED_QUEUE_TIMEOUT),
        (30.0, 30.0, 30.0, Outcome.EVICTED_QUEUE_TIMEOUT),
    ],
)
def test_the_shorter_of_both_waits_ends_it(
    deadline_s: float | None, wait_s: float, ended_s: float, outcome: Outcome
):
    async def main() -> None:
        house = House((100.0, token("b", "stop"), DONE), blocks=10)
        await house.open()
        running = asyncio.create_task(house.serve("running"))
        await soon()
        start_s = house.clock.monotonic()
        ended = await house.serve("r", TenantPolicy("t", queue_wait_s_max=wait_s), deadline_s=deadline_s)
        assert ended.outcome is outcome
        assert house.clock.monotonic() - start_s == pytest.approx(ended_s)
        assert ended.answer is not None
        assert (ended.answer.retry_after_s is None) is (outcome is Outcome.EVICTED_DEADLINE)
        assert house.ledger.view().queued == 0
        assert (await running).outcome is Outcome.SERVED

    run_virtual(main())


def test_retry_after_is_of_the_tenants_own_queue_and_pace():
    """Ten grants a second in all, one of them the slow tenant's: with four ahead it is told four seconds or so."""

    async def main() -> None:
        house = House((0.1, token("b", "stop"), DONE), (0.1, token("b", "stop"), DONE), blocks=10)
        await house.open(busy=TenantRules(weight=9), slow=TenantRules(weight=1))
        policies = [TenantPolicy(n, queue_depth_max=4, queue_wait_s_max=300.0) for n in ("busy", "slow")]
        end_s = house.clock.monotonic() + 60

        async def client(policy: TenantPolicy) -> None:
            while house.clock.monotonic() < end_s:
                await house.serve(policy.name, policy)

        async with asyncio.TaskGroup() as tasks:
            for policy in policies:
                for _ in range(4):
                    tasks.create_task(client(policy))
            await asyncio.sleep(50)
            told = [await house.serve("x", replace(policy, queue_depth_max=3)) for policy in policies]
        after_s = [
            ended.answer.retry_after_s for ended in told if ended.answer and ended.answer.retry_after_s
        ]
        assert [ended.outcome for ended in told] == [Outcome.REJECTED_QUEUE_FULL] * 2
        busy_s, slow_s = after_s
        assert slow_s == pytest.approx(3.0, rel=0.5)
        assert busy_s == 1.0  # the least that is told

    run_virtual(main())


# Modes.


def test_observed_requests_start_at_once_and_keep_what_would_have_been_done():
    async def main() -> None:
        house = House((5.0, token("b", "stop"), DONE), blocks=10)
        await house.open(t=TenantRules(requests_per_minute=3, limit=0.9))
        tenant = TenantPolicy("t", mode="observe", max_tokens_cap=20, queue_depth_max=0)
        client = Client()
        async with asyncio.TaskGroup() as tasks:
            for name in ("granted", "full", "spent"):
                tasks.create_task(house.serve(name, tenant, client=client))
                await soon()
            rate = replace(tenant, rules=TenantRules(requests_per_minute=3))
            tasks.create_task(house.serve("large", rate, prompt=3000))
        would = {name: record.would for name, record in house.records.items()}
        assert would == {
            "granted": "granted",
            "full": "queue_full",
            "spent": "queue_full",
            "large": "never_fits",
        }
        assert client.facts == []
        assert house.use().blocks == 0

    run_virtual(main())


def test_a_policy_that_is_off_hinders_and_counts_nothing():
    async def main() -> None:
        house = House((5.0, token("b", "stop"), DONE), blocks=10)
        await house.open()
        tenant = TenantPolicy("t", mode="off", queue_depth_max=0)
        start_s = house.clock.monotonic()
        ends = await asyncio.gather(*(house.serve(f"r{n}", tenant) for n in range(5)))
        assert [ended.outcome for ended in ends] == [Outcome.SERVED] * 5
        assert house.clock.monotonic() - start_s == pytest.approx(5.0)
        assert all(record.would is None for record in house.records.values())

    run_virtual(main())
