"""The command line: every setting has its option, every mistake its line, every command its example."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import typer
from typer.testing import CliRunner

from kvgate import __version__
from kvgate.cli import app
from kvgate.cli.group import LineErrors
from kvgate.cli.options import settings_from, takes_settings
from kvgate.config.options import OPTIONS

if TYPE_CHECKING:
    from pathlib import Path

    from kvgate.config import Settings

COMMANDS = (
    "serve",
    "check",
    "policy",
    "policy check",
    "policy show",
    "policy schema",
    "ledger",
    "sim-engine",
    "demo",
    "traffic",
    "load",
    "calibrate",
    "version",
)
PLAIN = {"NO_COLOR": "1", "COLUMNS": "200", "TERM": "dumb"}


@pytest.fixture
def runner() -> CliRunner:
    return CliRunner(env=PLAIN)


def settings_of(runner: CliRunner, *args: str, env: dict[str, str] | None = None) -> Settings:
    """What a command with the shared options gets."""
    seen: list[Settings] = []

    @takes_settings
    def probe(options: dict[str, object], extra: bool = False) -> int:
        seen.append(settings_from(options))
        return 0

    probing = typer.Typer(cls=LineErrors)
    probing.command()(probe)
    probing.callback()(lambda: None)
    result = runner.invoke(probing, ["probe", *args], env=env)
    assert result.exit_code == 0, result.output
    return seen[0]


def test_options_reach_the_settings(runner: CliRunner) -> None:
    settings = settings_of(
        runner,
        *("--backend", "http://a:1", "--backend", "http://b:2", "--port", "0", "--admin-port", "7"),
        *("--queue-wait", "5m", "--queue-depth", "2k", "--max-tokens-default", "512"),
        *("--max-num-seqs", "64", "--reservation", "guaranteed", "--prompt-tokens", "backend", "--extra"),
        *("--num-gpu-blocks", "121", "--block-size", "32", "--max-model-len", "2048", "--workers", "1"),
        *(
            "--ledger",
            "redis://r:6379/1",
            "--ledger-on-failure",
            "open",
            "--ledger-lease",
            "7s",
            "--pool",
            "m",
        ),
        *("--host", "::1", "--admin-host", "::1", "--log-format", "text"),
    )
    assert settings.backends == ("http://a:1", "http://b:2")
    assert (settings.port, settings.admin_port, settings.host, settings.admin_host) == (0, 7, "::1", "::1")
    assert settings.tenant.queue_wait_s_max == 300
    assert settings.tenant.queue_depth_max == 2000
    assert settings.tenant.max_tokens_default == 512
    assert (settings.max_num_seqs, settings.prompt_tokens) == (64, "backend")
    assert (settings.num_gpu_blocks, settings.block_size, settings.max_model_len) == (121, 32, 2048)
    assert settings.log_format == "text"
    assert (settings.ledger_url, settings.pool, settings.workers) == ("redis://r:6379/1", "m", 1)
    assert (settings.ledger_on_failure, settings.ledger_lease_s) == ("open", 7)


def test_command_line_over_environment_over_policy(runner: CliRunner, tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text("version: 1\npools: {m: {backends: [http://p:1], max_num_seqs: 1}}\n")
    env = {"KVGATE_POLICY": str(file), "KVGATE_MAX_NUM_SEQS": "2", "KVGATE_BACKENDS": "http://e:1,http://e:2"}
    assert settings_of(runner, "--policy", str(file)).max_num_seqs == 1
    assert settings_of(runner, env=env).max_num_seqs == 2
    assert settings_of(runner, "--max-num-seqs", "3", env=env).max_num_seqs == 3
    assert settings_of(runner, env=env).backends == ("http://e:1", "http://e:2")
    assert settings_of(runner, "--backend", "http://c:1", env=env).backends == ("http://c:1",)


@pytest.mark.parametrize("command", ["serve", "check"])
def test_every_setting_with_a_flag_is_an_option(command: str) -> None:
    parameters = typer.main.get_group(app).commands[command].params
    flags = {flag for parameter in parameters for flag in parameter.opts}
    assert flags - {"--json"} == {option.flag for option in OPTIONS if option.flag} | {"--policy"}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_help_has_an_example_that_is_a_command(runner: CliRunner, command: str) -> None:
    result = runner.invoke(app, [*command.split(), "--help"])
    assert result.exit_code == 0
    examples = [line for line in result.output.splitlines() if "Example: " in line]
    assert any(f"Example: kvgate {command}" in line for line in examples), result.output


def test_bare_kvgate_shows_its_commands(runner: CliRunner) -> None:
    result = runner.invoke(app, [])
    assert result.exit_code == 0
    assert all(command.split()[0] in result.output for command in COMMANDS)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ("serve", "no backend: give --backend URL"),
        ("serve --backend http://a --port x", "--port: 'x' is not allowed; allowed: a port"),
        (
            "serve --backend http://a --workers 4",
            "--workers: 4 is not allowed; allowed: 1 with the ledger memory://",
        ),
        ("serve --backend http://a --reservation perhaps", "allowed: guaranteed or forecast"),
        (
            "serve --backend http://a --ledger redis:r",
            "--ledger: 'redis:r' is not allowed; allowed: memory://, or redis://",
        ),
        (
            "serve --backend http://a --queue-wait 30",
            "--queue-wait: '30' is not allowed; allowed: a duration",
        ),
        ("check --backend ftp://a", "--backend: ['ftp://a'] is not allowed; allowed: base URLs"),
        ("serve --policy /nowhere.yaml", "/nowhere.yaml: cannot be read: No such file"),
        ("serve --bakend http://a", "No such option: --bakend"),
        ("serve --backend", "'--backend' requires an argument"),
        ("sim-engine --blocks 10", "Missing option '--block-size'"),
        ("demo --seconds 1", "Invalid value for '--seconds'"),
        ("surve", "No such command 'surve'"),
    ],
)
def test_a_mistake_is_one_line_on_stderr_and_exit_2(runner: CliRunner, args: str, said: str) -> None:
    result = runner.invoke(app, args.split())
    assert result.exit_code == 2
    assert not result.stdout
    (line,) = result.stderr.splitlines()
    assert line.startswith("kvgate: ")
    assert said in line


def test_version(runner: CliRunner) -> None:
    assert runner.invoke(app, ["version"]).output == f"kvgate {__version__}\n"
    assert runner.invoke(app, ["--version"]).output == f"kvgate {__version__}\n"
    assert json.loads(runner.invoke(app, ["version", "--json"]).output)["kvgate"] == __version__


def test_start_up_imports_nothing_heavy() -> None:
    heavy = "{'fastapi', 'uvicorn', 'aiohttp', 'httpx', 'pydantic', 'prometheus_client', 'yaml', 'asyncio'}"
    code = f"import sys, kvgate.cli; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_python_m_kvgate_is_the_same_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kvgate", "version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"kvgate {__version__}\n"
