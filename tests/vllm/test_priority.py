"""Two tenants on one engine that schedules by priority: who has its peaks reserved is never preempted, however wrong the
other's forecasts are.

`bold` has learned answers of about twenty tokens, and leaves half of all cases to chance. Then come chats of three hundred,
and an engine that was filled by what was expected of them holds a third. `firm` streams beside them.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from vllm import environment, server, traffic
from vllm.mixed import Chat
from vllm.model import VOCABULARY, write_model
from vllm.steps import Step, gaps

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from vllm.server import Engine, Gateway

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

PUPILS, LESSONS, LESSONS_MAX = 6, 15, 3
"""Clients, what each sends one after the other, and how often all that is done at the most."""
CHATS, STREAMS, ROUNDS = 24, 4, 2
STOPS = 50
"""Of 1,024 tokens: about twenty for an answer."""
LONG = 300
STEP_S = 0.05
"""Firm's first requests have to be there before bold's have shown, some twenty steps on, that they do not end."""
PROMPT, OUTPUT = 192, 289
"""Of each of firm's: 15 blocks, so that its four streams hold half of the engine."""

POLICY = """\
version: 1
pools:
  {model}:
    backends: [{backend}]
    prompt_tokens: backend
    priority: on
tenants:
  firm: {{guarantee: 60%, reservation: guaranteed}}
  bold: {{reservation: forecast, risk: 50%}}
defaults: {{queue: {{wait: 300s}}}}
identity: {{from: header, name: x-tenant, trusted_proxies: [127.0.0.1/32]}}
"""


@dataclass(frozen=True, slots=True)
class Request:
    """One of a tenant's, to be recognised in the engine's log by `name`."""

    tenant: str
    name: str
    path: str
    body: Mapping[str, Any]

    @property
    def headers(self) -> dict[str, str]:
        return {
            "X-Tenant": self.tenant,
            "X-Request-Id": f"{self.tenant}-{self.name}",
            "X-Vllm-Priority": "-99",
        }


@dataclass(frozen=True, slots=True)
class Run:
    got: list[traffic.Got]
    steps: list[Step]

    def preempted(self, tenant: str) -> list[str]:
        return [name for step in self.steps for name in step.pre if f"{tenant}-" in name]

    def gap_steps_max(self, tenant: str) -> int:
        return max(gap for name, gap in gaps(self.steps) if f"{tenant}-" in name)

    def spared(self) -> int:
        """How often one was preempted while a younger one of firm's ran on, which first come first served never does."""
        count, began = 0, dict[str, int]()
        for step in self.steps:
            young = max((began[name] for name in step.out if "firm-" in name and name in began), default=0)
            count += sum(began[name] < young for name in step.pre)
            began.update(dict.fromkeys((*step.new, *step.res), step.step))
        return count


