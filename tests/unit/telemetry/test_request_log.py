"""The request log: what a line has, and what happens when it can't be written, or not fast enough."""

from __future__ import annotations

import json
import logging
import os
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from kvgate.errors import ConfigError
from kvgate.telemetry.appended_file import AppendedFile
from kvgate.telemetry.record import RequestRecord
from kvgate.telemetry.request_line import logged
from kvgate.telemetry.request_log import RequestFile
from kvgate_policies.types import Endpoint, Outcome


def served(number: int = 1) -> RequestRecord:
    return RequestRecord(
        f"r{number}",
        tenant="chat",
        endpoint=Endpoint.CHAT,
        model="m",
        pool="default",
        outcome=Outcome.SERVED,
        status=200,
        engine_id="http://a",
        queue_s=0.123456,
        total_s=2.5,
        prompts=1,
        n=2,
        prompt_tokens_counted=110,
        prompt_tokens_real=100,
        completion_tokens=40,
        max_tokens_charged=64,
        blocks_reserved=9,
        tokens_reserved=238,
        priority="standard",
    )


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_line_has_what_was_asked_reserved_and_used(tmp_path: Path) -> None:
    file = RequestFile(str(tmp_path / "r.jsonl"), now=lambda: 1000.0)
    assert file.ended(served())
    file.close()
    assert lines_of(tmp_path / "r.jsonl") == [
        {
            "arrived": 997.5, "tenant": "chat", "endpoint": "chat", "outcome": "served", "total_s": 2.5,
            "pool": "default", "model": "m", "class": "standard", "status": 200, "engine": "http://a",
            "queue_s": 0.1235, "n": 2, "prompt_tokens": 100, "prompt_tokens_counted": 110, "completion_tokens": 40,
            "max_tokens_charged": 64, "blocks_reserved": 9, "tokens_reserved": 238,
        }
    ]  # fmt: skip


def test_what_costs_no_kv_cache_is_left_out(tmp_path: Path) -> None:
    file = RequestFile(str(tmp_path / "r.jsonl"))
    assert file.ended(RequestRecord("r", outcome=Outcome.SERVED))
    file.close()
    assert (tmp_path / "r.jsonl").read_text() == ""


def test_a_refused_request_has_its_reason() -> None:
    record = RequestRecord(
        "r", endpoint=Endpoint.CHAT, outcome=Outcome.REJECTED_QUEUE_FULL, reason="queue_full", total_s=0.1
    )
    line = logged(record, 10.0)
    assert (line.outcome, line.reason, line.engine, line.queue_s) == (
        "rejected_queue_full",
        "queue_full",
        None,
        None,
    )


def test_names_of_clients_are_cut_and_can_be_written(tmp_path: Path) -> None:
    record = served()
    record.model = "x\ud800\n" + "y" * 5000
    file = RequestFile(str(tmp_path / "r.jsonl"))
    assert file.ended(record)
    file.close()
    [line] = lines_of(tmp_path / "r.jsonl")
    assert len(line["model"]) == 200


def test_the_file_is_not_for_everyone(tmp_path: Path) -> None:
    RequestFile(str(tmp_path / "r.jsonl")).close()
    assert stat.S_IMODE((tmp_path / "r.jsonl").stat().st_mode) & 0o007 == 0


@pytest.mark.parametrize("name", ["no/such/r.jsonl", "."])
def test_a_file_that_cannot_be_opened_is_an_error_at_the_start(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"--request-log: .* cannot be written"):
        RequestFile(str(tmp_path / name))


def test_without_room_it_says_so_and_does_not_wait(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    file = RequestFile(str(fifo), lines_max=500)
    try:
        taken = [file.ended(served(number)) for number in range(3000)]
    finally:
        os.close(reader)  # whatever is still written fails at once
    file.close()
    assert False in taken, "a pipe that nobody reads takes 64 kB"
    assert taken[:500] == [True] * 500


def test_lines_that_failed_are_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvgate.telemetry.request_log.RETRY_S", 0.01)
    fails = iter([OSError(28, "full"), OSError(28, "full")])
    append = AppendedFile.append

    def sometimes(self: AppendedFile, lines: list[bytes]) -> None:
        if (error := next(fails, None)) is not None:
            raise error
        append(self, lines)

    monkeypatch.setattr(AppendedFile, "append", sometimes)
    file = RequestFile(str(tmp_path / "r.jsonl"))
    file.ended(served())
    while next(iter(lines_of(tmp_path / "r.jsonl")), None) is None:
        time.sleep(0.005)
    file.close()
    assert len(lines_of(tmp_path / "r.jsonl")) == 1


def test_what_is_lost_at_the_end_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(self: AppendedFile, lines: list[bytes]) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(AppendedFile, "append", fails)
    file = RequestFile(str(tmp_path / "r.jsonl"))
    file.ended(served())
    with caplog.at_level(logging.WARNING):
        file.close()
        file.close()
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        "the request log cannot be written, and is tried again: [Errno 28] No space left on device",
        "1 lines of the request log were lost: it could not be written",
    ]


def test_a_full_file_is_put_aside_and_the_oldest_goes(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    file = AppendedFile(path, bytes_max=100, files_max=3)
    file.open()
    for number in range(5):
        file.append([b"%d" % number * 100])
    file.append([b"now"])
    file.close()
    assert path.read_text() == "now\n"
    assert (tmp_path / "r.jsonl.1").read_text() == "4" * 100 + "\n"
    assert (tmp_path / "r.jsonl.2").read_text() == "3" * 100 + "\n"
    assert not (tmp_path / "r.jsonl.3").exists()


def test_a_file_that_was_moved_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    file = AppendedFile(path, bytes_max=10_000, files_max=3)
    file.open()
    file.append([b"before"])
    path.rename(tmp_path / "elsewhere")
    file.append([b"after"])
    file.close()
    assert (path.read_text(), (tmp_path / "elsewhere").read_text()) == ("after\n", "before\n")


def test_a_torn_line_does_not_spoil_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "r.jsonl"
    file = AppendedFile(path, bytes_max=10_000, files_max=3)
    file.open()
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, text: write(fd, text[:3]))
    with pytest.raises(OSError, match="No space"):
        file.append([b'{"a":1}'])
    monkeypatch.setattr(os, "write", write)
    file.append([b'{"a":1}'])
    file.close()
    assert path.read_text() == '{"a\n{"a":1}\n'


WRITER = """
import json, sys, pathlib
from kvgate.telemetry.appended_file import AppendedFile
path, name = sys.argv[1:]
file = AppendedFile(pathlib.Path(path), bytes_max=20_000, files_max=100)
file.open()
for number in range(400):
    file.append([json.dumps({"who": name, "number": number, "filled": "x" * 150}).encode()])
file.close()
"""


def test_several_processes_share_a_file_without_losing_a_line(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, path, name]) for name in "abc"]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    files = [file for file in tmp_path.iterdir() if not file.name.endswith(".lock")]
    seen = sorted((line["who"], line["number"]) for file in files for line in lines_of(file))
    assert seen == [(name, number) for name in "abc" for number in range(400)]
    assert len(files) > 1, "it was put aside; how often depends on who has the processor when"
