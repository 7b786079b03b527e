"""For all tests, and how those that run beside each other (`pytest -n`) are dealt out to pytest's workers."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from xdist.scheduler import LoadFileScheduling

from support.measured import lines_in

if TYPE_CHECKING:
    from pathlib import Path

    from xdist.remote import Producer
    from xdist.workermanage import WorkerController

for helper in ("conformance", "conformance_tenants", "pool", "machine", "saturated"):
    pytest.register_assert_rewrite(f"unit.ledger.{helper}")

settings.register_profile("shared machine", deadline=None)
settings.load_profile("shared machine")

ONE_FIXTURE = ("tests/integration/prometheus/",)
"""Folders whose files all read what one fixture of the session brought about, in more than a minute."""
TIMEOUT_S = 60.0
"""Of a test without a mark that says otherwise, as in pyproject.toml."""


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """asyncio is what the product runs on; trio is not a target."""
    return "asyncio"


class Dealing(LoadFileScheduling):  # type: ignore[misc]  # xdist says no types
    """A worker gets whole files, and the folders of `ONE_FIXTURE` whole."""

    def _split_scope(self, nodeid: str) -> str:
        return next(filter(nodeid.startswith, ONE_FIXTURE), super()._split_scope(nodeid))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Dealing | None:
    return Dealing(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_testnodedown(node: WorkerController, error: object | None) -> None:
    """The tests that a dead worker still had would be missing without a word: end it all."""
    if error:
        pytest.exit(f"worker {node.gateway.id} died: {error}", returncode=pytest.ExitCode.INTERNAL_ERROR)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The tables of `tests/e2e`; here, since where workers run the tests only this file's hooks are asked."""
    lines = [*lines_in(terminalreporter.getreports("passed") + terminalreporter.getreports("failed"))]
    if lines:
        terminalreporter.section("what was measured")
    for line in lines:
        terminalreporter.write_line(line)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In a worker the files with the longest timeouts come first: nobody waits for one that was begun last."""
    if not hasattr(config, "workerinput"):
        return
    by_file: dict[Path, list[pytest.Item]] = {}
    for item in items:
        by_file.setdefault(item.path, []).append(item)
    items[:] = chain.from_iterable(sorted(by_file.values(), key=lambda file: -max(map(timeout_s, file))))


def timeout_s(item: pytest.Item) -> float:
    mark = item.get_closest_marker("timeout")
    return float(mark.args[0]) if mark else TIMEOUT_S
