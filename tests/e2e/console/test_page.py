"""The page by itself: hostile names, many tenants, several pools, what a forecast looks like, a lost connection.

What is shown is made up, so that it can be what a real pool is once a year. The server and the browser are real.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from playwright.async_api import Browser, expect
from starlette.applications import Starlette

from e2e.console.rig import looking
from e2e.console.seen import CONTRASTS, NAMELESS, OVERFLOW
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
        await expect(page.locator("#headline-text")).to_contain_text(f"3 of them tenant {HOSTILE}'s")
        await expect(page.locator("#tenants-body")).to_contain_text(SCRIPT)
        await expect(page.locator("#rejections-body")).to_contain_text(HOSTILE)
        await expect(page.locator("#banners")).to_contain_text(HOSTILE)
        assert await page.locator("img").count() == 1, "its own"
        assert await page.locator("script").count() == 1
        await looker.picture("hostile-1440-light")


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
        away("http://gpu-c:8000", "draining", "told to give it no new work"),
        away("http://gpu-d:8000", "down", "connection refused"),
        away("http://gpu-e:8000#1", "error", "its metrics have no vllm:cache_config_info"),
        engine("http://gpu-f:8000", 20, state="trial", foreign=True, waiting=12, preemptions=3),
    )
    tenants = (
        tenant(
            "acme", 14, limit=0.4, blocks=38, blocks_limit=40, waits_for="its own limit", oldest_wait_s=75.0
        ),
        tenant(
            "a-team-with-a-name-that-is-as-long-as-names-may-be-and-has-no-place-to-break-it-123456789",
            1,
            mode="observe",
        ),
        tenant("partition", guarantee=0.3, blocks_guaranteed=30, borrow=False, blocks=12, service=12_345_678),
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
            "aria-label", "KV cache: 55 % expected, 30 % set aside for longer answers, 40 % in use"
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
        await expect(link).to_have_text("live")
        shown.now = None
        await expect(link).to_have_text(re.compile(r"^no news, data is \d+ s old$"))
        await shown.stop()
        await expect(link).to_have_text(re.compile(r"^connection lost, data is \d+ s old$"))
        await expect(looker.page.locator("#headline-text")).to_be_visible()
        shown.now = snapshot(pool(engine()))
        await shown.start()
        await expect(link).to_have_text("live")
