"""The policy changes while requests wait and run: nobody is lost, nothing is over-admitted, a bad file changes nothing."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from kvgate.assembly.file import PolicySource
from kvgate.config import load
from kvgate.sim import SimServer
from support.gateway import Gate, serving
from support.redis_server import RedisServer

pytestmark = pytest.mark.e2e

ENV = {
    "KVGATE_PORT": "0",
    "KVGATE_ADMIN_PORT": "0",
    "KVGATE_PROBE_INTERVAL": "100ms",
    "KVGATE_TIMEOUT_DRAINING_HOLD": "50ms",
}
CHANGES = 50
KEYS = {"chat": "key-chat", "batch": "key-batch", "guest": "key-guest"}


def tenant(name: str, **section: Any) -> dict[str, Any]:
    return {"keys": [{"env": f"KEY_{name.upper()}"}], "queue": {"depth": 500, "wait": "60s"}, **section}


@dataclass
class House:
    """A kvgate with a policy file that a test changes."""

    gate: Gate
    sim: SimServer
    path: Path
    backend: str
    requests: list[asyncio.Task[None]] = field(default_factory=list)
    ended: Counter[tuple[str, int]] = field(default_factory=Counter)
    worst_blocks: int = 0
    """The most that was reserved at any look."""
    looks: int = 0

    def write(self, **tenants: dict[str, Any]) -> None:
        pools = {"p": {"backends": [self.backend]}}
        text = json.dumps({"version": 1, "pools": pools, "tenants": tenants})
        new = self.path.with_suffix(".new")
        new.write_text(text)
        new.replace(self.path)

    def send(self, name: str, max_tokens: int) -> None:
        self.requests.append(asyncio.create_task(self._send(name, max_tokens)))

    async def _send(self, name: str, max_tokens: int) -> None:
        body = {"model": "sim", "prompt": [7] * 60, "max_tokens": max_tokens, "ignore_eos": True}
        answer = await self.gate.http.post(
            "/v1/completions", json=body, headers={"authorization": f"Bearer {KEYS[name]}"}
        )
        self.ended[name, answer.status_code] += 1
        if answer.status_code == 200:
            assert answer.json()["usage"]["completion_tokens"] == max_tokens
        else:
            assert (name, answer.status_code) == ("guest", 401), answer.text

    async def look(self) -> None:
        """See what is reserved, for as long as this runs."""
        while True:
            view = self.gate.view
            for use in view.engines:
                self.worst_blocks = max(self.worst_blocks, use.reserved.blocks)
                assert use.reserved.blocks <= use.limits.blocks
            self.looks += 1
            await asyncio.sleep(0.002)

    async def all_ended(self) -> None:
        await asyncio.gather(*self.requests)
        await self.gate.at_zero()


@pytest.fixture(params=["memory", "redis"])
def ledger(request: pytest.FixtureRequest):
    if request.param == "memory":
        yield "memory://"
        return
    with RedisServer() as server:
        yield server.url


@asynccontextmanager
async def house(folder: Path, ledger: str) -> AsyncGenerator[House]:
    async with SimServer(blocks=121, block_size=32) as sim:
        env = {**ENV, "KVGATE_LEDGER": ledger} | {f"KEY_{n.upper()}": key for n, key in KEYS.items()}
        path = folder / "policy.yaml"
        made = House(None, sim, path, sim.url)  # type: ignore[arg-type]
        made.write(chat=tenant("chat"), batch=tenant("batch"))
        source = PolicySource(lambda: load(path, env, {}), path)
        async with serving(source.read(), source=source) as gate:
            made.gate = gate
            yield made


def variants(rng: random.Random) -> dict[str, dict[str, Any]]:
    chat = tenant("chat", weight=rng.choice([1, 4, 10]), **{"class": rng.choice(["interactive", "standard"])})
    batch = tenant("batch", limit=f"{rng.choice([20, 50, 100])}%", borrow=True)
    if rng.random() < 0.5:
        chat |= {"guarantee": "30%"}
    if rng.random() < 0.3:
        batch |= {"borrow": False, "guarantee": "40%"}
    return {"chat": chat, "batch": batch, **({"guest": tenant("guest")} if rng.random() < 0.5 else {})}


async def test_fifty_changes_under_load_lose_nobody_and_admit_nothing_too_much(
    tmp_path: Path, ledger: str
) -> None:
    rng = random.Random(7)
    async with house(tmp_path, ledger) as one:
        looking = asyncio.create_task(one.look())
        for number in range(CHANGES):
            for name in ("chat", "batch", "batch", "guest"):
                one.send(name, rng.randint(20, 200))
            one.write(**variants(rng))
            if number % 5:
                await one.gate.app.reload()
            else:
                await taken(one)
            if number % 10 == 3:
                one.path.write_text("version: 2\n")
                await one.gate.app.reload()
                assert one.gate.app.policy.file.refused
            await asyncio.sleep(0.01)
        await one.all_ended()
        looking.cancel()
        counts = Counter[str]()
        for (name, _), count in one.ended.items():
            counts[name] += count
        assert counts == {"chat": CHANGES, "batch": 2 * CHANGES, "guest": CHANGES}
        assert one.ended["chat", 200] == CHANGES
        assert one.ended["batch", 200] == 2 * CHANGES
        assert one.ended["guest", 200] > 0
        assert one.ended["guest", 401] > 0
        assert sum(len(step.preempted) for step in one.sim.log) == 0
        assert one.looks > 50
        assert one.worst_blocks > 60


async def taken(one: House) -> None:
    """The file is noticed without being told of."""
    wanted = one.gate.app.policy._source
    assert wanted is not None
    digest = wanted.digest()
    await one.gate.until(lambda: one.gate.app.policy.file.digest == digest, "the file taken over")


async def test_a_limit_that_is_lowered_under_load_lets_run_what_runs_and_then_holds(
    tmp_path: Path, ledger: str
) -> None:
    async with house(tmp_path, ledger) as one:
        for _ in range(40):
            one.send("batch", 200)
        await one.gate.until(lambda: one.gate.reserved_blocks > 100, "a full engine")
        before = {use.name: use.blocks for use in one.gate.view.tenants}["batch"]
        one.write(chat=tenant("chat"), batch=tenant("batch", limit="25%"))
        await one.gate.app.reload()
        await one.gate.until(lambda: of_batch(one).blocks_limit == 30, "the limit known to the ledger")
        while of_batch(one).blocks > 30:
            assert of_batch(one).blocks <= before
            await asyncio.sleep(0.001)
        while not all(task.done() for task in one.requests):
            use = of_batch(one)
            assert use.blocks <= 30
            await asyncio.sleep(0.002)
        await one.all_ended()
        assert one.ended == {("batch", 200): 40}


def of_batch(one: House) -> Any:
    found = [use for use in one.gate.view.tenants if use.name == "batch"]
    return found[0] if found else pytest.fail("the ledger does not show the tenant")


BAD = (
    "version: 1\npools: {p: {backends: [http://127.0.0.1:1]}}\ntenants: {chat: {weight: heavy}}\n",
    "pools: [\n",
    "",
    "version: 1\npools: {}\n",
)


@pytest.mark.parametrize("text", BAD)
async def test_a_refused_file_changes_nothing_and_is_complained_of_until_it_is_right(
    tmp_path: Path, text: str
) -> None:
    async with (
        house(tmp_path, "memory://") as one,
        httpx.AsyncClient(base_url=one.gate.app.admin_url) as admin,
    ):
        good = one.path.read_text()
        before = (await admin.get("/admin/policy")).json()
        one.path.write_text(text)
        await one.gate.app.reload()
        told = (await admin.get("/admin/policy")).json()
        assert told["tenants"] == before["tenants"]
        assert told["file"]["digest"] == before["file"]["digest"]
        assert str(one.path) in told["file"]["refused"]
        ready = await admin.get("/readyz")
        assert (ready.status_code, ready.json()["policy"]) == (
            200,
            "the file on the disk is refused; see /admin/policy",
        )
        assert await gauge(admin, "kvgate_policy_refused") == 1
        one.send("chat", 5)
        await one.all_ended()
        one.path.write_text(good)
        await one.gate.app.reload()
        assert (await admin.get("/admin/policy")).json()["file"]["refused"] is None
        await anyio.sleep(0.6)  # the page of metrics is half a second old at most
        assert await gauge(admin, "kvgate_policy_refused") == 0
        assert one.ended == {("chat", 200): 1}


async def gauge(admin: httpx.AsyncClient, name: str) -> float:
    page = (await admin.get("/metrics")).text
    [line] = [line for line in page.splitlines() if line.startswith(name + "{")]
    return float(line.split()[-1])


async def test_a_key_that_is_replaced_in_its_file_is_a_change_of_the_policy(tmp_path: Path) -> None:
    async with SimServer() as sim:
        secret, path = tmp_path / "secrets" / "chat", tmp_path / "policy.yaml"
        secret.parent.mkdir()
        secret.write_text("old-key\n")
        tenants = {"chat": {"keys": [{"file": "secrets/chat"}]}}
        path.write_text(
            json.dumps({"version": 1, "pools": {"p": {"backends": [sim.url]}}, "tenants": tenants})
        )
        source = PolicySource(lambda: load(path, ENV, {}), path)
        async with serving(source.read(), source=source) as gate:

            async def status(key: str) -> int:
                body = {"model": "sim", "prompt": [7], "max_tokens": 1}
                answer = await gate.post("/v1/completions", body, {"authorization": f"Bearer {key}"})
                return answer.status_code

            assert (await status("old-key"), await status("new-key")) == (200, 401)
            before = gate.app.policy.live.current
            secret.write_text("new-key\n")
            await gate.until(lambda: gate.app.policy.live.current is not before, "the new key")
            assert (await status("old-key"), await status("new-key")) == (401, 200)
