"""The second half of `make test`: everything with processes and sockets, in two or three passes of pytest.

    python tests/passes.py

1. Tests that are marked `alone`, one after the other: they compare times or rates of one run, which others' work
   would change.
2. All others, file by file on several workers of pytest: what they do most is wait, for timers, sockets and processes.
3. Only if some failed: those once more, one after the other.

It fails if a test failed twice. It fails at once if a pass ended with more than failed tests, such as a worker that
died. The last line is always one of pytest's own, that says how many passed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[1]
CACHE = ROOT / ".pytest_cache/passes"
"""Knows what failed in these passes and in no other run."""
WORKERS = min((os.cpu_count() or 1) + 1, 8)
"""One more than there are processors. Eight is enough: then the longest file is what takes the time."""
BESIDE_TIMEOUT_S = 120
"""For a test without a mark that says otherwise: with neighbours, twice as long as by itself."""
COMMON = ("-o", f"cache_dir={CACHE}", "--ignore=tests/unit", "tests")
ALONE = ("-m", "alone and not vllm")
BESIDE = (
    *("-m", "not alone and not vllm", "--timeout", str(BESIDE_TIMEOUT_S)),
    *("-n", str(WORKERS), "--dist", "loadfile", "--no-loadscope-reorder"),
)
AGAIN = ("-m", "not vllm", "--last-failed", "--last-failed-no-failures", "none")


def passes(run: Callable[[tuple[str, ...]], int]) -> int:
    """Run what is needed with these options; the exit code of it all."""
    failed = False
    for options in (ALONE, BESIDE):
        code = run(options)
        if code not in {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED}:
            return code
        failed |= code == pytest.ExitCode.TESTS_FAILED
    return run(AGAIN) if failed else pytest.ExitCode.OK


def run_pytest(options: tuple[str, ...]) -> int:
    print(f"pytest {' '.join(options)}", flush=True)
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, *COMMON], cwd=ROOT, check=False
    ).returncode


if __name__ == "__main__":
    shutil.rmtree(CACHE, ignore_errors=True)
    sys.exit(passes(run_pytest))
