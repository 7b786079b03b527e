"""Both ledgers, and what the tests measured: printed with each test and once more at the end of the run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from e2e.shared.rig import Table
from e2e.tenants.rig import Deployment, in_one_process, in_two_replicas
from support.redis_server import binary

TABLES = pytest.StashKey[list[Table]]()


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


def pytest_configure(config: pytest.Config) -> None:
    config.stash[TABLES] = []


@pytest.fixture
def measured(request: pytest.FixtureRequest) -> Callable[[dict[str, object]], None]:
    """Call it with what was measured: before the assertions, so that a failure shows the numbers too."""

    def tell(rows: dict[str, object]) -> None:
        table = Table(request.node.name, rows)
        print("\n" + "\n".join(table.lines()))
        request.config.stash.setdefault(TABLES, []).append(table)

    return tell


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    tables = config.stash.get(TABLES, [])
    if tables:
        terminalreporter.section("tenants: what was measured")
    for table in tables:
        for line in table.lines():
            terminalreporter.write_line(line)
