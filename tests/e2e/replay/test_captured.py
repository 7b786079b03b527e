"""A log that was captured over HTTP, replayed under the policy that served it: the same waits, the same refusals."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from e2e.replay.capture import Captured, capture
from kvgate.cli import app
from kvgate.load.report import percentile
from kvgate.load.score import Objective
from kvgate.replay import Choice, Replayed, make_plans, open_workload, replay
from kvgate.sim import SimServer
from kvgate.telemetry.request_line import LoggedRequest
from kvgate.traffic import Reading, read_requests
from support.gateway import completion, gateway

pytestmark = pytest.mark.e2e
LONG = os.environ.get("KVGATE_SOAK") == "1"
WAIT_BAND, REFUSED_BAND = (0.15, 0.02) if LONG else (0.3, 0.06)
"""A few hundred requests of 45 s on a shared machine say less than the thousands of ten minutes."""
Measured = Callable[[dict[str, object]], None]


def check(captured: Captured, measured: Measured) -> None:
    logged = list(read_requests(captured.log, Reading()))
    workload = open_workload(str(captured.log), Choice())
    [found] = replay(workload, make_plans([str(captured.policy)], captured.hardware), Objective())
    rows = {name: compared(logged, found, name) for name in (None, *found.tenants)}
    told: dict[str, object] = {
        f"{name or 'all'}, {what}": f"HTTP {http:.3f}, replay {again:.3f}"
        for name, row in rows.items()
        for what, (http, again) in row.items()
    }
    measured({"step": captured.hardware.profile, **told})
    waits = rows[None]
    assert waits["wait p50, s"][0] > 1.0, "there has to be a queue to compare"
    assert 0.05 < waits["rejected"][0] < 0.6
    assert waits["client_gone"][0] > 0
    for name in ("wait p50, s", "wait p99, s"):
        http, again = waits[name]
        assert again == pytest.approx(http, rel=WAIT_BAND), name
    for row in rows.values():
        assert abs(row["rejected"][1] - row["rejected"][0]) <= REFUSED_BAND
    assert found.total.offered == len(logged)


def compared(
    logged: list[LoggedRequest], found: Replayed, tenant: str | None
) -> dict[str, tuple[float, float]]:
    """Over HTTP, and in the replay."""
    mine = [one for one in logged if tenant in {None, one.tenant}]
    score = found.total if tenant is None else found.tenants[tenant]
    waits = [one.queue_s for one in mine if one.queue_s is not None]
    refused = sum(one.outcome.startswith(("rejected_", "evicted_")) for one in mine)
    gone = sum(one.outcome == "client_gone" for one in mine)
    return {
        "wait p50, s": (percentile(waits, 50) or 0.0, score.wait_p50_s or 0.0),
        "wait p99, s": (percentile(waits, 99) or 0.0, score.wait_p99_s or 0.0),
        "rejected": (refused / len(mine), score.rejected_share),
        "client_gone": (gone / len(mine), score.outcomes.get("client_gone", 0) / score.offered),
    }


async def test_a_log_has_what_its_clients_asked_for(tmp_path: Path):
    log = tmp_path / "r.jsonl"
    wishes = {"x-kvgate-class": "batch", "x-kvgate-deadline-ms": "1500"}
    async with (
        SimServer(profile="instant", model="tiny") as engine,
        gateway([engine.url], request_log=str(log)) as gate,
    ):
        await gate.post("/v1/completions", completion(50, 21, min_tokens=5), wishes)
        await gate.post("/v1/completions", completion(50, 21, ignore_eos=True))
        await gate.at_zero()
    first, second = open_workload(str(log), Choice()).offered()
    assert (first.priority, first.deadline_s, first.min_tokens, first.ignore_eos) == ("batch", 1.5, 5, False)
    assert (first.prompt_tokens, first.counted_tokens, first.exact, first.max_tokens) == (50, 50, True, 21)
    assert (second.priority, second.deadline_s, second.min_tokens, second.ignore_eos) == (None, None, 0, True)
    assert second.output_tokens == 21


@pytest.mark.timeout(150)
async def test_a_captured_log_comes_out_as_it_was(tmp_path: Path, measured: Measured):
    captured = await capture(tmp_path, 45.0)
    assert captured.left > 0
    check(captured, measured)
    shown = CliRunner().invoke(
        app, ["replay", str(captured.log), "--policy", str(captured.policy), "--policy", "direct", "--json"]
    )
    assert shown.exit_code == 0, shown.output
    names = [one["policy"] for one in json.loads(shown.stdout)["policies"]]
    assert names == ["policy", "direct"]


@pytest.mark.soak
@pytest.mark.skipif(not LONG, reason="the short form runs above")
@pytest.mark.timeout(900)
async def test_ten_minutes_of_it_too(tmp_path: Path, measured: Measured):
    check(await capture(tmp_path, 600.0, seed=5), measured)