@pytest.fixture(scope="module")
def by_priority(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """A real vLLM as the others' one, but for its order; and with `/inference`."""
    home = environment.home()
    if environment.state(home) is not environment.State.COMPLETE:
        pytest.skip(f"no vLLM environment at {home}: `make test-vllm` builds it")
    folder = tmp_path_factory.mktemp("by-priority")
    write_model(folder / "model")
    options = ("--scheduling-policy", "priority", "--enable-scale-out")
    with server.engine(environment.python(home), folder / "model", folder, *options) as running:
        yield running


def a_gateway(engine: Engine, folder: Path) -> Any:
    policy = folder / "policy.yaml"
    policy.write_text(POLICY.format(model=server.MODEL, backend=engine.url))
    return server.gateway(engine.url, folder, "--policy", str(policy))


def lessons(rng: random.Random) -> list[list[Request]]:
    stops = random.Random(0).sample(range(300, VOCABULARY), STOPS)
    return [[_chat("lesson", rng, stop_token_ids=stops) for _ in range(LESSONS)] for _ in range(PUPILS)]


def chats(rng: random.Random) -> list[Request]:
    """Nothing tells them from the lessons but that they do not end."""
    return [_chat(f"chat-{i}", rng, max_tokens=LONG) for i in range(CHATS)]


def _chat(name: str, rng: random.Random, **more: Any) -> Request:
    body = Chat(rng.randint(20, 40), rng.getrandbits(48)).body()
    del body["stop_token_ids"]
    return Request("bold", name, "/v1/chat/completions", body | more)


def streams(rng: random.Random) -> list[list[Request]]:
    """Each list is one client's, who sends the next one when the last one is done."""
    calls = [
        [traffic.Call(traffic.random_prompt(rng, PROMPT), OUTPUT) for _ in range(ROUNDS)]
        for _ in range(STREAMS)
    ]
    return [
        [
            Request("firm", f"{i}-{j}", "/v1/completions", call.body(stream=True))
            for j, call in enumerate(client)
        ]
        for i, client in enumerate(calls)
    ]


async def offer(url: str, bold: Collection[Request], firm: Sequence[Sequence[Request]]) -> list[traffic.Got]:
    """All of `bold` at once; `firm` as soon as three quarters of those are under way, and so older."""
    limits = httpx.Limits(max_connections=len(bold) + len(firm))
    under_way = asyncio.Semaphore(0)
    async with httpx.AsyncClient(base_url=url, timeout=traffic.REQUEST_S_MAX, limits=limits) as client:
        tasks = [asyncio.create_task(_stream(client, request, under_way)) for request in bold]
        for _ in range(3 * len(bold) // 4):
            await under_way.acquire()
        rounds = await asyncio.gather(*(_rounds(client, requests, under_way) for requests in firm))
        return [*await asyncio.gather(*tasks), *(got for round_ in rounds for got in round_)]


async def _rounds(
    client: httpx.AsyncClient, requests: Sequence[Request], under_way: asyncio.Semaphore
) -> list[traffic.Got]:
    return [await _stream(client, request, under_way) for request in requests]


async def _stream(client: httpx.AsyncClient, request: Request, under_way: asyncio.Semaphore) -> traffic.Got:
    got = traffic.Got(0)
    async with client.stream("POST", request.path, json=request.body, headers=request.headers) as answer:
        got.status = answer.status_code
        under_way.release()  # the answer begins with the first token
        async for line in traffic.lines(answer):
            got.read(line)
    return got


def teach(gateway: Gateway, rng: random.Random) -> None:
    """Until lengths are known, and not suspected to have changed meanwhile."""
    for _ in range(LESSONS_MAX):
        got = asyncio.run(offer(gateway.url, [], lessons(rng)))
        assert all(each.status == 200 and each.done for each in got)
        if not suspected(gateway):
            return
    pytest.fail("bold's lengths did not become known")


def suspected(gateway: Gateway) -> bool:
    page = httpx.get(gateway.admin_url + "/metrics", timeout=30).raise_for_status().text
    families = {family.name: family for family in text_string_to_metric_families(page)}
    return any(sample.value for sample in families["kvgate_forecast_guarded_tenants"].samples)


def run(engine: Engine, folder: Path, seed: int) -> Run:
    rng = random.Random(seed)
    with a_gateway(engine, folder) as gateway, engine.paced(STEP_S):
        teach(gateway, rng)
        mark = engine.steps.mark()
        got = asyncio.run(offer(gateway.url, chats(rng), streams(rng)))
    return Run(got, engine.steps.since(mark))


@pytest.fixture(scope="module")
def guarded(by_priority: Engine, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run(by_priority, tmp_path_factory.mktemp("guarded"), seed=521)


@pytest.fixture(scope="module")
def unguarded(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The same on an engine that takes no notice of priorities."""
    return run(engine, tmp_path_factory.mktemp("unguarded"), seed=522)


@pytest.fixture(scope="module")
def fresh(by_priority: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with a_gateway(by_priority, tmp_path_factory.mktemp("fresh")) as running:
        yield running


def test_all_are_answered_in_the_end(guarded: Run) -> None:
    assert len(guarded.got) == CHATS + STREAMS * ROUNDS
    assert all(got.status == 200 and got.done and got.error is None for got in guarded.got), guarded.got


def test_only_those_whose_forecasts_were_wrong_are_preempted(guarded: Run) -> None:
    assert len(guarded.preempted("bold")) > 10, "without pressure this would show nothing"
    assert guarded.preempted("firm") == []


def test_what_is_guaranteed_streams_on(guarded: Run) -> None:
    assert guarded.gap_steps_max("firm") <= 3
    assert guarded.gap_steps_max("bold") > 50


def test_the_engine_takes_the_lower_priority_where_another_is_younger(guarded: Run) -> None:
    assert guarded.spared() > 0


def test_first_come_first_served_the_youngest_is_preempted_whoever_it_is(unguarded: Run) -> None:
    assert unguarded.preempted("firm") != []
    assert unguarded.gap_steps_max("firm") > 10
    assert unguarded.spared() == 0


PROMPT_IDS = list(range(300, 340))
MESSAGES = [{"role": "user", "content": "a client asks"}]
ENDPOINTS: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": PROMPT_IDS, "max_tokens": 2, "priority": -99},
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 2, "priority": -99},
    "/v1/chat/completions/batch": {"messages": [MESSAGES, MESSAGES], "max_tokens": 2, "priority": -99},
    "/v1/responses": {"input": "a client asks", "max_output_tokens": 2, "priority": -99},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 2},
    "/inference/v1/generate": {
        "token_ids": PROMPT_IDS,
        "sampling_params": {"max_tokens": 2},
        "priority": -99,
    },
}


@pytest.mark.parametrize(("tenant", "number"), [("firm", -10), ("bold", 0)])
@pytest.mark.parametrize("path", ENDPOINTS)
def test_every_endpoint_gets_the_priority_that_kvgate_decides_on(
    by_priority: Engine, fresh: Gateway, path: str, tenant: str, number: int
) -> None:
    request = Request(tenant, "asks", path, ENDPOINTS[path] | {"model": server.MODEL})
    mark = by_priority.steps.mark()
    answer = httpx.post(
        fresh.url + path, json=request.body, headers=request.headers, timeout=traffic.REQUEST_S_MAX
    )
    assert answer.status_code == 200, answer.text
    assert {number} == {told for step in by_priority.steps.since(mark) for told in step.prio.values()}
