"""One browser for all tests of the folder; without one they skip."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Browser

from e2e.console.browser import MISSING, find, started


@pytest.fixture(scope="module")
async def browser() -> AsyncIterator[Browser]:
    program = find()
    if program is None:
        pytest.skip(MISSING)
    async with started(program) as browser:
        yield browser
