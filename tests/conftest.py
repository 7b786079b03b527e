from __future__ import annotations

import pytest
from hypothesis import settings

settings.register_profile("shared machine", deadline=None)
settings.load_profile("shared machine")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """asyncio is what the product runs on; trio is not a target."""
    return "asyncio"
