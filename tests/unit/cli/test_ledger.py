"""`kvgate ledger`: what is shown of a shared ledger, and what is said when there is none."""

from __future__ import annotations

import io
import json
import socket
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from kvgate.cli import app
from kvgate.cli.ledger_report import Report, print_report, report_json
from kvgate.config.sources import ledger_place
from kvgate.errors import ConfigError
from kvgate.ledger.scripts import Holding, Inspection, Orphan, Sums, Waiting
from kvgate_policies.occupancy import guaranteed
from kvgate_policies.types import EngineLimits, EngineShape, EngineUse, KVCost, LedgerView, PriorityClass

if TYPE_CHECKING:
    from pathlib import Path

PLAIN = {"NO_COLOR": "1", "COLUMNS": "200", "TERM": "dumb"}
ENGINE = "http://gpu-a:8000"
LIMITS = EngineLimits(ENGINE, EngineShape(16, 4096), blocks=1000, seqs=8, prefill_tokens=8192)
REPORT = Report(
    "llama",
    LedgerView(
        (EngineUse(LIMITS, KVCost(70, 3, 512, guaranteed(60)), 3, pinned_by="r9"),),
        2,
        1.5,
        "redis",
        totals={"grants": 7, "pins": 1},
    ),
    Inspection(
        epoch="e1",
        leases_ms={"p1": 4200, "p2": -100, "p3": 5000},
        holdings=(
            Holding("p1", ENGINE, "chat", Sums(KVCost(40, 2, 512, guaranteed(35)), 2), unseen=1),
            Holding("p2", ENGINE, "bulk", Sums(KVCost(30, 1, 0), 1), unseen=0),
        ),
        orphans=(Orphan("p0", ENGINE, "chat", Sums(KVCost(5, 1, 0), 1), age_ms=1500),),
        head=(
            Waiting("p1", "r9", 17, wait_ms=1500, bypasses=8, tenant="bulk", priority=PriorityClass.BATCH),
        ),
        parked=1,
    ),
)


@pytest.fixture
def runner() -> CliRunner:
    return CliRunner(env=PLAIN)


def printed(report: Report) -> list[list[str]]:
    """The words of each line."""
    file = io.StringIO()
    print_report(report, file)
    return [line.split() for line in file.getvalue().splitlines()]


def test_tables_for_people() -> None:
    lines = printed(REPORT)
    assert [ENGINE, "60", "1,000", "70", "3", "8", "512", "8,192", "3", "yes", "r9"] in lines
    assert ["p1", "4.2", "s", ENGINE, "chat", "35", "40", "2", "512", "2"] in lines
    assert ["p2", "ran", "out", ENGINE, "bulk", "30", "30", "1", "0", "1"] in lines
    assert ["p3", "5.0", "s"] in lines
    assert ["p0", ENGINE, "chat", "5", "5", "1", "0", "1", "1.5", "s"] in lines
    assert ["2", "in", "the", "queue,", "1", "of", "them", "parked"] in lines
    assert ["r9", "bulk", "batch", "p1", "17", "1.5", "s", "8"] in lines


def test_an_empty_ledger_is_no_trouble() -> None:
    empty = Report("p", LedgerView(mode="redis"), Inspection("e", {}, (), (), (), 0))
    assert ["0", "in", "the", "queue,", "0", "of", "them", "parked"] in printed(empty)


def test_the_same_as_json() -> None:
    told = json.loads(json.dumps(report_json(REPORT)))
    assert (told["pool"], told["epoch"], told["queued"], told["parked"]) == ("llama", "e1", 2, 1)
    engine = told["engines"][0]
    assert (engine["reserved_blocks"], engine["peak_blocks"]) == (60, 70)
    first = told["processes"][0]
    assert (first["process"], first["lease_left_s"], first["holds"][0]["unseen_grants"]) == ("p1", 4.2, 1)
    assert told["orphans"] == [
        {"process": "p0", "engine_id": ENGINE, "tenant": "chat", "age_s": 1.5}
        | {"reserved_blocks": 5, "peak_blocks": 5, "seqs": 1, "prefill_tokens": 0, "reservations": 1}
    ]
    assert told["head"][0]["request"] == "r9"


@pytest.mark.parametrize("command", ["show", "verify", "reap"])
def test_every_help_has_an_example(runner: CliRunner, command: str) -> None:
    result = runner.invoke(app, ["ledger", command, "--help"])
    assert result.exit_code == 0
    assert f"Example: kvgate ledger {command}" in result.output


@pytest.mark.parametrize("command", ["show", "verify", "reap", "reap --yes"])
def test_without_a_shared_ledger_it_says_how_to_name_one(runner: CliRunner, command: str) -> None:
    for more in ([], ["--ledger", "memory://"]):
        result = runner.invoke(app, ["ledger", *command.split(), *more])
        assert result.exit_code == 2
        assert result.stderr.startswith("kvgate: no shared ledger: give --ledger URL, KVGATE_LEDGER")


def test_a_redis_that_is_away_is_one_line_without_the_password(runner: CliRunner) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        result = runner.invoke(
            app, ["ledger", "verify"], env={"KVGATE_LEDGER": f"redis://u:hush@127.0.0.1:{port}/0"}
        )
    assert result.exit_code == 2
    [line] = result.stderr.splitlines()
    assert line.startswith(f"kvgate: the ledger at redis://127.0.0.1:{port} can't be asked")
    assert "hush" not in result.output


def test_the_place_is_named_as_everywhere(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("version: 1\npools: {m: {backends: [http://a]}}\nledger: {url: 'redis://policy'}\n")
    assert ledger_place(file, {}, {}) == ("redis://policy", "m")
    env = {"KVGATE_LEDGER": "redis://env", "KVGATE_POOL": "e", "KVGATE_PORT": "no port, and nobody asks"}
    assert ledger_place(file, env, {}) == ("redis://env", "e")
    assert ledger_place(file, env, {"ledger": "redis://cli", "pool": None}) == ("redis://cli", "e")
    assert ledger_place(None, {}, {"ledger": "redis://cli"}) == ("redis://cli", "default")
    with pytest.raises(ConfigError, match=r"--pool: '\{x\}' is not allowed"):
        ledger_place(None, {}, {"ledger": "redis://cli", "pool": "{x}"})
