"""Real servers for the whole session, emptied before every test that asks for one.

Tests run on each kind that the machine has: Debian's redis-server (the oldest that is supported) and Valkey.
`KVGATE_TEST_REDIS=redis` or `=valkey` keeps to one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from support.redis_server import RedisServer, binary

FLAVOURS = [
    flavour for flavour in ("redis", "valkey") if os.environ.get("KVGATE_TEST_REDIS", flavour) == flavour
]


@pytest.fixture(scope="session", params=FLAVOURS)
def redis_process(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    """One server of each kind for the session; `redis_server` is the same, emptied."""
    if binary(request.param) is None:
        pytest.skip(f"no {request.param} server is installed")
    with RedisServer("--maxmemory-policy", "noeviction", flavour=request.param) as server:
        yield server


@pytest.fixture
def redis_server(redis_process: RedisServer) -> RedisServer:
    redis_process.flush()
    redis_process.command("CONFIG", "RESETSTAT")
    return redis_process
