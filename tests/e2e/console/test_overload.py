"""Three tenants ask for more than fits: what the console says, shows, and lets an operator do."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
from playwright.async_api import Browser, expect

from e2e.console.rig import House, Looker, looking, served
from e2e.console.seen import CONTRASTS, NAMELESS, OVERFLOW
from e2e.shared.rig import until

pytestmark = pytest.mark.e2e

TENANTS: dict[str, dict[str, Any]] = {
    "acme": {"limit": "40%", "weight": 2, "queue": {"depth": 12, "wait": "60s"}},
    "beta-research": {"guarantee": "20%", "class": "interactive"},
    "nightly-batch": {"class": "batch", "queue": {"wait": "5m"}},
}


@pytest.fixture(scope="module")
async def house(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[House]:
    async with served(tmp_path_factory.mktemp("overload"), TENANTS) as house:
        yield house


@pytest.fixture(scope="module")
async def overloaded(house: House) -> AsyncIterator[House]:
    """acme is at its limit with more waiting than may; the others use what is left."""
    house.ask("acme", 45)
    house.ask("beta-research", 10)
    house.ask("nightly-batch", 34)

    async def so() -> bool:
        tenants = {one["name"]: one["pools"][0] for one in (await house.get("/admin/tenants"))["tenants"]}
        return bool(tenants["acme"]["queued"] >= 12 and tenants["nightly-batch"]["reservations"] > 0)

    await until(so, "an overload")
    yield house
    await house.hush()


async def logged_in(looker: Looker) -> None:
    await looker.log_in()
    await expect(looker.page.locator(".engine")).to_have_count(2)


async def test_who_waits_and_why_and_what_would_help(overloaded: House, browser: Browser) -> None:
    async with looking(browser, overloaded.admin) as looker:
        page = looker.page
        await logged_in(looker)
        sentence = re.compile(
            r"^\d+ requests.* wait.*: (\d+) of acme\b.*\. Tenant acme is at its limit of 40\s%\."
        )
        await expect(page.locator("#headline-text")).to_have_text(sentence)
        await expect(page.locator("#headline")).to_have_attribute("data-level", "wait")
        await expect(page.locator("#headline-help")).to_contain_text(
            "with a higher limit it would take from the others"
        )
        await expect(page).to_have_title(re.compile(r"^● kvgate: \d+ requests"))
        acme = page.locator("#tenants-body tr", has=page.get_by_text("acme", exact=True))
        await expect(acme).to_contain_text("for its own limit")
        await expect(acme).to_contain_text("limit 40 %")
        refused = page.locator("#rejections-body tr", has=page.get_by_text("acme", exact=True))
        await expect(refused).to_contain_text("429 queue_full")
        await expect(refused).to_contain_text("as many of your requests wait for it as may: 12")
        bar = page.locator(".engine .bar").first
        await expect(bar).to_have_attribute(
            "aria-label",
            re.compile(r"KV cache: \d+ % reserved, \d+ % set aside for longer answers, \d+ % in use"),
        )


async def test_it_is_live_and_nothing_is_built_anew(overloaded: House, browser: Browser) -> None:
    async with looking(browser, overloaded.admin) as looker:
        await logged_in(looker)
        page = looker.page
        await expect(page.locator("#link-text")).to_have_text("page live")
        service = page.locator("#tenants-body tr", has=page.get_by_text("nightly-batch")).locator("td").nth(5)
        before = await service.inner_text()
        await page.evaluate(
            "document.querySelectorAll('.engine, #tenants-body tr').forEach((e, n) => (e.seen = n))"
        )
        await expect(service).not_to_have_text(before)
        same = (
            "[...document.querySelectorAll('.engine, #tenants-body tr')].every((e) => e.seen !== undefined)"
        )
        assert await page.evaluate(same), "a row that is there stays the same element"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
async def test_how_it_looks(overloaded: House, browser: Browser, width: int, dark: bool) -> None:
    async with looking(browser, overloaded.admin, width=width, dark=dark) as looker:
        page = looker.page
        theme = "dark" if dark else "light"
        await expect(page.locator("#login-dialog")).to_be_visible()
        await looker.picture(f"login-{width}-{theme}")
        assert await page.evaluate(CONTRASTS) == []
        await logged_in(looker)
        await expect(page.locator("#rejections-body tr").first).to_be_visible()
        await looker.picture(f"overload-{width}-{theme}")
        assert await page.evaluate(OVERFLOW) <= 0
        assert await page.evaluate(CONTRASTS) == []
        assert await page.evaluate(NAMELESS) == []
        await page.locator("#tenants-body button", has_text="Change").first.click()
        await looker.picture(f"change-{width}-{theme}")
        assert await page.evaluate(CONTRASTS) == []


async def test_the_theme_is_the_systems_unless_told_otherwise(overloaded: House, browser: Browser) -> None:
    async with looking(browser, overloaded.admin, dark=True) as looker:
        page = looker.page
        await logged_in(looker)

        async def ground() -> str:
            return str(await page.evaluate("getComputedStyle(document.body).backgroundColor"))

        dark = await ground()
        button = page.locator("#theme")
        await button.click()
        await expect(button).to_have_text("Theme: light")
        assert await ground() != dark
        await page.reload()
        await expect(button).to_have_text("Theme: light")
        await button.click()
        assert await ground() == dark


async def test_a_wrong_token_is_told_and_a_right_one_lets_in(overloaded: House, browser: Browser) -> None:
    async with looking(browser, overloaded.admin) as looker:
        looker.expected = ("403 (Forbidden)",)
        page = looker.page
        await expect(page.locator("#login-dialog")).to_be_visible()
        await expect(page.locator("#content")).to_be_hidden()
        await looker.log_in("wrong")
        await expect(page.locator("#login-error")).to_have_text("This is not the admin token.")
        await expect(page.locator("#content")).to_be_hidden()
        await logged_in(looker)
        [cookie] = await page.context.cookies()
        assert (cookie["httpOnly"], cookie["sameSite"], cookie["path"]) == (True, "Strict", "/console")
        assert await page.evaluate("document.cookie") == ""
        await page.locator("#log-out").click()
        await expect(page.locator("#content")).to_be_hidden()
        assert await page.context.cookies() == []


async def test_drain_by_click_and_back(overloaded: House, browser: Browser) -> None:
    async with looking(browser, overloaded.admin) as looker:
        page = looker.page
        await logged_in(looker)
        engine = page.locator(".engine").first
        await engine.get_by_role("button").click()
        await expect(page.locator("#drain-title")).to_contain_text("Drain http://127.0.0.1:")
        await page.keyboard.press("Escape")
        await expect(page.locator("#drain-dialog")).to_be_hidden()
        await expect(engine.locator(".state")).to_have_text("accepting")
        await engine.get_by_role("button").click()
        await page.locator("#drain-do").click()
        await expect(engine.locator(".state")).to_have_text(re.compile(r"^(draining|drained)$"))
        await expect(engine.locator(".engine-why")).to_contain_text("an operator told kvgate")
        states = {
            one["engine_id"]: one["state"] for one in (await overloaded.get("/admin/engines"))["engines"]
        }
        assert sorted(states.values()) == ["draining", "up"]
        await expect(page.locator("#headline")).to_contain_text("1 of 2 engines")
        await engine.get_by_role("button", name="Undrain").click()
        await expect(page.locator("#drain-dialog")).to_be_hidden()
        await expect(engine.locator(".state")).to_have_text("accepting")


async def test_a_tenant_is_changed_for_a_while_and_back(overloaded: House, browser: Browser) -> None:
    async with looking(browser, overloaded.admin) as looker:
        looker.expected = ("422 (Unprocessable",)
        page = looker.page
        await logged_in(looker)
        row = page.locator("#tenants-body tr", has=page.get_by_text("acme", exact=True))
        await row.get_by_role("button", name="Change acme").click()
        await page.locator("#change-limit").fill("400%")
        await page.locator("#change-form [type=submit]").click()
        await expect(page.locator("#change-error")).to_contain_text("allowed: a percentage")
        await page.locator("#change-limit").fill("90%")
        await page.locator("#change-weight").fill("5")
        await page.locator("#change-for").select_option("15m")
        await page.keyboard.press("Enter")
        await expect(page.locator("#change-dialog")).to_be_hidden()
        await expect(row).to_contain_text("weight 5.0, limit 0.9, 15 min left")
        await expect(row).to_contain_text("limit 90 %")
        told = await overloaded.get("/admin/tenants/acme")
        assert told["changes"][0]["fields"] == {"weight": 5.0, "limit": 0.9}
        assert "tenant acme changed by 127.0.0.1 until" in overloaded.said
        await row.get_by_role("button", name="End the change of acme").click()
        await expect(row).to_contain_text("limit 40 %")
        assert (await overloaded.get("/admin/tenants/acme"))["changes"] == []


async def test_all_of_it_by_keyboard(overloaded: House, browser: Browser) -> None:
    async with looking(browser, overloaded.admin) as looker:
        page = looker.page
        await expect(page.locator("#token")).to_be_focused()
        await page.keyboard.type("an-operator's-token")
        await page.keyboard.press("Enter")
        await expect(page.locator(".engine")).to_have_count(2)
        reached: list[str] = []
        for _ in range(40):
            await page.keyboard.press("Tab")
            focused = "(e => e.getAttribute('aria-label') || e.innerText || e.id)(document.activeElement)"
            reached.append(str(await page.evaluate(focused)))
        wanted = ("Theme: auto", "Log out", "Drain 127.0.0.1", "find", "Waiting", "Change acme", "policy")
        missing = [one for one in wanted if not any(each.startswith(one) for each in reached)]
        assert not missing, reached
        await page.locator("#tenants-head button", has_text="Weight").focus()
        await page.keyboard.press("Enter")
        await expect(page.locator("#tenants-body tr th").first).to_contain_text("acme")
        await expect(page.locator("#tenants-head th[aria-sort=descending]")).to_have_text("Weight")


async def test_it_is_over(house: House, browser: Browser) -> None:
    """After all others: the crowd leaves."""
    async with looking(browser, house.admin) as looker:
        await logged_in(looker)
        await house.hush()
        await expect(looker.page.locator("#headline-text")).to_have_text("Nobody waits. Nothing is reserved.")
        await expect(looker.page.locator("#headline")).to_have_attribute("data-level", "ok")
        await looker.picture("calm-1440-light")
