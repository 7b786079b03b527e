"""`kvgate check` as a process, against simulated and scripted backends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from kvgate.sim import SimServer
from support.upstream import EngineFace, ScriptedUpstream, engine_endpoints

pytestmark = pytest.mark.e2e


async def check(*args: str) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "kvgate", "check", *args]
    env = {name: value for name, value in os.environ.items() if not name.startswith("KVGATE_")}
    done = await anyio.run_process(command, check=False, env=env, stderr=subprocess.PIPE)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


async def checked(*args: str) -> tuple[int, dict[str, Any]]:
    code, out, err = await check(*args, "--json")
    assert out, err
    return code, json.loads(out)


async def test_a_simulated_engine_is_found_with_its_capacity() -> None:
    async with SimServer(
        blocks=121, block_size=32, max_model_len=320, max_num_seqs=256, profile="fast", model="m"
    ) as sim:
        code, answer = await checked("--backend", sim.url)
        assert (code, answer["ok"]) == (0, True)
        (backend,) = answer["backends"]
        (engine,) = backend["engines"]
        assert backend["models"] == ["m"]
        assert (engine["blocks"], engine["block_size"], engine["max_model_len"]) == (120, 32, 320)
        assert engine["full_sessions"] == 12
        assert "/v1/models" in backend["sources"]["max_model_len"]
        assert answer["reservation"] == "forecast, risk 1%"
        code, out, _ = await check("--backend", sim.url, "--reservation", "guaranteed", "--risk", "2%")
        assert code == 0
        assert "reservation: guaranteed\n" in out
        assert "warning: --risk: the risk has no effect" in out
        assert "OK: 12 sessions of the whole window fit at once" in out


async def test_a_backend_that_is_gone_fails_the_check_and_is_named() -> None:
    async with (
        ScriptedUpstream(endpoints=engine_endpoints(EngineFace())) as up,
        ScriptedUpstream(endpoints=engine_endpoints(EngineFace())) as other,
    ):
        gone = other.url
        await other.refuse()
        code, answer = await checked("--backend", up.url, "--backend", gone)
    assert (code, answer["ok"]) == (1, False)
    verdicts = {backend["url"]: backend["ok"] for backend in answer["backends"]}
    assert verdicts == {up.url: True, gone: False}
    (errors,) = (backend["errors"] for backend in answer["backends"] if backend["url"] == gone)
    assert errors


async def test_a_state_directory_where_nothing_can_be_kept_fails_the_check(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    async with ScriptedUpstream(endpoints=engine_endpoints(EngineFace())) as up:
        code, answer = await checked("--backend", up.url, "--state-dir", str(tmp_path / "file"))
        good, _ = await checked("--backend", up.url, "--state-dir", str(tmp_path / "new"))
    assert (code, answer["ok"], good) == (1, False, 0)
    assert "let --state-dir be a directory that this user may write to" in answer["state_dir"]["error"]


async def test_numbers_by_hand_win_and_are_said_to_be() -> None:
    async with ScriptedUpstream(endpoints=engine_endpoints(EngineFace())) as up:
        code, answer = await checked("--backend", up.url, "--num-gpu-blocks", "51", "--block-size", "8")
    assert code == 0
    (backend,) = answer["backends"]
    assert (backend["engines"][0]["blocks"], backend["engines"][0]["block_size"]) == (50, 8)
    assert "--num-gpu-blocks" in backend["sources"]["num_gpu_blocks"]
