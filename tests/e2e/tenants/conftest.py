"""Both ledgers: each test of the folder runs with the one and with the other."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from e2e.tenants.rig import Deployment, in_one_process, in_two_replicas
from support.redis_server import binary


@pytest.fixture(scope="session", params=["memory", "shared"])
def deployments(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Deployment]:
    if request.param == "shared" and binary() is None:
        pytest.skip("no redis-server is installed")
    start = in_one_process if request.param == "memory" else in_two_replicas
    with start(tmp_path_factory.mktemp("tenants")) as deployment:
        yield deployment


@pytest.fixture
async def deployed(deployments: Deployment) -> AsyncIterator[Deployment]:
    """Empty before and after; no bug in the logs."""
    await deployments.empty()
    yield deployments
    await deployments.empty()
    assert deployments.fleet.trouble() == []
