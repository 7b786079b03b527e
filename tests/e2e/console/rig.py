"""A real `kvgate serve` with simulated engines, and somebody who looks at its console with a real browser.

What a page complains of (an error of a script, a refused load, a violated policy) is collected and held against it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import aiohttp
from playwright.async_api import Browser, Page, expect

from e2e.shared.rig import until
from kvgate.demo.children import free_ports
from kvgate.sim import SimServer

TOKEN = "an-operator's-token"
SOON_MS = 20_000
"""For what takes a second or two; only a broken program takes this long."""
ARTIFACTS = Path(__file__).with_name("artifacts")
VIOLATIONS = """
window.violations = [];
addEventListener("securitypolicyviolation", (event) => violations.push(`${event.violatedDirective} ${event.blockedURI}`));
"""
SIZES: dict[str, Any] = {
    "blocks": 121,
    "block_size": 16,
    "max_model_len": 512,
    "max_num_seqs": 64,
    "profile": "fast:50",
    "model": "sim",
}
"""An engine of 120 blocks: 24 to 30 sessions of the clients here."""

expect.set_options(timeout=SOON_MS)


def key_of(tenant: str) -> str:
    return f"sk-{tenant}-0123456789"


def with_keys(tenants: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    digests = {name: hashlib.sha256(key_of(name).encode()).hexdigest() for name in tenants}
    return {name: {"keys": [{"sha256": digests[name]}], **section} for name, section in tenants.items()}


@dataclass
class House:
    """A kvgate process and its engines."""

    url: str
    admin: str
    engines: list[SimServer]
    process: subprocess.Popen[bytes]
    output: IO[bytes]
    _http: aiohttp.ClientSession
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    @property
    def said(self) -> str:
        self.output.seek(0)
        return self.output.read().decode(errors="replace")

    async def stop(self, number: int = 15) -> None:
        """Send a signal, and wait until it is gone."""
        self.process.send_signal(number)
        await asyncio.to_thread(self.process.wait, 30)

    async def get(self, path: str) -> Any:
        headers = {"authorization": f"Bearer {TOKEN}"}
        async with self._http.get(self.admin + path, headers=headers) as answer:
            return await answer.json() if answer.status in {200, 503} else None

    async def ready(self) -> None:
        async def so() -> bool:
            assert self.process.poll() is None, self.said
            with contextlib.suppress(aiohttp.ClientError):
                return await self._all_known()
            return False

        await until(so, "all engines taking work")

    async def _all_known(self) -> bool:
        engines = (await self.get("/admin/engines") or {"engines": []})["engines"]
        return [engine["state"] for engine in engines] == ["up"] * len(self.engines)

    def ask(self, tenant: str, clients: int) -> None:
        """So many clients of a tenant that send one request after the other, until `hush`."""
        self._tasks += [asyncio.create_task(self._keep_asking(tenant, seed)) for seed in range(clients)]

    async def _keep_asking(self, tenant: str, seed: int) -> None:
        lengths = random.Random(seed)
        headers = {"authorization": f"Bearer {key_of(tenant)}"}
        while True:
            tokens = lengths.randrange(33, 65)  # of different length, so that they do not end all at once
            body = {"model": "sim", "prompt": [7] * 16, "max_tokens": tokens, "ignore_eos": True}
            async with self._http.post(f"{self.url}/v1/completions", json=body, headers=headers) as answer:
                await answer.read()
                await asyncio.sleep(0 if answer.status == 200 else 0.3)

    async def hush(self) -> None:
        """All clients leave."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def served(
    folder: Path,
    tenants: Mapping[str, Mapping[str, Any]],
    *options: str,
    engines: int = 2,
    token: str | None = TOKEN,
    **policy: Any,
) -> AsyncIterator[House]:
    """`kvgate serve` in front of new engines, ready; gone at the end."""
    async with contextlib.AsyncExitStack() as stack:
        sims = [await stack.enter_async_context(SimServer(**SIZES)) for _ in range(engines)]
        path = folder / "policy.yaml"
        pools = policy.pop("pools", None) or {"llama-8b": {"backends": [sim.url for sim in sims]}}
        told = {"version": 1, "pools": pools, "tenants": with_keys(tenants), **policy}
        path.write_text(json.dumps(told))
        port, admin_port = free_ports(2)
        command = [sys.executable, "-m", "kvgate", "serve", "--policy", path.name, "--port", str(port)]
        command += ["--max-num-seqs", str(SIZES["max_num_seqs"])]
        command += ["--admin-port", str(admin_port), *options]
        env = {name: value for name, value in os.environ.items() if not name.startswith("KVGATE_")}
        env |= {"KVGATE_PROBE_INTERVAL": "200ms", "KVGATE_TIMEOUT_DRAIN": "2s"}
        env |= {"KVGATE_ADMIN_TOKEN": token} if token else {}
        output = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115  the stack closes it
        process = subprocess.Popen(command, cwd=folder, env=env, stdout=output, stderr=output)
        http = await stack.enter_async_context(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
        url, admin = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin_port}"
        house = House(url, admin, sims, process, output, http)
        try:
            await house.ready()
            yield house
        finally:
            await house.hush()
            await house.stop()
            assert "Traceback" not in house.said, house.said


@dataclass
class Looker:
    """A page of the console, and what it complained of."""

    page: Page
    complaints: list[str]
    expected: tuple[str, ...] = ()
    """Parts of complaints that belong to what a test does, such as the 403 of a wrong token."""

    async def check(self) -> None:
        """Nothing but what is expected was complained of, and no policy was violated."""
        violations = await self.page.evaluate("window.violations")
        found = [*self.complaints, *violations]
        assert not [one for one in found if not any(part in one for part in self.expected)], found

    async def text(self, selector: str) -> str:
        return await self.page.locator(selector).inner_text()

    async def log_in(self, token: str = TOKEN) -> None:
        await self.page.get_by_label("Admin token").fill(token)
        await self.page.locator("#login-form button").click()

    async def picture(self, name: str) -> None:
        ARTIFACTS.mkdir(exist_ok=True)
        await self.page.screenshot(path=ARTIFACTS / f"{name}.png", full_page=True)


@asynccontextmanager
async def looking(
    browser: Browser, url: str, *, width: int = 1440, height: int = 900, dark: bool = False
) -> AsyncIterator[Looker]:
    """Open the console in a context of its own; at the end its complaints are checked."""
    context = await browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if dark else "light",
        reduced_motion="reduce",
    )
    page = await context.new_page()
    looker = Looker(page, [])
    await page.add_init_script(VIOLATIONS)
    page.on("console", lambda m: looker.complaints.append(m.text) if m.type in {"error", "warning"} else None)
    page.on("pageerror", lambda error: looker.complaints.append(str(error)))
    page.on("dialog", lambda dialog: looker.complaints.append(f"dialog {dialog.message}"))
    page.on("request", lambda r: None if r.url.startswith(url) else looker.complaints.append(r.url))
    try:
        await page.goto(f"{url}/console")
        yield looker
        await looker.check()
    finally:
        await context.close()
