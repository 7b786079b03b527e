"""A Chromium for the tests: that of this machine, or one that is brought.

    python tests/e2e/console/browser.py     # before the tests: brings one where there is none

As root on Debian and its relatives by apt, with the libraries that it needs; elsewhere by Playwright, which keeps it in
the user's cache folder. Where neither can be done it says so, and the tests that need it skip.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from playwright.async_api import Browser, async_playwright

PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
KEPT = ("chromium_headless_shell-*/chrome-*/*headless*shell", "chromium-*/chrome-*/chrome")
"""Where Playwright keeps its own."""
BRING_S_MAX = 300.0
"""About 100 MB to download."""
MISSING = "no Chromium on this machine, and neither apt (as root) nor Playwright could bring one"


def find() -> str | None:
    """The program of this machine, or the one that Playwright has; None without one."""
    for name in PROGRAMS:
        if found := shutil.which(name):
            return found
    kept = Path(os.environ.get("PLAYWRIGHT_BROWSERS_PATH") or Path.home() / ".cache/ms-playwright")
    own = [path for pattern in KEPT for path in kept.glob(pattern)]
    return next((str(path) for path in sorted(own, reverse=True) if path.is_file()), None)


def bring() -> str | None:
    """Find one, or bring one; None where that can't be done."""
    if found := find():
        return found
    if os.geteuid() == 0 and shutil.which("apt-get"):
        install = ["apt-get", "install", "-y", "--no-install-recommends", PROGRAMS[0]]
        if not _run(install):
            _run(["apt-get", "update"])
            _run(install)
    if not find():
        _run([sys.executable, "-m", "playwright", "install", "chromium-headless-shell"])
    return find()


def _run(command: list[str]) -> bool:
    env = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(command, env=env, capture_output=True, check=False, timeout=BRING_S_MAX)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


@asynccontextmanager
async def started(program: str) -> AsyncIterator[Browser]:
    """A browser process of our own."""
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []  # Chromium refuses to run as root with one
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program, args=sandbox)
        try:
            yield browser
        finally:
            await browser.close()


if __name__ == "__main__":
    print(f"Chromium: {bring() or MISSING}")
