"""What `kvgate check` says about what was found."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

from kvgate.cli.findings import Findings, findings_json, full_sessions, print_findings
from kvgate.engines.health import State
from kvgate.engines.status import BackendReport, EngineStatus
from kvgate_policies.types import EngineLimits, EngineShape


def limits(*, blocks: int = 120, seqs: int = 256, window: int = 320) -> EngineLimits:
    return EngineLimits("http://a:1", EngineShape(32, window), blocks, seqs, 8192)


def report(found: EngineLimits | None = None, *errors: str) -> BackendReport:
    status = EngineStatus("http://a:1", "http://a:1", State.UP if found else State.ERROR, limits=found)
    sources = {"block_size": "32 from [vllm:cache_config_info]"}
    return BackendReport("http://a:1", (status,), ("m", "lora"), sources, ("take care",), errors)


def printed(*backends: BackendReport, warnings: tuple[str, ...] = ()) -> str:
    out = io.StringIO()
    print_findings(Findings(backends, warnings), out)
    return out.getvalue()


def test_sessions_of_the_whole_window() -> None:
    assert full_sessions(limits()) == 12  # 120 blocks, 10 each
    assert full_sessions(limits(seqs=5)) == 5
    assert full_sessions(limits(blocks=9)) == 0
    assert full_sessions(limits(window=1)) == 120


def test_a_good_pool_in_words() -> None:
    text = printed(report(limits()), report(limits()), warnings=("a doubt",))
    assert "OK: 24 sessions of the whole window fit at once" in text
    assert "serves m, lora" in text
    assert "block_size: 32 from [vllm:cache_config_info]" in text
    assert "warning: take care" in text
    assert "warning: a doubt" in text
    row = next(line for line in text.splitlines() if line.startswith("http://a:1 "))
    assert row.split() == ["http://a:1", "up", "120", "32", "320", "256", "12"]


def test_what_requests_reserve() -> None:
    out = io.StringIO()
    print_findings(Findings((report(limits()),), reservations="forecast, risk 1%; guaranteed for chat"), out)
    assert "reservation: forecast, risk 1%; guaranteed for chat\n" in out.getvalue()


def test_a_backend_that_cannot_be_used() -> None:
    findings = Findings((report(limits()), report(None, "no num_gpu_blocks; give --num-gpu-blocks")))
    assert not findings.ok
    text = printed(*findings.backends)
    assert "error: no num_gpu_blocks; give --num-gpu-blocks" in text
    assert "1 of 2 backends cannot be used." in text
    answer = findings_json(findings)
    assert answer["ok"] is False


def test_an_engine_smaller_than_the_window_is_said() -> None:
    text = printed(report(limits(blocks=9)))
    assert (
        "a request of the whole window needs 10 KV blocks, there are 9: where peaks are reserved such"
        in " ".join(text.split())
    )


def test_as_json() -> None:
    answer = findings_json(Findings((report(limits()),), ("a doubt",), reservations="guaranteed"))
    assert answer == {
        "ok": True,
        "reservation": "guaranteed",
        "ledger": {"shared_over": None, "error": None},
        "state_dir": {"error": None},
        "warnings": ["a doubt"],
        "backends": [
            {
                "url": "http://a:1",
                "ok": True,
                "models": ["m", "lora"],
                "engines": [
                    {
                        "engine_id": "http://a:1",
                        "state": "up",
                        "blocks": 120,
                        "block_size": 32,
                        "max_model_len": 320,
                        "prefix_caching": False,
                        "max_num_seqs": 256,
                        "full_sessions": 12,
                    }
                ],
                "sources": {"block_size": "32 from [vllm:cache_config_info]"},
                "warnings": ["take care"],
                "errors": [],
            }
        ],
    }


def test_a_shared_ledger_is_looked_at() -> None:
    good = Findings((report(limits()),), ledger="Redis 7.0.15 at redis://r:6379")
    out = io.StringIO()
    print_findings(good, out)
    assert "ledger: shared over Redis 7.0.15 at redis://r:6379" in out.getvalue()
    assert findings_json(good)["ledger"] == {"shared_over": good.ledger, "error": None}


def test_a_ledger_that_cannot_be_used_fails_the_check() -> None:
    bad = Findings((report(limits()),), ledger_error="Redis at redis://r:6379 can't be reached: refused")
    out = io.StringIO()
    print_findings(bad, out)
    assert not bad.ok
    assert "error: Redis at redis://r:6379 can't be reached: refused" in out.getvalue()
    assert out.getvalue().rstrip().endswith("The ledger cannot be used.")


def test_a_state_directory_that_cannot_be_used_fails_the_check() -> None:
    bad = Findings((report(limits()),), state_error="--state-dir: nothing can be kept in afile: File exists")
    out = io.StringIO()
    print_findings(bad, out)
    assert not bad.ok
    assert "error: --state-dir: nothing can be kept in afile: File exists" in out.getvalue()
    assert out.getvalue().rstrip().endswith("The state directory cannot be used.")
    assert findings_json(bad)["state_dir"] == {"error": bad.state_error}


def test_several_pools_are_told_apart_and_a_name_in_two_is_pointed_out() -> None:
    other = replace(report(limits()), url="http://b:1")
    found = Findings((report(limits()), other), pools={"http://a:1": "small", "http://b:1": "large"})
    out = io.StringIO()
    print_findings(found, out)
    assert "http://b:1 (pool large)" in out.getvalue()
    assert "warning: the model lora is in the pools small, large: the first has it" in out.getvalue()
    backends: Any = findings_json(found)["backends"]
    assert [backend["pool"] for backend in backends] == ["small", "large"]
    assert "pool" not in str(findings_json(Findings((other,))))
