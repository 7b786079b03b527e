"""The console's paths: who may look, who may change, what is served, and what goes on to `/admin`."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio
import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from kvgate.console import Console
from kvgate.console.access import HEADER, Access
from kvgate.console.attempts import BURST
from kvgate.console.files import read_files
from kvgate.console.live import EACH_S, VIEWERS_MAX
from kvgate.console.session import COOKIE, SESSION_S
from kvgate.console.snapshot import PolicyShown, Snapshot
from support.virtual_loop import LoopClock, run_virtual
from unit.console.made import engine, pool

if TYPE_CHECKING:
    from starlette.types import Message

TOKEN = "hush-hush"
OURS = {HEADER: "1"}
POLICY = PolicyShown("p.yaml", "abc", "2030-01-31T12:00:00+00:00", None, "api_key", 2, "local")
DRAIN = "/console/admin/engines/drain"


@dataclass
class Scripted:
    """A view that says what it is told to, and counts who looks."""

    looks: int = 0
    away: bool = False
    broken: bool = False

    async def look(self) -> Snapshot | None:
        self.looks += 1
        if self.broken:
            raise RuntimeError("broken")
        if self.away:
            return None
        shown = pool(engine(), queued=self.looks)
        return Snapshot(
            "0.1.0", ready=True, draining=False, pools=(shown,), changes=(), rejections=(), policy=POLICY
        )


@dataclass
class Behind:
    """The admin port, as far as it is asked through the console."""

    asked: list[tuple[str, str, dict[str, str], bytes]] = field(default_factory=list)

    def app(self) -> Starlette:
        return Starlette(
            routes=[Route("/{path:path}", self.answer, methods=["GET", "POST", "PATCH", "DELETE"])]
        )

    async def answer(self, request: Request) -> Response:
        body = await request.body()
        self.asked.append((request.method, request.url.path, dict(request.headers), body))
        return JSONResponse({"path": request.url.path, "query": request.url.query})


class World:
    def __init__(self, token: str | None = TOKEN) -> None:
        self.behind, self.view = Behind(), Scripted()
        self.now = 1_900_000_000.0
        access = Access(token, lambda: self.now)
        self.console = Console(self.behind.app(), self.view, token, LoopClock(), access)

    def client(self, base_url: str = "http://admin") -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=httpx.ASGITransport(self.console), base_url=base_url)

    @contextlib.asynccontextmanager
    async def logged_in(self) -> Any:
        async with self.client() as client:
            answer = await client.post("/console/session", json={"token": TOKEN}, headers=OURS)
            assert answer.status_code == 200
            yield client


# Who may look


async def test_without_a_token_everybody_looks_and_nobody_changes() -> None:
    world = World(token=None)
    async with world.client() as client:
        told = (await client.get("/console/session")).json()
        assert told == {"needs_login": False, "may_look": True, "may_change": False}
        assert (await client.get("/console/snapshot")).status_code == 200
        assert (await client.get("/console/admin/policy")).json()["path"] == "/admin/policy"
        for headers in ({}, OURS, {"authorization": "Bearer "}, {"authorization": f"Bearer {TOKEN}"}):
            for method in ("POST", "PATCH", "DELETE", "PUT"):
                answer = await client.request(method, DRAIN, json={}, headers=headers)
                assert answer.status_code == 403
                assert "KVGATE_ADMIN_TOKEN" in answer.json()["detail"]
        assert (await client.post("/console/session", json={"token": ""}, headers=OURS)).status_code == 409
    assert [asked[0] for asked in world.behind.asked] == ["GET"]


async def test_with_a_token_nobody_looks_without_it() -> None:
    world = World()
    async with world.client() as client:
        assert (await client.get("/console/session")).json() == {
            "needs_login": True,
            "may_look": False,
            "may_change": False,
        }
        for headers in (
            {},
            {"authorization": "Bearer x"},
            {"authorization": f"Basic {TOKEN}"},
            {"cookie": f"{COOKIE}=1.2.3"},
        ):
            for path in ("/console/snapshot", "/console/events", "/console/admin/policy"):
                answer = await client.get(path, headers=headers)
                assert answer.status_code == 401, path
                assert answer.headers["content-type"] == "application/problem+json"
            assert (await client.post(DRAIN, json={}, headers=headers | OURS)).status_code == 401
        for path in ("/console/", "/console/main.js", "/console/style.css"):
            assert (await client.get(path)).status_code == 200, "the page itself is no secret"
    assert world.behind.asked == []
    assert world.view.looks == 0


async def test_the_token_itself_does_as_well() -> None:
    world = World()
    bearer = {"authorization": f"Bearer {TOKEN}"}
    async with world.client() as client:
        assert (await client.get("/console/snapshot", headers=bearer)).status_code == 200
        assert (await client.post(DRAIN, json={}, headers=bearer)).status_code == 200


async def test_a_login_looks_and_changes_until_it_ends() -> None:
    world = World()
    async with world.logged_in() as client:
        assert (await client.get("/console/session")).json()["may_change"] is True
        assert (await client.get("/console/snapshot")).status_code == 200
        answer = await client.post(DRAIN, json={"engine_id": "http://a"}, headers=OURS)
        assert answer.status_code == 200
        method, path, headers, body = world.behind.asked[-1]
        assert (method, path, json.loads(body)) == ("POST", "/admin/engines/drain", {"engine_id": "http://a"})
        assert headers["authorization"] == f"Bearer {TOKEN}"
        assert "cookie" not in headers
        world.now += SESSION_S - 1
        assert (await client.get("/console/snapshot")).status_code == 200
        world.now += 1
        assert (await client.get("/console/snapshot")).status_code == 401
        assert (await client.post(DRAIN, json={}, headers=OURS)).status_code == 401


async def test_a_query_goes_on() -> None:
    world = World()
    async with world.logged_in() as client:
        told = (await client.delete("/console/admin/tenants/chat?pool=a%20b", headers=OURS)).json()
    assert told == {"path": "/admin/tenants/chat", "query": "pool=a%20b"}


@pytest.mark.parametrize(
    "headers", [{}, {**OURS, "sec-fetch-site": "cross-site"}, {**OURS, "sec-fetch-site": "same-site"}]
)
async def test_a_change_that_a_foreign_page_could_send_is_refused(headers: dict[str, str]) -> None:
    world = World()
    async with world.logged_in() as client:
        for method in ("POST", "PATCH", "DELETE"):
            assert (await client.request(method, DRAIN, json={}, headers=headers)).status_code == 403
        assert (await client.delete("/console/session", headers=headers)).status_code == 403
        assert (
            await client.post("/console/session", json={"token": TOKEN}, headers=headers)
        ).status_code == 403
    assert world.behind.asked == []


async def test_a_foreign_credential_is_not_passed_on() -> None:
    world = World(token=None)
    async with world.client() as client:
        await client.get("/console/admin/policy", headers={"authorization": "Bearer x", "cookie": "a=b"})
    assert not {"authorization", "cookie"} & world.behind.asked[-1][2].keys()


async def test_only_admin_is_reached_through_it() -> None:
    world = World()
    async with world.logged_in() as client:
        for path in ("/console/metrics", "/console/livez", "/console/admin", "/console/%2e%2e/metrics"):
            assert (await client.get(path)).status_code == 404
        assert world.behind.asked == []
        await client.get("/console/admin/%2e%2e%2fmetrics")
        assert world.behind.asked[-1][1] == "/admin/../metrics", "which is no path of the admin port"


async def test_what_no_route_takes_is_told_like_all_the_rest() -> None:
    world = World()
    async with world.client() as client:
        for method, path, status in (
            ("GET", "/console/nothing", 404),
            ("GET", "/console/a/b", 404),
            ("PUT", "/console/session", 405),
            ("POST", "/console/events", 405),
        ):
            answer = await client.request(method, path)
            assert (answer.status_code, answer.json()["status"]) == (status, status)
            assert answer.headers["content-type"] == "application/problem+json"
            assert answer.headers["x-frame-options"] == "DENY"


async def test_cookies_of_other_servers_of_the_host_do_not_end_a_session() -> None:
    world = World()
    async with world.logged_in() as client:
        ours = f"{COOKIE}={client.cookies[COOKIE]}"
        client.cookies.clear()
        for cookies in (
            f'p={{"a":1,"b":"x y"}}; {ours}',
            f"a[b]=1; {ours}",
            f"{COOKIE}=old; {ours}; {COOKIE}=x",
        ):
            assert (await client.get("/console/snapshot", headers={"cookie": cookies})).status_code == 200


# Logging in


async def test_the_cookie_of_a_login() -> None:
    world = World()
    async with world.client() as client:
        answer = await client.post("/console/session", json={"token": TOKEN}, headers=OURS)
        cookie = answer.headers["set-cookie"]
        assert {"HttpOnly", "SameSite=Strict", "Path=/console"} <= {*cookie.split("; ")}
        assert "Secure" not in cookie
        assert TOKEN not in cookie
        tls = await client.post(
            "/console/session", json={"token": TOKEN}, headers={**OURS, "x-forwarded-proto": "https"}
        )
        assert tls.headers["set-cookie"].endswith("Secure")
        gone = await client.delete("/console/session", headers=OURS)
        assert "Max-Age=0" in gone.headers["set-cookie"]
    async with world.client("https://admin") as client:
        answer = await client.post("/console/session", json={"token": TOKEN}, headers=OURS)
        assert answer.headers["set-cookie"].endswith("Secure")


async def test_two_logins_are_two_sessions() -> None:
    world = World()
    async with world.client() as client:
        cookies = {
            (await client.post("/console/session", json={"token": TOKEN}, headers=OURS)).headers["set-cookie"]
            for _ in range(3)
        }
    assert len(cookies) == 3


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'{"token": 1}',
        b'{"token": "hush"}',
        b'{"tokens": "hush-hush"}',
        b'{"token": "' + b"x" * 5000 + b'"}',
    ],
)
async def test_a_wrong_token_is_no_login(body: bytes) -> None:
    world = World()
    async with world.client() as client:
        answer = await client.post("/console/session", content=body, headers=OURS)
        assert answer.status_code == 403
        assert "set-cookie" not in answer.headers


async def test_tries_are_bounded_even_when_all_come_at_once() -> None:
    world = World()
    answers: list[httpx.Response] = []
    async with world.client() as client:

        async def attempt() -> None:
            answers.append(await client.post("/console/session", json={"token": "no"}, headers=OURS))

        async with anyio.create_task_group() as tasks:
            for _ in range(BURST * 4):
                tasks.start_soon(attempt)
        assert sorted(answer.status_code for answer in answers) == [403] * BURST + [429] * BURST * 3
        right = await client.post("/console/session", json={"token": TOKEN}, headers=OURS)
        assert right.status_code == 429
        assert int(right.headers["retry-after"]) >= 1


# What is served


async def test_what_is_not_the_consoles_goes_on_untouched() -> None:
    world = World()
    async with world.client() as client:
        for path in ("/metrics", "/admin/policy", "/consoles", "/"):
            await client.get(path, headers={"authorization": "Bearer x"})
            assert world.behind.asked[-1][1] == path
            assert world.behind.asked[-1][2]["authorization"] == "Bearer x"


async def test_the_page_and_its_parts() -> None:
    world = World()
    async with world.client() as client:
        assert (await client.get("/console")).headers["location"] == "/console/"
        page = await client.get("/console/")
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        policy = page.headers["content-security-policy"]
        assert policy.startswith("default-src 'self'; ")
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        again = await client.get("/console/", headers={"if-none-match": page.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        for name in ("nothing.js", "%2e%2e%2fapp.py", "page", "page/main.js"):
            assert (await client.get(f"/console/{name}")).status_code == 404, name


HANDLER = re.compile(r"<[^>]*\s(on[a-z]+|style)\s*=", re.IGNORECASE)
MARKUP = ("innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval(", "new Function")


def test_nothing_comes_from_elsewhere_and_nothing_is_inline() -> None:
    text = {name: file.body.decode() for name, file in read_files().items()}
    assert {"index.html", "style.css", "main.js", "icon.svg"} <= text.keys()
    links = re.findall(r"(?:src=|href=|url\(|from |import )[\"']?([^\"')]+)", "".join(text.values()))
    assert len(links) > 10
    assert not [link for link in links if ":" in link or link.startswith("//")]
    assert "<style" not in text["index.html"]
    assert not HANDLER.search(text["index.html"])
    assert re.findall(r"<script[^>]*>(.*?)</script>", text["index.html"]) == [""]
    assert not [(name, bad) for name, body in text.items() for bad in MARKUP if bad in body]


# The stream


async def events_of(console: Console, count: int, headers: dict[str, str] | None = None) -> list[str]:
    """The first events of a stream, by a client that then leaves."""
    told: list[str] = []
    gone = anyio.Event()

    async def receive() -> Message:
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            told.append(message["body"].decode())
            if len(told) > count:
                gone.set()

    raw = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
    scope = {"type": "http", "method": "GET", "path": "/console/events", "headers": raw, "query_string": b""}
    await console({**scope, "scheme": "http", "server": ("a", 1), "http_version": "1.1"}, receive, send)
    return told[1:]


def shown(event: str) -> int:
    """How often was looked when this was made."""
    name, data = event.split("\n")[:2]
    assert name == "event: snapshot"
    return int(json.loads(data.removeprefix("data: "))["pools"][0]["queued"])


def test_a_snapshot_a_second_for_all_who_look() -> None:
    async def main() -> None:
        world = World(token=None)
        told: list[list[str]] = []

        async def view() -> None:
            told.append(await events_of(world.console, 5))

        async with anyio.create_task_group() as tasks:
            for _ in range(VIEWERS_MAX):
                tasks.start_soon(view)
        assert world.view.looks == 5, "once each second, for however many"
        assert [shown(event) for event in told[0][:5]] == [1, 2, 3, 4, 5]
        assert anyio.current_time() == pytest.approx(4 * EACH_S)

    run_virtual(main())


def test_one_who_does_not_read_gets_the_newest_and_holds_nobody_up() -> None:
    async def main() -> None:
        world = World(token=None)
        slow: list[int] = []
        gone = anyio.Event()

        async def receive() -> Message:
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            if b"data" in message.get("body", b""):
                slow.append(shown(message["body"].decode()))
                await anyio.sleep(5.5)

        scope = {
            "type": "http",
            "method": "GET",
            "path": "/console/events",
            "headers": [],
            "query_string": b"",
        }
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(world.console, {**scope, "server": ("a", 1)}, receive, send)
            assert len(await events_of(world.console, 14)) >= 14
            gone.set()
        assert len(slow) == 3
        assert all(later - earlier >= 5 for earlier, later in itertools.pairwise(slow)), slow

    run_virtual(main())


def test_viewers_are_bounded_and_counted_out() -> None:
    async def main() -> None:
        world = World(token=None)
        async with anyio.create_task_group() as tasks:
            for _ in range(VIEWERS_MAX):
                tasks.start_soon(events_of, world.console, 3)
            await anyio.sleep(0.5)
            async with world.client() as client:
                answer = await client.get("/console/events")
                assert (answer.status_code, answer.headers["retry-after"]) == (503, "10")
        assert len(await events_of(world.console, 2)) >= 2

    run_virtual(main())


async def test_a_look_at_the_head_of_a_stream_is_no_viewer() -> None:
    world = World(token=None)
    async with world.client() as client:
        answer = await client.head("/console/events")
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert world.view.looks == 0


def test_a_stream_ends_with_its_session_and_with_the_process() -> None:
    async def main() -> None:
        world = World()
        bearer = {"authorization": f"Bearer {TOKEN}"}
        session = world.console._access.session("n")
        async with anyio.create_task_group() as tasks:

            async def view() -> None:
                assert len(await events_of(world.console, 1000, {"cookie": f"{COOKIE}={session}"})) < 10

            tasks.start_soon(view)
            await anyio.sleep(3.5)
            world.now += SESSION_S
        assert anyio.current_time() < 5
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(events_of, world.console, 1000, bearer)
            await anyio.sleep(2.5)
            before = anyio.current_time()
            world.console.close()
        assert anyio.current_time() == before, "at once"

    run_virtual(main())


def test_when_nobody_can_tell_the_stream_goes_on() -> None:
    async def main() -> None:
        world = World(token=None)
        world.view.away = True
        told = await events_of(world.console, 3)
        assert {event.split("\n")[0] for event in told if event} == {"event: silent"}
        async with world.client() as client:
            assert (await client.get("/console/snapshot")).status_code == 503

    run_virtual(main())


def test_a_bug_in_a_view_ends_no_stream(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        world = World(token=None)
        world.view.broken = True
        assert len(await events_of(world.console, 3)) >= 3
        assert "the console has no snapshot" in caplog.text

    run_virtual(main())
