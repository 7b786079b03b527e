"""Reading a request log, with what was put aside of it, and with lines that are none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvgate.errors import ConfigError
from kvgate.traffic import log as module
from kvgate.traffic import read_log


def line(**fields: object) -> str:
    known = {
        "arrived": 100.0, "tenant": "chat", "endpoint": "chat", "outcome": "served", "total_s": 4.0, "queue_s": 1.0,
        "prompt_tokens": 100, "completion_tokens": 20, "max_tokens_charged": 64, "tokens_reserved": 164,
    }  # fmt: skip
    return json.dumps(known | fields)


def written(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def test_what_is_kept_of_a_request(tmp_path: Path) -> None:
    tally = read_log(written(tmp_path / "r", line(prompts=2, n=3, completion_tokens=61)))
    assert [list(one) for one in (tally.prompt, tally.output, tally.sequences)] == [[50], [11], [6]]
    assert [list(one) for one in (tally.asked, tally.charged, tally.reserved, tally.used)] == [
        [0],
        [64],
        [164],
        [161],
    ]
    assert (tally.started[0], tally.ended[0], tally.first, tally.last) == (101.0, 104.0, 100.0, 104.0)


def test_what_did_not_run_counts_but_has_no_length(tmp_path: Path) -> None:
    refused = line(outcome="rejected_queue_full", queue_s=None)
    tally = read_log(written(tmp_path / "r", line(), refused, line(outcome="client_gone")))
    assert (tally.whole, dict(tally.outcomes)) == (
        1,
        {"served": 1, "rejected_queue_full": 1, "client_gone": 1},
    )


def test_the_count_stands_in_for_a_usage_that_never_came(tmp_path: Path) -> None:
    tally = read_log(written(tmp_path / "r", line(prompt_tokens=None, prompt_tokens_counted=77)))
    assert list(tally.prompt) == [77]


def test_what_was_put_aside_is_read_first(tmp_path: Path) -> None:
    written(tmp_path / "r.2", line(prompt_tokens=1))
    written(tmp_path / "r.1", line(prompt_tokens=2))
    written(tmp_path / "r.lock", "not a log")
    assert list(read_log(written(tmp_path / "r", line(prompt_tokens=3))).prompt) == [1, 2, 3]


def test_lines_that_are_none_are_skipped_and_counted(tmp_path: Path) -> None:
    path = written(tmp_path / "r", line(), '{"arrived": 1', "", '{"other": 1}', line())
    path.write_bytes(path.read_bytes() + b"\xff\xfe\n")
    tally = read_log(path)
    assert (tally.whole, tally.skipped) == (2, 3)


def test_one_pool_or_one_tenant(tmp_path: Path) -> None:
    path = written(tmp_path / "r", line(pool="a"), line(pool="b", tenant="batch"), line(pool="b"))
    assert read_log(path, pool="b").whole == 2
    assert read_log(path, pool="b", tenant="batch").tenants == ["batch"]


@pytest.mark.parametrize(
    ("text", "asked", "said"),
    [
        ("", {}, "it is empty"),
        ("nonsense\n", {}, "none of its 1 lines is a request"),
        (line() + "\n", {"tenant": "nobody"}, "no request of tenant 'nobody'"),
        (line() + "\n", {"pool": "p", "tenant": "t"}, "no request of pool 'p' and tenant 't'"),
    ],
)
def test_a_log_without_a_request(tmp_path: Path, text: str, asked: dict[str, str], said: str) -> None:
    (tmp_path / "r").write_text(text)
    with pytest.raises(ConfigError, match=said):
        read_log(tmp_path / "r", **asked)


def test_a_log_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot be read: No such file.*--request-log FILE"):
        read_log(tmp_path / "r")


def test_reading_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REQUESTS_MAX", 2)
    tally = read_log(written(tmp_path / "r", *[line()] * 5))
    assert (tally.whole, tally.beyond) == (2, True)
