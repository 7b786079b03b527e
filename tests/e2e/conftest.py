"""What the tests measured, printed with each test and once more at the end of the run."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from e2e.shared.rig import Table
from support.measured import as_property


@pytest.fixture
def measured(request: pytest.FixtureRequest) -> Callable[[dict[str, object]], None]:
    """Call it with what was measured: before the assertions, so that a failure shows the numbers too."""

    def tell(rows: dict[str, object]) -> None:
        lines = Table(request.node.name, rows).lines()
        print("\n" + "\n".join(lines))
        request.node.user_properties.append(as_property(lines))

    return tell
