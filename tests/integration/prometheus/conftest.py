"""One run for all tests of the folder: an overload, then faults, then rest. The tests read what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.prometheus.story import Story, tell
from support.prometheus_server import programs
from support.redis_server import binary


@pytest.fixture(scope="session")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    if programs() is None:
        pytest.skip("no prometheus on this machine, and apt cannot bring one")
    if binary() is None:
        pytest.skip("no redis-server is installed")
    folder: Path = tmp_path_factory.mktemp("watched")
    told = asyncio.run(tell(folder))
    yield told
    told.run.prometheus.close()
