"""The Dockerfile and its script: linted, and what they copy and call exists. A real build is `make image-check`."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest
from typer.testing import CliRunner

from kvgate.cli import app
from kvgate.config import Settings

ROOT = Path(__file__).parents[3]
DOCKERFILE = ROOT / "deploy/Dockerfile"
TEXT = DOCKERFILE.read_text()
INSTRUCTIONS = re.sub(r"\\\n\s*", " ", re.sub(r"^#.*\n", "", TEXT, flags=re.MULTILINE)).splitlines()


def all_of(name: str) -> list[str]:
    return [line.removeprefix(name).strip() for line in INSTRUCTIONS if line.startswith(name + " ")]


def test_the_linter_has_nothing_to_say():
    hadolint = Path(sys.executable).parent / "hadolint"
    done = subprocess.run([str(hadolint), str(DOCKERFILE)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("script", ["deploy/check_image.sh"])
def test_the_script_can_be_read_by_a_shell(script: str):
    shell = shutil.which("dash") or "sh"
    assert subprocess.run([shell, "-n", str(ROOT / script)], check=False).returncode == 0
    assert (ROOT / script).stat().st_mode & 0o111


def test_what_is_copied_exists_and_is_let_through():
    let_in = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = [word for line in all_of("COPY") if not line.startswith("--from") for word in line.split()[:-1]]
    assert set(copied) == let_in
    assert all((ROOT / name).exists() for name in copied)


def test_both_stages_begin_at_the_base_that_can_be_chosen():
    assert all_of("ARG")[0] == "BASE_IMAGE=python:3.12-slim"
    assert [line.split()[0] for line in all_of("FROM")] == ["${BASE_IMAGE}"] * 2


def test_it_runs_as_a_number_that_is_not_root():
    assert re.fullmatch(r"[1-9]\d+:[1-9]\d+", all_of("USER")[-1])


def test_the_entrypoint_is_no_shell_and_the_command_exists():
    assert json.loads(all_of("ENTRYPOINT")[0]) == ["/opt/kvgate/bin/kvgate"]
    command = json.loads(all_of("CMD")[0])
    assert CliRunner().invoke(app, [*command, "--help"]).exit_code == 0


def test_the_ports_are_those_of_the_settings():
    settings = Settings(backends=("http://a:1",))
    assert all_of("EXPOSE") == [f"{settings.port} {settings.admin_port}"]


class _Probe(BaseHTTPRequestHandler):
    status = 200
    asked: list[str] = []  # noqa: RUF012

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.send_response(self.status)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(("status", "exit_code"), [(200, 0), (503, 1)])
def test_the_health_check_asks_livez(monkeypatch: pytest.MonkeyPatch, status: int, exit_code: int):
    [line] = all_of("HEALTHCHECK")
    python, *arguments = json.loads(line[line.index("CMD ") + 4 :])
    assert python == "/opt/kvgate/bin/python"
    monkeypatch.setattr(_Probe, "status", status)
    monkeypatch.setattr(_Probe, "asked", [])
    with HTTPServer(("127.0.0.1", 0), _Probe) as server:
        Thread(target=server.handle_request).start()
        done = subprocess.run(
            [sys.executable, *arguments], env={"KVGATE_ADMIN_PORT": str(server.server_port)}, check=False
        )
    assert (done.returncode, _Probe.asked) == (exit_code, ["/livez"])


def test_the_health_check_fails_where_nothing_listens():
    [line] = all_of("HEALTHCHECK")
    _, *arguments = json.loads(line[line.index("CMD ") + 4 :])
    done = subprocess.run(
        [sys.executable, *arguments], env={"KVGATE_ADMIN_PORT": "1"}, check=False, capture_output=True
    )
    assert done.returncode == 1
