from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """asyncio is what the product runs on; trio is not a target."""
    return "asyncio"
