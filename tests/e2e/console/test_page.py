"""The page by itself: hostile names, many tenants, several pools, what a forecast looks like, a lost connection.

What is shown is made up, so that it can be what a real pool is once a year. The server and the browser are real.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import msgspec
import pytest
from playwright.async_api import Browser, Route, expect
from starlette.applications import Starlette

from e2e.console.rig import looking
from e2e.console.seen import BROKEN, CONTRASTS, NAMELESS, OVERFLOW, SHARES
from kvgate.clock import SystemClock
from kvgate.console import Console
from kvgate.console.look import with_headline
from kvgate.console.snapshot import ChangeShown, Part, PolicyShown, PoolShown, RejectionShown, Snapshot
from kvgate.ports import Server, bind, started, url_of
from unit.console.made import away, engine, pool, tenant

pytestmark = pytest.mark.e2e

HOSTILE = "<img src=x onerror=alert(1)>"
SCRIPT = "</script><script>alert(2)</script>"
POLICY = PolicyShown("policy.yaml", "0123456789ab", "2030-01-31T12:00:00+00:00", None, "api_key", 3, "local")


def snapshot(*pools: PoolShown, **different: object) -> Snapshot:
    values: dict[str, object] = {
        "version": "0.1.0",
        "ready": True,
        "draining": False,
        "pools": tuple(with_headline(one) for one in pools),
        "changes": (),
        "rejections": (),
        "policy": POLICY,
    }
    return Snapshot(**values | different)  # type: ignore[arg-type]


@dataclass
class Shown:
    """A console that shows what it is told to."""

    now: Snapshot | None
    port: int = 0
    url: str = ""
    _serving: list[tuple[Console, Server, asyncio.Task[None]]] = field(default_factory=list)

    async def look(self) -> Snapshot | None:
        return self.now

    async def start(self) -> None:
        console = Console(Starlette(), self, None, SystemClock())
        sock = bind("127.0.0.1", self.port, "--admin-port")
        self.url, self.port = url_of(sock), sock.getsockname()[1]
        server = Server(console)
        self._serving.append((console, server, asyncio.create_task(server.serve([sock]))))
        await started(server)

    def let_look(self, viewers: int) -> None:
        self._serving[-1][0]._viewers._viewers_max = viewers

    async def stop(self) -> None:
        console, server, task = self._serving.pop()
        console.close()
        server.should_exit = True
        await task


@asynccontextmanager
async def showing(now: Snapshot) -> AsyncIterator[Shown]:
    shown = Shown(now)
    await shown.start()
    try:
        yield shown
    finally:
        await shown.stop()


async def test_hostile_names_are_text(browser: Browser) -> None:
    bad = engine(f"http://{HOSTILE}", state=HOSTILE, why=HOSTILE, kept_for=HOSTILE, accepting=False)
    one = pool(
        bad,
        engine("http://b", 95),
        name=HOSTILE,
        models=(SCRIPT,),
        aliases=(HOSTILE,),
        tenants=(tenant(HOSTILE, 3, priority=HOSTILE), tenant(SCRIPT, 2)),
    )
    refused = RejectionShown(
        HOSTILE, HOSTILE, HOSTILE, "rejected", 404, f"The model {HOSTILE} is unknown", 1, 2.0
    )
    change = ChangeShown(HOSTILE, None, {HOSTILE: SCRIPT}, 60.0)
    policy = PolicyShown(HOSTILE, SCRIPT, HOSTILE, HOSTILE, HOSTILE, 1, HOSTILE)
    told = snapshot(
        one,
        pool(name=SCRIPT),
        rejections=(refused,),
        changes=(change,),
        policy=policy,
        silent=(HOSTILE,),
        draining=True,
    )
    async with showing(told) as shown, looking(browser, shown.url) as looker:
        page = looker.page
        await expect(page.locator("#tenants-body tr")).to_have_count(2)
        await expect(page.locator("#headline-text")).to_contain_text(f"3 of {HOSTILE}, 2 of")
        await expect(page.locator("#tenants-body")).to_contain_text(SCRIPT)
        await expect(page.locator("#rejections-body")).to_contain_text(HOSTILE)
        await expect(page.locator("#banners")).to_contain_text(HOSTILE)
        assert await page.locator("img").count() == 1, "its own"
        assert await page.locator("script").count() == 1
        await looker.picture("hostile-1440-light")


@pytest.mark.parametrize("width", [390, 800, 930, 1440])
async def test_the_longest_names_widen_nothing(browser: Browser, width: int) -> None:
    longest = "N" * 128
    refused = RejectionShown("p", longest, "queue_full", "rejected", 429, "No room.", 1, 2.0)
    shown_pool = pool(
        engine("http://a", 95),
        tenants=(tenant(longest, 3), tenant("b", 2, priority="interactive", limit=0.3, guarantee=0.1)),
    )
    change = ChangeShown(longest, None, {"weight": "6.0"}, 60.0)
    told = snapshot(shown_pool, rejections=(refused,), changes=(change,))
    async with showing(told) as shown, looking(browser, shown.url, width=width) as looker:
        page = looker.page
        await expect(page.locator("#rejections-body")).to_contain_text(longest)
        assert await page.evaluate(OVERFLOW) <= 0
        word = page.locator("#tenants-body .word", has_text="interactive")
        lines = await word.evaluate("cell => cell.firstChild.getClientRects().length")
        assert lines == 1, "a word is not broken"


async def test_one_more_than_may_look_still_sees_something(browser: Browser) -> None:
    async with showing(snapshot(pool(engine("http://a", 95)))) as shown:
        shown.let_look(0)
        async with looking(browser, shown.url) as looker:
            looker.expected = ("503",)
            await expect(looker.page.locator(".engine")).to_have_count(1)
            await expect(looker.page.locator("#link")).to_have_attribute("data-state", "live")
            shown.let_look(1)
            await expect(looker.page.locator("#link")).to_have_attribute("data-state", "live")


async def test_a_fragment_that_is_no_pools_is_none(browser: Browser) -> None:
    async with (
        showing(snapshot(pool(engine("http://a", 95)))) as shown,
        looking(browser, shown.url) as looker,
    ):
        await looker.page.goto(f"{shown.url}/console/#pool=100%")
        await looker.page.reload()
        await expect(looker.page.locator(".engine")).to_have_count(1)


async def test_many_tenants_are_a_page_that_can_be_sorted_and_searched(browser: Browser) -> None:
    tenants = tuple(
        tenant(f"team-{n:03}", n % 7, oldest_wait_s=float(n % 7), service=n * 1000, blocks=n % 3)
        for n in range(500)
    )
    told = snapshot(pool(engine("http://a", 90), tenants=tenants, tenants_more=9500))
    async with showing(told) as shown, looking(browser, shown.url) as looker:
        page = looker.page
        rows = page.locator("#tenants-body tr")
        await expect(rows).to_have_count(50)
        await expect(page.locator("#tenants-more")).to_have_text(
            "and 450 more; 9,500 more in the policy, idle"
        )
        await page.locator("#tenants-head button", has_text="Service").click()
        await expect(rows.first).to_contain_text("team-499")
        await page.locator("#tenants-head button", has_text="Service").click()
        await expect(rows.first).to_contain_text("team-000")
        await page.get_by_label("Search").fill("Team-12")
        await expect(rows).to_have_count(10)
        await page.get_by_label("Search").fill("nobody")
        await expect(rows).to_have_count(0)
        await expect(page.locator("#tenants-more")).to_contain_text("No tenant of that name")
        looker.expected = (
            "404",
        )  # there is no admin port behind this one, which could be asked for the idle


async def test_several_pools_have_a_switch(browser: Browser) -> None:
    first = pool(engine("http://a", 90), name="llama-70b", tenants=(tenant("acme", 4),))
    second = pool(engine("http://b", 10), engine("http://c"), name="qwen 7b", tenants=(tenant("zeta"),))
    refused = RejectionShown("qwen 7b", "zeta", "queue_full", "rejected_queue_full", 429, "no room", 3, 2.0)
    told = snapshot(first, second, rejections=(refused,))
    async with showing(told) as shown, looking(browser, shown.url) as looker:
        page = looker.page
        await expect(page.locator("#pools button")).to_have_text(["llama-70b (4)", "qwen 7b"])
        await expect(page.locator(".engine")).to_have_count(1)
        await expect(page.locator("#rejections-none")).to_be_visible()
        await page.get_by_role("button", name="qwen 7b").click()
        await expect(page.locator(".engine")).to_have_count(2)
        await expect(page.locator("#headline-text")).to_contain_text("Nobody waits")
        await expect(page.locator("#rejections-body tr")).to_have_count(1)
        assert page.url.endswith("#pool=qwen%207b")
        await page.reload()
        await expect(page.get_by_role("button", name="qwen 7b")).to_have_attribute("aria-pressed", "true")
        shown.now = snapshot(first)
        await expect(page.locator("#pools")).to_be_hidden()
        await expect(page.locator("#headline-text")).to_contain_text("acme")


@pytest.mark.parametrize("width", [390, 1440])
async def test_fill_label_and_ticks_are_of_one_whole(browser: Browser, width: int) -> None:
    """Of all engines, also of one that takes no work; and bars end where the others do."""
    holds = tenant(
        "acme",
        2,
        blocks=30,
        guarantee=0.3,
        blocks_guaranteed=60,
        limit=0.4,
        blocks_limit=80,
        waits_for="room",
    )
    held = msgspec.structs.replace(holds, below_guarantee=True)
    after = msgspec.structs.replace(tenant("night", 1), after=("interactive", "standard"))
    told = snapshot(
        pool(engine("http://a", 95), away("http://b:8000", "drained"), tenants=(held, after)),
        rejections=(RejectionShown("p", "acme", "queue_full", "rejected", 429, "No room.", 1, 2.0),),
    )
    async with showing(told) as shown, looking(browser, shown.url, width=width) as looker:
        page = looker.page
        row = page.locator("#tenants-body tr").first
        await expect(row).to_contain_text("15 % · guarantee 30 % · limit 40 % · below its guarantee")
        parts = await row.locator(".bar").evaluate(SHARES)
        assert parts == pytest.approx([0.15, 0.3, 0.4], abs=0.015)
        await expect(row.locator(".share")).to_have_attribute(
            "title", "30 of 200 KV blocks of all engines, guarantee 60, limit 80"
        )
        await expect(page.get_by_role("button", name="Share of all KV cache")).to_have_attribute(
            "title", re.compile("^Of the KV cache of all known engines of the pool, whether they accept")
        )
        await expect(page.locator("#tenants-body tr").last).to_contain_text(
            "for room, after interactive and standard"
        )
        await expect(page.locator(".engine .chip")).to_have_text(["accepting", "drained"])
        ends = await page.locator(".engine .bars").evaluate_all(
            "all => all.map((one) => one.getBoundingClientRect().right)"
        )
        assert len(set(ends)) == 1
        assert await page.evaluate(BROKEN) == [], "a number and its unit stay together"
        assert await page.evaluate(OVERFLOW) <= 0
        names = await page.locator("#rejections-body td").evaluate_all(
            "all => all.map((one) => one.dataset.name)"
        )
        assert names == ["Last", "Tenant", "Reason", "How often, since start", "Told"]
        await expect(page.locator("#link")).to_have_attribute("title", re.compile(r"^data of \d+ s ago$"))


async def test_the_last_engine_is_drained_by_a_second_word_and_comes_back_by_one(browser: Browser) -> None:
    one, two = engine("http://a", 10), engine("http://b", 10)
    async with showing(snapshot(pool(one, two))) as shown, looking(browser, shown.url) as looker:
        page, asked = looker.page, list[str]()

        async def answer(route: Route) -> None:
            asked.append(route.request.url.rpartition("/")[2])
            await route.fulfill(json={"engines": [], "everywhere": True})

        await page.route("**/admin/engines/*", answer)
        await page.route(
            "**/session",
            lambda route: route.fulfill(json={"needs_login": False, "may_look": True, "may_change": True}),
        )
        await page.reload()
        await page.get_by_role("button", name="Drain a").click()
        await expect(page.locator("#drain-do")).to_have_text("Drain")
        await expect(page.locator("#drain-last")).to_be_hidden()
        await page.keyboard.press("Escape")
        shown.now = snapshot(pool(one, away("http://b", "draining")))
        await page.get_by_role("button", name="Undrain b").click()
        await expect(page.locator("#drain-dialog")).to_be_hidden()
        await page.get_by_role("button", name="Drain a").click()
        await expect(page.locator("#drain-last")).to_contain_text("the last engine that accepts work")
        assert asked == ["undrain"]
        await page.locator("#drain-do").click()
        await expect(page.locator("#drain-dialog")).to_be_hidden()
        assert asked == ["undrain", "drain"]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
async def test_all_states_of_engines_and_modes(browser: Browser, width: int, dark: bool) -> None:
    engines = (
        engine(
            "http://gpu-a.example.internal:8000",
            parts=(Part("expected", 55), Part("at_risk", 30)),
            blocks_in_use=40,
        ),
        engine(
            "http://gpu-b:8000",
            60,
            blocks_open=80,
            trust=0.8,
            blocks_in_use=58,
            kept_for="0123456789abcdef-12",
            seqs_reserved=7,
        ),
        away("http://gpu-c:8000", "draining", "an operator told kvgate to send it no new work"),
        away("http://gpu-d:8000", "down", "connection refused"),
        away("http://gpu-e:8000#1", "error", "its metrics have no vllm:cache_config_info"),
        engine("http://gpu-f:8000", 20, state="trial", foreign=True, waiting=12, preemptions=3),
    )
    tenants = (
        tenant(
            "acme", 14, limit=0.4, blocks=228, blocks_limit=240, waits_for="its own limit", oldest_wait_s=75.0
        ),
        tenant(
            "a-team-with-a-name-that-is-as-long-as-names-may-be-and-has-no-place-to-break-it-123456789",
            1,
            mode="observe",
        ),
        tenant(
            "partition", guarantee=0.3, blocks_guaranteed=180, borrow=False, blocks=72, service=12_345_678
        ),
    )
    shown_pool = pool(*engines, tenants=tenants, ledger_mode="local", processes=3, enforced=2, observed=1)
    change = ChangeShown("acme", None, {"weight": "6.0", "limit": "0.4"}, 3100.0)
    refused = RejectionShown(
        "p", "acme", "queue_full", "rejected_queue_full", 429, "There is no room. " * 12, 1234, 7.0
    )
    told = snapshot(shown_pool, changes=(change,), rejections=(refused,), policy=POLICY)
    async with showing(told) as shown, looking(browser, shown.url, width=width, dark=dark) as looker:
        page = looker.page
        await expect(page.locator(".engine")).to_have_count(6)
        await expect(page.locator("#banners")).to_contain_text("Mode observe for 1 of the tenants")
        await expect(page.locator("#headline-notes")).to_contain_text("mode local")
        await expect(page.locator(".engine .bar").first).to_have_attribute(
            "aria-label", "KV cache: 55 % reserved, 30 % set aside for longer answers, 40 % in use"
        )
        await expect(page.locator(".engine button:visible")).to_have_count(0)
        await looker.picture(f"states-{width}-{'dark' if dark else 'light'}")
        assert await page.evaluate(OVERFLOW) <= 0
        assert await page.evaluate(CONTRASTS) == []
        assert await page.evaluate(NAMELESS) == []


async def test_data_that_gets_old_and_a_lost_connection_are_said(browser: Browser) -> None:
    async with showing(snapshot(pool(engine()))) as shown, looking(browser, shown.url) as looker:
        looker.expected = ("ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED_ENCODING")
        link = looker.page.locator("#link-text")
        await expect(link).to_have_text("page live")
        shown.now = None
        await expect(link).to_have_text(re.compile(r"^no news, data is \d+ s old$"))
        await shown.stop()
        await expect(link).to_have_text(re.compile(r"^connection lost, data is \d+ s old$"))
        await expect(looker.page.locator("#headline-text")).to_be_visible()
        shown.now = snapshot(pool(engine()))
        await shown.start()
        await expect(link).to_have_text("page live")
