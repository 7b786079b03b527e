"""A changed policy file is noticed, however it is replaced; what is beside it is not."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from kvgate.config.watching import QUIET_MS, changes

pytestmark = pytest.mark.e2e  # the notices are the kernel's, and take their time

PATIENCE_S = 20.0


class Noticed:
    """Counts what `changes` tells."""

    def __init__(self) -> None:
        self.count = 0
        self._event = anyio.Event()

    def one(self) -> None:
        self.count += 1
        self._event.set()
        self._event = anyio.Event()

    async def next(self) -> None:
        with anyio.fail_after(PATIENCE_S):
            await self._event.wait()


@asynccontextmanager
async def watching(*paths: Path) -> AsyncIterator[Noticed]:
    """Watches until the first change is noticed for sure: a watch takes a moment to stand."""
    noticed = Noticed()

    async def watch() -> None:
        async for _ in changes(*paths):
            noticed.one()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        with anyio.fail_after(PATIENCE_S):
            while not noticed.count:
                paths[0].write_text("version: 0")
                await anyio.sleep(3 * QUIET_MS / 1000)
        await anyio.sleep(3 * QUIET_MS / 1000)
        noticed.count = 0
        yield noticed
        tasks.cancel_scope.cancel()


def rewritten(file: Path) -> None:
    file.write_text("version: 1")


def renamed_over(file: Path) -> None:
    new = file.with_suffix(".new")
    new.write_text("version: 1")
    new.replace(file)


def removed_and_made(file: Path) -> None:
    file.unlink()
    file.write_text("version: 1")


@pytest.mark.parametrize("change", [rewritten, renamed_over, removed_and_made])
async def test_a_change_is_noticed(tmp_path: Path, change: Callable[[Path], None]) -> None:
    file = tmp_path / "policy.yaml"
    async with watching(file) as noticed:
        change(file)
        await noticed.next()
        assert file.read_text() == "version: 1"
        change(file)
        await noticed.next()


async def test_a_config_map_is_noticed(tmp_path: Path) -> None:
    """As a kubelet does it: a new directory, and a link that is renamed over the old one."""
    file = tmp_path / "policy.yaml"

    def publish(version: int) -> None:
        data = tmp_path / f"..2030_{version}"
        data.mkdir()
        (data / "policy.yaml").write_text(f"version: {version}")
        (tmp_path / "..data_tmp").symlink_to(data.name)
        os.replace(tmp_path / "..data_tmp", tmp_path / "..data")  # noqa: PTH105

    publish(1)
    file.symlink_to("..data/policy.yaml")
    async with watching(file) as noticed:
        publish(2)
        await noticed.next()
        assert file.read_text() == "version: 2"


async def test_a_link_into_another_directory_is_followed(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "here").mkdir()
    target = tmp_path / "there" / "policy.yaml"
    target.write_text("version: 1")
    link = tmp_path / "here" / "policy.yaml"
    link.symlink_to(target)
    async with watching(link) as noticed:
        target.write_text("version: 2")
        await noticed.next()


async def test_what_is_beside_it_is_not_noticed(tmp_path: Path) -> None:
    file, key = tmp_path / "policy.yaml", tmp_path / "key"
    key.write_text("a")
    async with watching(file, key) as noticed:
        (tmp_path / "policy.yaml.swp").write_text("x")
        (tmp_path / "other.yaml").write_text("x")
        await anyio.sleep(5 * QUIET_MS / 1000)
        assert noticed.count == 0
        key.write_text("b")
        await noticed.next()


async def test_many_writes_are_few_notices(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    async with watching(file) as noticed:
        for turn in range(100):
            file.write_text(f"version: {turn}")
            await anyio.sleep(QUIET_MS / 1000 / 20)
        await noticed.next()
        assert 1 <= noticed.count <= 10


async def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        async for _ in changes(tmp_path / "none" / "policy.yaml"):
            pass
