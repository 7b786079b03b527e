"""How the second half of `make test` is run, and what pytest's workers are dealt."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from passes import AGAIN, ALONE, BESIDE, passes

pytestmark = pytest.mark.timeout(180)
"""A pytest with two workers takes three seconds to start, and much longer on a machine that is busy."""

TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("codes", "ran", "code"),
    [
        ((0, 0), [ALONE, BESIDE], 0),
        ((1, 0, 0), [ALONE, BESIDE, AGAIN], 0),
        ((0, 1, 0), [ALONE, BESIDE, AGAIN], 0),
        ((0, 1, 1), [ALONE, BESIDE, AGAIN], 1),
        ((1, 1, 5), [ALONE, BESIDE, AGAIN], 5),
        ((0, 3), [ALONE, BESIDE], 3),
        ((1, 2), [ALONE, BESIDE], 2),
        ((4,), [ALONE], 4),
        ((-9,), [ALONE], -9),
    ],
)
def test_what_failed_runs_once_more_and_what_broke_ends_it(
    codes: tuple[int, ...], ran: list[tuple[str, ...]], code: int
) -> None:
    said, seen = iter(codes), []

    def run(options: tuple[str, ...]) -> int:
        seen.append(options)
        return next(said)

    assert passes(run) == code
    assert seen == ran


def beside(folder: Path, **files: str) -> subprocess.CompletedProcess[str]:
    """Run those tests on two workers, dealt out as in `make test`."""
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-p", "conftest", "-n", "2", "--dist", "loadfile", "-v"]
    env = os.environ | {"PYTHONPATH": str(TESTS)}
    return subprocess.run(
        [*command, "--no-loadscope-reorder", str(folder)],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_worker_that_dies_is_more_than_a_failed_test(tmp_path: Path):
    done = beside(tmp_path, test_dies="import os\ndef test_it(): os._exit(0)", test_b="def test_b(): pass")
    assert done.returncode == pytest.ExitCode.INTERNAL_ERROR, done.stdout + done.stderr
    assert "died" in done.stdout + done.stderr


NUMBERED = """
import os, pathlib, pytest
pytestmark = pytest.mark.timeout({timeout})
@pytest.mark.parametrize("n", range({count}))
def test_it(n):
    with pathlib.Path("ran").open("a") as ran:
        ran.write(f"{{pathlib.Path(__file__).stem}} {{os.getpid()}}\\n")
"""


MEASURING = """
from support.measured import as_property
def test_it(request): request.node.user_properties.append(as_property(["seven of nine"]))
def test_more(): pass
"""


def test_what_was_measured_is_told_once_at_the_end(tmp_path: Path):
    done = beside(tmp_path, test_measures=MEASURING, test_b="def test_b(): pass")
    _, _, told = done.stdout.partition("what was measured")
    assert told.count("seven of nine") == 1, done.stdout + done.stderr


def test_a_worker_gets_whole_files_and_the_longest_first(tmp_path: Path):
    files = {
        f"test_{n}": NUMBERED.format(timeout=timeout, count=4) for n, timeout in enumerate((60, 90, 30, 80))
    }
    done = beside(tmp_path, **files)
    assert done.returncode == 0, done.stdout + done.stderr
    ran = [line.split() for line in (tmp_path / "ran").read_text().splitlines()]
    assert len(ran) == 16
    assert len({(file, pid) for file, pid in ran}) == 4
    first = {pid: file for file, pid in reversed(ran)}  # of each worker: one of them may be late
    assert sorted(first.values()) == ["test_1", "test_3"]
