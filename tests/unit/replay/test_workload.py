"""Where the requests come from, and what may be done to them on the way."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from kvgate.errors import ConfigError
from kvgate.replay import Choice, open_workload, workload
from kvgate.replay.offered import Offered


def trace(path: Path, *rows: tuple[float, int, int]) -> str:
    path.write_text(
        "Timestamp,Request tokens,Response tokens\n" + "".join(f"{a},{b},{c}\n" for a, b, c in rows)
    )
    return str(path)


def log(path: Path, *lines: dict[str, object]) -> str:
    known = {"tenant": "chat", "endpoint": "chat", "outcome": "served", "total_s": 2.0, "queue_s": 0.5}
    known |= {"prompt_tokens": 10, "completion_tokens": 5}
    path.write_text("".join(json.dumps(known | line) + "\n" for line in lines))
    return str(path)


def requests_of(source: str, choice: Choice | None = None) -> list[Offered]:
    found = open_workload(source, choice or Choice())
    once, again = list(found.offered()), list(found.offered())
    assert once == again
    assert once[-1].arrived_s <= found.span_s
    return once


def test_a_trace_out_of_order_is_put_in_order_and_told(tmp_path: Path):
    source = trace(tmp_path / "t", (10, 5, 1), (30, 6, 2), (20, 7, 3))
    assert [(one.arrived_s, one.prompt_tokens) for one in requests_of(source)] == [(0, 5), (10, 7), (20, 6)]
    assert (
        "1 requests stood below later ones; they were put in order." in open_workload(source, Choice()).notes
    )


def test_a_log_tells_what_it_leaves_out_and_what_it_guesses(tmp_path: Path):
    source = log(
        tmp_path / "r",
        {"arrived": 5.0},
        {"arrived": 6.0, "outcome": "rejected_queue_full", "completion_tokens": None},
        {"arrived": 7.0, "outcome": "rejected_bad_request"},
    )
    assert len(requests_of(source)) == 2
    told = " ".join(open_workload(source, Choice()).notes)
    assert "1 requests were left out" in told
    assert "Of 1 requests the answer was not seen" in told


def test_one_pool_of_a_log(tmp_path: Path):
    source = log(tmp_path / "r", {"arrived": 1.0, "pool": "a"}, {"arrived": 2.0, "pool": "b"})
    assert len(requests_of(source, Choice(pool="a"))) == 1
    with pytest.raises(ConfigError, match="no request of pool 'c' in it"):
        open_workload(source, Choice(pool="c"))


@pytest.mark.parametrize("kind", ["trace", "log", "made up"])
def test_the_beginning_only_and_faster(tmp_path: Path, kind: str):
    source = {
        "trace": lambda: trace(tmp_path / "t", *((second, 5, 5) for second in range(100))),
        "log": lambda: log(
            tmp_path / "r", *[dict[str, object](arrived=float(second)) for second in range(100)]
        ),
        "made up": lambda: "synthetic:chat?rate=1&hours=1&daily=0%25",
    }[kind]()
    whole, part = requests_of(source), requests_of(source, Choice(duration_s=30.0))
    assert part == [one for one in whole if one.arrived_s <= 30]
    fast = requests_of(source, Choice(speed=4.0))
    assert fast[-1].arrived_s == pytest.approx(whole[-1].arrived_s / 4)
    assert len(fast) == len(whole)


def test_requests_are_dealt_out_by_shares(tmp_path: Path):
    source = trace(tmp_path / "t", *((second, 5, 5) for second in range(2000)))
    found = open_workload(source, Choice(tenants={"a": 3.0, "b": 1.0}))
    counts = Counter(one.tenant for one in found.offered())
    assert set(found.tenants) == {"a", "b"}
    assert counts["a"] == pytest.approx(1500, rel=0.05)
    with pytest.raises(ConfigError, match="says itself whose its requests are"):
        open_workload("synthetic:chat", Choice(tenants={"a": 1.0}))


def test_too_many_bad_lines_of_a_log_are_refused_with_their_numbers(tmp_path: Path):
    source = log(tmp_path / "r", {"arrived": 1.0})
    with Path(source).open("a") as opened:
        opened.write("nonsense\n" * 3)
    with pytest.raises(ConfigError, match=r"3 of 4 lines cannot be read(.|\n)*line 2: JSON is malformed"):
        open_workload(source, Choice())


def test_nothing_to_replay(tmp_path: Path):
    with pytest.raises(ConfigError, match="no request in it that could be replayed"):
        open_workload(log(tmp_path / "r", {"arrived": 1.0, "outcome": "rejected_unauthorized"}), Choice())
    with pytest.raises(ConfigError, match="cannot be read"):
        open_workload(str(tmp_path / "none"), Choice())


def test_a_file_has_its_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(workload, "REQUESTS_MAX", 10)
    source = trace(tmp_path / "t", *((second, 5, 5) for second in range(20)))
    found = open_workload(source, Choice())
    assert len(list(found.offered())) == 10
    assert "Only the first 10 requests of the file were taken." in found.notes
