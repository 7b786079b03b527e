"""The admin port of a group: all are asked, one answer is given, and one that is silent holds up nobody."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from kvgate.admin.bounded import BODY_BYTES_MAX
from kvgate.workers.drained import DrainedEngines
from kvgate.workers.front import PROBE_S_MAX, Front, routes
from support.virtual_loop import run_virtual

PAGE = """# TYPE kvgate_grants_total counter
kvgate_grants_total{{pool="p",tenant="t"}} {grants}
# TYPE process_start_time_seconds gauge
process_start_time_seconds {started}
"""


class FakeWorker:
    """Answers as a worker does; `down` is one that refuses, `stuck` one that never does."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.down = False
        self.stuck = False
        self.status = 200
        self.parts: dict[str, str] = {}
        self.page = PAGE.format(grants=1, started=1)
        self.seen: list[httpx.Request] = []

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        if self.stuck:
            await anyio.sleep_forever()
        if self.down:
            raise httpx.ConnectError("refused", request=request)
        self.seen.append(request)
        if request.url.path == "/metrics":
            return httpx.Response(200, text=self.page)
        body = {"from": self.name, **self.parts}
        return httpx.Response(
            self.status, json=body, headers={"x-internal": "1", "cache-control": "no-store"}
        )


class Group:
    def __init__(self) -> None:
        self.workers = {name: FakeWorker(name) for name in ("worker 1", "worker 2")}
        self.drained = DrainedEngines()
        clients = {
            name: httpx.AsyncClient(transport=httpx.MockTransport(worker), base_url="http://w")
            for name, worker in self.workers.items()
        }
        app = routes(Front(clients, self.drained))
        self.http = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://admin")

    @property
    def first(self) -> FakeWorker:
        return self.workers["worker 1"]

    @property
    def second(self) -> FakeWorker:
        return self.workers["worker 2"]


@pytest.fixture
def group() -> Group:
    return Group()


async def told(group: Group, path: str) -> tuple[int, Any]:
    answer = await group.http.get(path)
    return answer.status_code, answer.json()


async def test_alive_while_one_is(group: Group) -> None:
    assert await told(group, "/livez") == (
        200,
        {"alive": True, "workers": {"worker 1": True, "worker 2": True}},
    )
    group.first.down = True
    assert await told(group, "/livez") == (
        200,
        {"alive": True, "workers": {"worker 1": False, "worker 2": True}},
    )
    group.second.down = True
    assert (await told(group, "/livez"))[0] == 503


async def test_ready_when_all_are_that_answer(group: Group) -> None:
    assert (await told(group, "/readyz"))[0] == 200
    group.first.down = True
    status, body = await told(group, "/readyz")
    assert (status, body["workers"]) == (200, {"worker 1": "no answer", "worker 2": {"from": "worker 2"}})
    group.second.status = 503
    assert (await told(group, "/readyz"))[0] == 503
    group.second.down = True
    assert (await told(group, "/readyz"))[0] == 503


async def test_a_worker_that_joins_the_others_makes_them_no_less_ready(group: Group) -> None:
    group.second.status, group.second.parts = 503, {"joining": "yes"}
    status, body = await told(group, "/readyz")
    assert (status, body["workers"]["worker 2"]["joining"]) == (200, "yes")
    group.first.down = True
    assert (await told(group, "/readyz"))[0] == 503, "nobody is there to serve"


def test_one_that_is_stuck_holds_up_no_probe() -> None:
    async def probe() -> tuple[int, int, float]:
        group = Group()
        group.first.stuck = True
        begun_s = asyncio.get_running_loop().time()
        alive, ready = (await told(group, "/livez"))[0], (await told(group, "/readyz"))[0]
        took_s = asyncio.get_running_loop().time() - begun_s
        assert (await group.http.get("/admin/ledger")).json() == {"from": "worker 2"}
        return alive, ready, took_s

    alive, ready, took_s = run_virtual(probe())
    assert (alive, ready) == (200, 200)
    assert took_s == pytest.approx(2 * PROBE_S_MAX)


