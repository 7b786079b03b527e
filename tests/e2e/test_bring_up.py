"""`make up` as a stranger uses it: everything comes up, every tenant is answered, and nothing is left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import yaml

from bringup import children
from bringup.children import Children
from bringup.monitoring import find_prometheus

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

DEPLOY = Path(__file__).parents[2] / "deploy"
COMMAND = [sys.executable, str(DEPLOY / "up.py"), "--free-ports"]
UP_S_MAX = 120.0
"""On a machine that is busy with other work; ten seconds are usual."""
END_S_MAX = 60.0
PROCESSES = {"-server 127.0.0.1:": 1, "kvgate sim-engine": 2, "kvgate serve": 2}
"""A part of a command line, and how many have it."""


class Run:
    """One run of the script, and what it said so far."""

    def __init__(self, process: psutil.Popen, said: Path) -> None:
        self.process = process
        self._said = said
        self.folder = said.parent

    @property
    def text(self) -> str:
        return self._said.read_text()

    def until(self, text: str) -> None:
        deadline_s = time.monotonic() + UP_S_MAX
        while text not in self.text:
            assert self.process.poll() is None, self.text
            assert time.monotonic() < deadline_s, self.text
            time.sleep(0.1)

    def urls(self, name: str) -> list[str]:
        """What follows the word `name`, on every line that has one."""
        return re.findall(rf"{name} +(http://127\.0\.0\.1:\d+)", self.text)

    def children(self) -> list[psutil.Process]:
        return self.process.children(recursive=True)

    def child(self, word: str) -> psutil.Process:
        return next(one for one in self.children() if word in one.cmdline())

    def ended(self) -> int:
        return int(self.process.wait(END_S_MAX))

    def left(self) -> list[str]:
        """What it wrote and did not remove."""
        return [path.name for path in self.folder.iterdir() if path != self._said]


@contextmanager
def up(folder: Path, *arguments: str) -> Iterator[Run]:
    said = folder / "said"
    with said.open("wb") as out:
        process = psutil.Popen(
            [*COMMAND, *arguments], stdout=out, stderr=out, env=os.environ | {"TMPDIR": str(folder)}
        )
    run = Run(process, said)
    try:
        yield run
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(END_S_MAX)


def gone(processes: list[psutil.Process]) -> bool:
    return not psutil.wait_procs(processes, timeout=END_S_MAX)[1]


def ask(url: str, key: str) -> int:
    body = {"model": "llm", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
    headers = {"authorization": f"Bearer {key}"}
    return httpx.post(url + "/v1/chat/completions", json=body, headers=headers, timeout=60).status_code


def get(url: str) -> Any:
    return httpx.get(url, timeout=30).raise_for_status().json()


def scraped(prometheus: str) -> dict[tuple[str, str], int]:
    """(job, health) → targets, once none is unknown."""
    deadline_s = time.monotonic() + UP_S_MAX
    while True:
        found = get(prometheus + "/api/v1/targets")["data"]["activeTargets"]
        health = [(target["labels"]["job"], target["health"]) for target in found]
        if health and all(how != "unknown" for _, how in health):
            return {one: health.count(one) for one in health}
        assert time.monotonic() < deadline_s, found
        time.sleep(0.2)


def test_everything_comes_up_answers_and_ends_at_ctrl_c(tmp_path: Path):
    with up(tmp_path, "--no-traffic") as run:
        run.until("Ctrl-C ends it")
        gates, admins = re.findall(r"(http://\S+)/v1", run.text), run.urls("admin")
        assert (len(gates), len(admins)) == (2, 2)
        keys = dict(re.findall(r"(\w+): ([\w-]+)", re.findall(r"keys +(.*)", run.text)[0]))
        assert keys.keys() == yaml.safe_load((DEPLOY / "compose/policy.yaml").read_text())["tenants"].keys()

        for admin in admins:
            assert httpx.get(admin + "/readyz", timeout=30).status_code == 200
            ledger = get(admin + "/admin/ledger")
            assert (ledger["mode"], ledger["processes"], len(ledger["engines"])) == ("redis", 2, 2)
        answers = {(gate, tenant): ask(gate, key) for gate in gates for tenant, key in keys.items()}
        assert set(answers.values()) == {200}, answers
        assert ask(gates[0], "nobody") == 401

        for [prometheus] in [run.urls("prometheus")] if find_prometheus() else []:
            assert scraped(prometheus) == {("kvgate", "up"): 2, ("vllm", "up"): 2}
            groups = get(prometheus + "/api/v1/rules")["data"]["groups"]
            assert [
                rule["lastError"] for group in groups for rule in group["rules"] if rule.get("lastError")
            ] == []
            assert groups

        children = run.children()
        for word, count in PROCESSES.items():
            assert sum(word in " ".join(child.cmdline()) for child in children) == count, word
        run.process.send_signal(signal.SIGINT)
        assert run.ended() == 0, run.text
        assert gone(children)
        assert run.left() == []
        for url in (*gates, *admins):
            with pytest.raises(httpx.ConnectError):
                httpx.get(url, timeout=5)


def test_it_ends_by_itself_and_sums_up(tmp_path: Path):
    with up(tmp_path, "--for", "20s") as run:
        run.until("three tenants ask")
        children = run.children()
        assert len(children) >= sum(PROCESSES.values())
        assert run.ended() == 0, run.text
        assert gone(children)
        assert run.left() == []
    summed = dict(re.findall(r"^(\w+): (.*)$", run.text.partition("what the tenants saw:")[2], re.MULTILINE))
    assert summed.keys() == {"chat", "research", "batch"}
    assert "answered" in summed["chat"], run.text
    assert "broken off" not in run.text
    assert "internal_error" not in run.text


def test_a_part_that_ends_by_itself_ends_all_and_is_named(tmp_path: Path):
    with up(tmp_path, "--no-traffic") as run:
        run.until("Ctrl-C ends it")
        children = run.children()
        run.child("sim-engine").kill()
        assert run.ended() == 1
        assert re.search(r"sim-\w ended with exit code -9", run.text)
        assert "Traceback" not in run.text
        assert gone(children)
        assert run.left() == []


def test_ctrl_c_while_it_starts_leaves_nothing_either(tmp_path: Path):
    with up(tmp_path) as run:
        run.until("starting")
        deadline_s = time.monotonic() + UP_S_MAX
        while len(children := run.children()) < 2:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        run.process.send_signal(signal.SIGINT)
        assert run.ended() == 0, run.text
        assert gone(children)
        assert run.left() == []
        assert "Traceback" not in run.text


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel ends orphans on Linux only")
def test_if_it_is_killed_its_processes_die_with_it(tmp_path: Path):
    with up(tmp_path, "--no-traffic") as run:
        run.until("Ctrl-C ends it")
        children = run.children()
        run.process.kill()
        run.process.wait(END_S_MAX)
        assert gone(children)


def test_a_mistake_on_the_command_line_starts_nothing(tmp_path: Path):
    done = subprocess.run(
        [*COMMAND, "--for", "soon"], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 2
    assert "soon" in done.stderr


class TestChildren:
    """The scope that ends processes, with shells in place of servers."""

    @staticmethod
    def shell(scope: Children, name: str, script: str) -> children.Child:
        return scope.start(name, ("/bin/sh", "-c", script), {"PATH": "/usr/bin:/bin"})

    @staticmethod
    def wait_for(path: Path) -> None:
        deadline_s = time.monotonic() + UP_S_MAX
        while not path.exists():
            assert time.monotonic() < deadline_s, path
            time.sleep(0.01)

    def test_the_last_one_started_ends_first(self, tmp_path: Path):
        with Children(tmp_path) as scope:
            for name in ("first", "second", "third"):
                trap = f"trap 'echo {name} >>{tmp_path}/order; exit 0' TERM"
                self.shell(scope, name, f"{trap}; touch {tmp_path}/{name}; while :; do sleep 0.05; done")
                self.wait_for(tmp_path / name)
        assert (tmp_path / "order").read_text().split() == ["third", "second", "first"]

    def test_who_does_not_listen_is_killed_and_so_are_those_after_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr(children, "END_S_MAX", 0.3)
        with Children(tmp_path) as scope:
            patient = self.shell(scope, "patient", "exec sleep 1000")
            deaf = self.shell(
                scope, "deaf", f"trap '' TERM; touch {tmp_path}/deaf; while :; do sleep 0.05; done"
            )
            self.wait_for(tmp_path / "deaf")
        assert deaf.process.returncode == -signal.SIGKILL
        assert patient.process.returncode == -signal.SIGKILL

    def test_who_ended_says_what_it_printed(self, tmp_path: Path):
        with Children(tmp_path) as scope:
            child = self.shell(scope, "part", "echo no room; exit 3")
            child.process.wait(UP_S_MAX)
            with pytest.raises(children.ChildFailedError, match=r"(?s)part ended with exit code 3:.no room"):
                child.check()
