"""What the tests measured, printed with each test and once more at the end of the run."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from e2e.shared.rig import Table

TABLES = pytest.StashKey[list[Table]]()


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
        terminalreporter.section("what was measured")
    for table in tables:
        for line in table.lines():
            terminalreporter.write_line(line)