async def test_what_reads_goes_to_the_first_that_answers(group: Group) -> None:
    headers = {"authorization": "Bearer x", "x-other": "1"}
    answer = await group.http.get("/admin/ledger?a=b", headers=headers)
    assert answer.json() == {"from": "worker 1"}
    assert answer.headers["cache-control"] == "no-store"
    assert "x-internal" not in answer.headers
    [seen] = group.first.seen
    assert (seen.url.path, seen.url.query) == ("/admin/ledger", b"a=b")
    assert seen.headers["authorization"] == "Bearer x"
    assert "x-other" not in seen.headers
    group.first.down = True
    assert (await group.http.get("/admin/ledger")).json() == {"from": "worker 2"}
    group.second.down = True
    assert (await group.http.get("/admin/ledger")).status_code == 503


async def test_what_changes_something_goes_to_all_and_is_kept_for_the_next(group: Group) -> None:
    body = {"engine_id": "http://a:1"}
    answer = await group.http.post("/admin/engines/drain", json=body)
    assert answer.status_code == 200
    assert [len(worker.seen) for worker in group.workers.values()] == [1, 1]
    assert group.drained.read() == {"http://a:1"}
    await group.http.post("/admin/engines/undrain", json=body)
    assert group.drained.read() == frozenset()
    await group.http.post("/admin/engines/drain?by=night-shift", json=body)
    assert group.drained.read() == {"http://a:1"}, "a query changes nothing"


async def test_a_change_of_a_tenant_goes_to_one_worker_which_tells_the_ledger(group: Group) -> None:
    forged = {"x-kvgate-asked-by": "someone else"}
    answer = await group.http.patch("/admin/tenants/chat", json={"weight": 6}, headers=forged)
    assert answer.status_code == 200
    await group.http.delete("/admin/tenants/chat?pool=p")
    assert [seen.method for seen in group.first.seen] == ["PATCH", "DELETE"]
    assert group.first.seen[0].content == b'{"weight":6}'
    assert group.first.seen[1].url.query == b"pool=p"
    assert group.first.seen[0].headers["x-kvgate-asked-by"] == "127.0.0.1"
    assert group.second.seen == []
    group.first.down = True
    await group.http.patch("/admin/tenants/chat", json={"weight": 6})
    assert [seen.method for seen in group.second.seen] == ["PATCH"]


async def test_what_one_refuses_or_does_not_hear_is_not_done(group: Group) -> None:
    body = {"engine_id": "http://a:1"}
    group.second.status = 401
    assert (await group.http.post("/admin/engines/drain", json=body)).status_code == 401
    group.second.down = True
    answer = await group.http.post("/admin/engines/drain", json=body)
    assert answer.status_code == 503
    assert "Not done by worker 2" in answer.json()["detail"]
    assert group.drained.read() == frozenset()


async def test_bounds_and_unknown_paths(group: Group) -> None:
    answer = await group.http.post("/admin/engines/drain", content=b"x" * (BODY_BYTES_MAX + 1))
    assert answer.status_code == 413
    assert (await group.http.get("/elsewhere")).status_code == 404
    assert not group.first.seen


async def grants(group: Group, accept: str = "") -> float:
    page = (await group.http.get("/metrics", headers={"accept": accept} if accept else {})).text
    [family] = [f for f in text_string_to_metric_families(page) if f.name == "kvgate_grants"]
    return family.samples[0].value


async def test_metrics_are_added_up_and_never_go_back(group: Group) -> None:
    assert await grants(group) == 2
    group.first.page = PAGE.format(grants=10, started=1)
    assert await grants(group) == 11
    group.first.down = True
    assert await grants(group) == 11
    group.first.down = False
    group.first.page = PAGE.format(grants=2, started=2)
    assert await grants(group) == 13


async def test_metrics_in_the_format_asked_for(group: Group) -> None:
    answer = await group.http.get(
        "/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"}
    )
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.text.endswith("# EOF\n")
