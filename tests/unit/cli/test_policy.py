"""`kvgate policy`: check, show, schema."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvgate.cli import app
from kvgate.cli.policy import NOT_HERE
from kvgate.config.identity import key_digest

SHA = key_digest(b"a key").hex()
FILE = f"""
version: 1
mode: observe
pools:
  llama: {{backends: [http://a]}}
  qwen: {{backends: [http://b]}}
defaults: {{queue: {{wait: 20s}}, max_tokens: {{default: none, cap: 4k}}}}
tenants:
  chat: {{keys: [{{sha256: {SHA}}}], weight: 4, class: interactive, pools: {{"ll*": {{limit: 200k tokens}}}}}}
  batch: {{class: batch, mode: off}}
unknown_tenant: batch
"""


@pytest.fixture
def runner() -> CliRunner:
    return CliRunner()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "p.yaml"
    path.write_text(FILE)
    return path


def test_a_good_file(runner: CliRunner, file: Path) -> None:
    # The secret is not there on the machine that checks, and needn't be.
    file.write_text("version: 1\npools: {m: {backends: [http://a], api_key: {env: NOT_SET}}}\n")
    result = runner.invoke(app, ["policy", "check", str(file)])
    assert (result.exit_code, result.stdout) == (0, f"OK: {file}\n")


def test_a_doubtful_file(runner: CliRunner, file: Path) -> None:
    file.write_text("version: 1\npools: {m: {backends: [http://a]}}\ndefaults: {queue: {wait: 1h}}\n")
    result = runner.invoke(app, ["policy", "check", str(file), "--json"])
    assert result.exit_code == 0
    [warning] = json.loads(result.stdout)["warnings"]
    assert warning.startswith(
        f"{file}: defaults.queue.wait: the queue wait of 3600 s is longer than the 600 s"
    )


def test_what_was_understood_of_models(runner: CliRunner, file: Path) -> None:
    inline = "{num_hidden_layers: 2, hidden_size: 8, num_attention_heads: 1, sliding_window: 16}"
    file.write_text(
        "version: 1\npools:\n"
        f"  here: {{backends: [http://a], model_config: {inline}}}\n"
        "  elsewhere: {backends: [http://b], model_config: /models/config.json}\n"
        "  plain: {backends: [http://c]}\n"
    )
    result = runner.invoke(app, ["policy", "check", str(file)])
    assert result.stdout.splitlines() == [
        f"OK: {file}",
        "pool here: model_config: 2 layers of sliding window (16)",
        f"pool elsewhere: model_config: {NOT_HERE}",
    ]
    assert "kvgate check looks at it, on the host that serves" in NOT_HERE
    result = runner.invoke(app, ["policy", "check", str(file), "--json"])
    assert json.loads(result.stdout)["models"]["here"] == "2 layers of sliding window (16)"


def test_a_bad_file(runner: CliRunner, file: Path) -> None:
    file.write_text(
        "version: 1\npools: {m: {backends: [http://a], headroom: 1%}}\ntenants: {c: {weight: 0}}\n"
    )
    result = runner.invoke(app, ["policy", "check", str(file)])
    assert result.exit_code == 1
    assert not result.stdout
    lines = result.stderr.splitlines()
    assert [line.partition(": is ")[0] for line in lines] == [
        f"kvgate: {file}: pools.m.headroom",
        f"kvgate: {file}: tenants.c.weight: 0 is not allowed; allowed: a number from 0.01 to 1000",
    ]
    answer = json.loads(runner.invoke(app, ["policy", "check", str(file), "--json"]).stdout)
    assert (answer["ok"], len(answer["errors"])) == (False, 2)


def test_show_has_each_value_and_its_place(runner: CliRunner, file: Path) -> None:
    result = runner.invoke(app, ["policy", "show", str(file), "--tenant", "chat", "--pool", "llama"])
    assert result.exit_code == 0
    rows = [line.split() for line in result.stdout.splitlines()[3:]]
    assert result.stdout.splitlines()[0] == "identity: api_key; unknown tenant: batch"
    assert ["mode", "observe", "mode"] in rows
    assert ["weight", "4", "tenants.chat.weight"] in rows
    assert ["class", "interactive", "tenants.chat.class"] in rows
    assert ["limit", "200000", "tokens", "tenants.chat.pools.ll*.limit"] in rows
    assert ["queue.wait", "20s", "defaults.queue.wait"] in rows
    assert ["max_tokens.default", "none", "defaults.max_tokens.default"] in rows
    assert ["borrow", "on", "default"] in rows
    assert ["reservation", "forecast", "default"] in rows
    assert len(rows) == 18


def test_show_without_a_choice_has_all(runner: CliRunner, file: Path) -> None:
    text = runner.invoke(app, ["policy", "show", str(file)]).stdout
    titles = [line for line in text.splitlines() if line.startswith("tenant ")]
    assert titles == [f"tenant {t}, pool {p}" for p in ("llama", "qwen") for t in ("chat", "batch")]
    found = json.loads(runner.invoke(app, ["policy", "show", str(file), "--json"]).stdout)
    assert (found["identity"], found["unknown_tenant"]) == ("api_key", "batch")
    [of_batch] = [e for e in found["effective"] if (e["tenant"], e["pool"]) == ("batch", "qwen")]
    assert of_batch["values"]["mode"] == {"value": "off", "from": f"{file}: tenants.batch.mode"}
    assert of_batch["values"]["limit"] == {"value": 1.0, "from": "default"}


def test_no_key_is_shown(runner: CliRunner, file: Path) -> None:
    for args in (["check"], ["show"], ["show", "--json"]):
        result = runner.invoke(app, ["policy", args[0], str(file), *args[1:]])
        assert SHA not in result.output


@pytest.mark.parametrize(("option", "known"), [("--tenant", "chat, batch"), ("--pool", "llama, qwen")])
def test_show_of_what_is_not_there(runner: CliRunner, file: Path, option: str, known: str) -> None:
    result = runner.invoke(app, ["policy", "show", str(file), option, "x"])
    assert result.exit_code == 2
    assert result.stderr == f"kvgate: {option}: 'x' is not in the file; allowed: {known}\n"


def test_show_of_a_bad_file(runner: CliRunner, file: Path) -> None:
    file.write_text("version: 2\n")
    result = runner.invoke(app, ["policy", "show", str(file)])
    assert result.exit_code == 2
    assert f"{file}: version: 2 is not allowed; allowed: 1" in result.stderr


def test_the_schema_is_json(runner: CliRunner) -> None:
    result = runner.invoke(app, ["policy", "schema"])
    assert result.exit_code == 0
    assert set(json.loads(result.stdout)["required"]) == {"version", "pools"}
