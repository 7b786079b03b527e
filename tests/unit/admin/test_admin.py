"""The admin port: probes for anyone, /admin for the token's holder, and a page that stalls nobody."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import anyio
import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from kvgate.admin import AdminState, admin_app
from kvgate.admin.bounded import BODY_BYTES_MAX, TOO_LARGE
from kvgate.admin.page import FORMATS_MAX, MetricsPage
from kvgate.admin.state import PoolState
from kvgate.assembly.file import FileState
from kvgate.config import load
from kvgate.config.overrides import Override
from kvgate.config.standing import Standing
from kvgate.config.tenants import TenantBook
from kvgate.errors import ChangeNotKept
from kvgate.telemetry import Telemetry
from kvgate_policies.types import (
    EngineLimits,
    EngineShape,
    EngineUse,
    KVCost,
    LedgerView,
    TenantRules,
    TenantUse,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

LIMITS = EngineLimits("http://a:1", EngineShape(16, 4096), blocks=100, seqs=8, prefill_tokens=8192)
VIEW = LedgerView(
    (EngineUse(LIMITS, KVCost(40, 3, 512), reservations=3, pinned_by="r9"),),
    3,
    1.5,
    totals={"grants": 7},
    tenants=(
        TenantUse("batch", TenantRules(), blocks=30, blocks_limit=30, queued=1, oldest_wait_s=0.5),
        TenantUse(
            "chat", TenantRules(), blocks=10, blocks_limit=100, reservations=1, queued=2, oldest_wait_s=1.5
        ),
    ),
)


@dataclass
class Gauges:
    kv_usage: float | None = 0.5
    running: float | None = 3
    waiting: float | None = 0
    preemptions: float | None = 0


@dataclass
class Status:
    id: str = "http://a:1"
    url: str = "http://a:1"
    state: str = "up"
    limits: EngineLimits | None = LIMITS
    gauges: Gauges | None = field(default_factory=Gauges)
    probe_age_s: float = 0.25
    gauges_age_s: float | None = 0.5
    elected: bool = True
    current: bool = True
    trust: float | None = 0.93
    bias: float | None = 1.0
    foreign_blocks: float | None = 0.0
    drift_blocks: float | None = -5.0
    stalls: int = 0


class Hand:
    now_s = 50.0

    def monotonic(self) -> float:
        return self.now_s


class Process:
    """A running kvgate, as far as the admin port sees it."""

    def __init__(self, token: str | None = None) -> None:
        self.clock = Hand()
        self.engine = Status()
        self.is_ready = True
        self.views = 0
        self.everywhere = True
        self.file = FileState("policy.yaml", "abc", "2030-01-31T12:00:00+00:00")
        self.telemetry = Telemetry("p")
        self.telemetry.watch(self.view, lambda: [self.engine])
        env = {"KVGATE_BACKEND_API_KEY": "sk-secret"} | ({"KVGATE_ADMIN_TOKEN": token} if token else {})
        settings = load(None, env, {"backends": ["http://a:1"]})
        self.tenants = FakeTenants(settings.book)
        self.state = AdminState(
            settings=settings,
            telemetry=self.telemetry,
            pools=lambda: [
                PoolState("default", (), self.view, lambda: [self.engine], lambda: ("tiny",)),
                PoolState("other", ("o-*",), LedgerView, lambda: [Status("http://b:1", "http://b:1")], tuple),
            ],
            ready=lambda: (self.is_ready, {"engine": self.is_ready, "draining": False}),
            drain=self.drain,
            undrain=self.undrain,
            tenants=self.tenants,
            policy_file=lambda: self.file,
        )

    def view(self) -> LedgerView:
        self.views += 1
        return VIEW

    async def drain(self, pool: str, engine_id: str) -> bool:
        assert pool == "default"
        self.engine = replace(self.engine, state="draining")
        return self.everywhere

    async def undrain(self, pool: str, engine_id: str) -> bool:
        self.engine = replace(self.engine, state="up")
        return self.everywhere

    def client(self) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(admin_app(self.state, self.clock))
        return httpx.AsyncClient(transport=transport, base_url="http://admin")


class FakeTenants:
    """Keeps changes as the desk does; `away` when the ledger does not take them."""

    def __init__(self, book: TenantBook) -> None:
        self._file = replace(book, names=("chat", "batch"))
        self.changes: dict[tuple[str, str | None], Standing] = {}
        self.asked: list[str] = []
        self.away = False

    @property
    def book(self) -> TenantBook:
        everywhere = {one.tenant: one.override for one in self.changes.values() if one.pool is None}
        return self._file.with_overrides(everywhere)

    def standing(self) -> list[Standing]:
        return list(self.changes.values())

    async def change(
        self, tenant: str, pool: str | None, fields: Mapping[str, object], for_s: float, who: str
    ) -> None:
        if self.away:
            raise ChangeNotKept("it is away")
        override = Override.of_json({**fields, "until": "2030-01-31T12:00:00Z"})
        self.changes[tenant, pool] = Standing(tenant, pool, override, for_s)
        self.asked.append(who)

    async def end(self, tenant: str, pool: str | None, who: str) -> bool:
        if self.away:
            raise ChangeNotKept("it is away")
        return self.changes.pop((tenant, pool), None) is not None


@pytest.fixture
def process() -> Process:
    return Process()


@pytest.fixture
async def client(process: Process) -> AsyncIterator[httpx.AsyncClient]:
    async with process.client() as client:
        yield client


async def test_alive(client: httpx.AsyncClient) -> None:
    answer = await client.get("/livez")
    assert answer.status_code == 200
    assert answer.json()["alive"] is True


async def test_ready_says_why_not(client: httpx.AsyncClient, process: Process) -> None:
    answer = await client.get("/readyz")
    assert (answer.status_code, answer.json()) == (200, {"ready": True, "engine": True, "draining": False})
    process.is_ready = False
    answer = await client.get("/readyz")
    assert (answer.status_code, answer.json()) == (503, {"ready": False, "engine": False, "draining": False})
    assert answer.headers["cache-control"] == "no-store"


async def test_the_ledger_as_json(client: httpx.AsyncClient) -> None:
    assert (await client.get("/admin/ledger")).json() == {
        "pool": "default",
        "mode": "memory",
        "processes": 1,
        "queued": 3,
        "oldest_wait_s": 1.5,
        "engines": [
            {
                "engine_id": "http://a:1",
                "blocks": 100,
                "seqs": 8,
                "prefill_tokens": 8192,
                "reserved_blocks": 40,
                "peak_blocks": 40,
                "reserved_seqs": 3,
                "reserved_prefill_tokens": 512,
                "reservations": 3,
                "accepting": True,
                "pinned_by": "r9",
                "share_blocks": None,
            }
        ],
        "totals": {"grants": 7},
    }


async def test_the_engines_as_json(client: httpx.AsyncClient, process: Process) -> None:
    engine, _ = (await client.get("/admin/engines")).json()["engines"]
    assert engine["engine_id"] == "http://a:1"
    assert engine["limits"]["blocks"] == 100
    assert (engine["reserved_blocks"], engine["reservations"]) == (40, 3)
    assert engine["gauges"]["kv_usage"] == 0.5
    assert (engine["trust"], engine["bias"], engine["foreign_blocks"]) == (0.93, 1.0, 0.0)
    assert engine["drift_blocks"] == -5.0
    assert (engine["elected"], engine["gauges_age_s"], engine["stalls"]) == (True, 0.5, 0)
    assert engine["probe_age_s"] == 0.25
    process.engine = Status(state="unknown", limits=None, gauges=None)
    engine, _ = (await client.get("/admin/engines")).json()["engines"]
    assert engine["limits"] is None
    assert _["reserved_blocks"] == 0, "of an engine that the ledger does not know yet"


async def test_drain_and_undrain(client: httpx.AsyncClient, process: Process) -> None:
    answer = await client.post("/admin/engines/drain", json={"engine_id": "http://a:1"})
    assert (answer.status_code, states(answer), answer.json()["everywhere"]) == (200, ["draining"], True)
    answer = await client.post("/admin/engines/undrain", json={"engine_id": "http://a:1"})
    assert (answer.status_code, states(answer)) == (200, ["up"])
    process.everywhere = False
    answer = await client.post("/admin/engines/drain", json={"engine_id": "http://a:1/"})
    assert (answer.status_code, states(answer), answer.json()["everywhere"]) == (200, ["draining"], False)


def states(answer: httpx.Response) -> list[str]:
    return [engine["state"] for engine in answer.json()["engines"]]


@pytest.mark.parametrize(
    ("request_", "status", "said"),
    [
        (
            {"json": {"engine_id": "http://b"}},
            404,
            "No engine 'http://b'; there are: http://a:1, http://b:1.",
        ),
        ({"json": {"engine_id": "http://a:1", "pool": "other"}}, 404, "there are: http://b:1."),
        ({"json": {"engine_id": "http://a:1", "pool": "x"}}, 404, "No pool 'x'; there are: default, other."),
        ({"json": {"id": "http://a:1"}}, 422, "engine_id: Field required"),
        ({"json": {"engine_id": 7}}, 422, "valid string"),
        ({"content": b"{"}, 422, "The body is JSON"),
        ({}, 422, "The body is JSON"),
        # What a foreign web page could make a browser send without asking.
        ({"content": b'{"engine_id": "http://a:1"}', "headers": {"content-type": "text/plain"}}, 422, "JSON"),
    ],
)
async def test_mistakes_are_problems(
    client: httpx.AsyncClient, process: Process, request_: dict[str, Any], status: int, said: str
) -> None:
    answer = await client.post("/admin/engines/drain", **request_)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert said in answer.json()["detail"]
    assert process.engine.state == "up"


async def test_unknown_paths_and_methods_are_problems(client: httpx.AsyncClient) -> None:
    for method, path, status in (("GET", "/", 404), ("GET", "/docs", 404), ("DELETE", "/admin/ledger", 405)):
        answer = await client.request(method, path)
        assert answer.status_code == status
        assert answer.json()["status"] == status


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/admin/engines/drain"),
        ("POST", "/admin/engines/undrain"),
        ("PATCH", "/admin/tenants/chat"),
    ],
)
async def test_no_more_of_a_body_is_read_than_any_change_needs(method: str, path: str) -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while sent < 100 * BODY_BYTES_MAX:
            sent += 1024
            yield b"x" * 1024

    async with Process(token="hush").client() as client:
        headers = {"content-type": "application/json"}
        answer = await client.request(method, path, content=endless(), headers=headers)
    assert (answer.status_code, answer.json()["detail"]) == (413, TOO_LARGE)
    assert sent <= BODY_BYTES_MAX + 1024


async def test_settings_hide_secrets(client: httpx.AsyncClient) -> None:
    answer = await client.get("/admin/settings")
    settings = answer.json()
    assert settings["backends"] == ["http://a:1"]
    assert settings["tenant"]["queue_depth_max"] == 200
    assert settings["backend_api_key"] == "(set)"
    assert settings["admin_token"] is None
    assert "sk-secret" not in answer.text


async def test_the_token_guards_admin_and_nothing_else() -> None:
    process = Process(token="hush")
    paths = ("/admin/ledger", "/admin/engines", "/admin/settings", "/admin/openapi.json")
    bad: tuple[dict[str, Any], ...] = (
        {},
        {"authorization": "hush"},
        {"authorization": "Bearer hus"},
        {"authorization": "Basic hush"},
    )
    async with process.client() as client:
        for headers in (*bad, {"authorization": "Bearer hush2"}, {"authorization": b"Bearer \xe9"}):
            for path in paths:
                answer = await client.get(path, headers=headers)
                assert answer.status_code == 401, (path, headers)
                assert answer.headers["www-authenticate"] == "Bearer"
            answer = await client.post(
                "/admin/engines/drain", json={"engine_id": "http://a:1"}, headers=headers
            )
            assert answer.status_code == 401
        assert process.engine.state == "up"
        for path in paths:
            answer = await client.get(path, headers={"authorization": "bearer hush"})
            assert answer.status_code == 200
            assert "hush" not in answer.text
        for path in ("/livez", "/readyz", "/metrics"):
            assert (await client.get(path)).status_code == 200


async def test_metrics_in_the_format_asked_for(client: httpx.AsyncClient) -> None:
    plain = await client.get("/metrics")
    assert plain.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert "kvgate_queue_depth" in {family.name for family in parse_text(plain.text)}
    accept = "application/openmetrics-text; version=1.0.0, text/plain; version=0.0.4; q=0.5"
    answer = await client.get("/metrics", headers={"accept": accept})
    assert answer.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert "kvgate_queue_depth" in {family.name for family in parse_openmetrics(answer.text)}


@pytest.mark.parametrize(
    "accept", ["", "*/*", "application/openmetrics-text; version=x", "text/plain; version=", ";,;"]
)
async def test_odd_accept_headers_get_a_page(client: httpx.AsyncClient, accept: str) -> None:
    answer = await client.get("/metrics", headers={"accept": accept})
    assert answer.status_code == 200
    assert "kvgate_queue_depth" in answer.text


async def test_scrapers_share_a_page_for_half_a_second(client: httpx.AsyncClient, process: Process) -> None:
    async with anyio.create_task_group() as group:
        for _ in range(20):
            group.start_soon(client.get, "/metrics")
    assert process.views == 1
    process.clock.now_s += 0.4
    await client.get("/metrics")
    assert process.views == 1
    process.clock.now_s += 0.2
    await client.get("/metrics")
    assert process.views == 2


async def test_the_snapshot_is_taken_on_the_loop_and_the_page_made_elsewhere() -> None:
    threads: dict[str, int] = {}

    class Watched(Telemetry):
        def refresh(self) -> None:
            threads["snapshot"] = threading.get_ident()
            super().refresh()

    class Slow:
        def collect(self) -> list[Any]:
            threads["page"] = threading.get_ident()
            return []

    telemetry = Watched("p")
    telemetry.registry.register(Slow())
    threads.clear()
    await MetricsPage(telemetry, Hand()).render("")
    assert threads["snapshot"] == threading.get_ident()
    assert threads["page"] != threading.get_ident()


async def test_formats_made_up_by_clients_do_not_pile_up() -> None:
    page = MetricsPage(Telemetry("p"), Hand())
    for number in range(50):
        await page.render(f"application/openmetrics-text; version=1.0.{number}")
    assert len(page._pages) <= FORMATS_MAX
