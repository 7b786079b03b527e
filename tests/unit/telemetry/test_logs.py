"""The log: one line for each request, bounded under flood, and no way to stall the caller."""

from __future__ import annotations

import io
import json
import logging
import os
import threading
from typing import TYPE_CHECKING, Any

import pytest

from kvgate.telemetry import RequestLog, RequestRecord, configure_logs
from kvgate.telemetry.logs import CHATTY, FIELDS
from kvgate.telemetry.writer import QueuedWriter
from kvgate_policies.types import Endpoint, Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator


class Hand:
    """A clock moved by hand."""

    now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture(autouse=True)
def root_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    chatty = {name: logging.getLogger(name).level for name in CHATTY}
    yield
    for name, its_level in chatty.items():
        logging.getLogger(name).setLevel(its_level)
    root.handlers[:] = handlers
    root.setLevel(level)


def served(number: int = 1) -> RequestRecord:
    return RequestRecord(
        f"r{number}",
        endpoint=Endpoint.CHAT,
        model="m",
        outcome=Outcome.SERVED,
        status=200,
        engine_id="http://a",
        queue_s=0.123456,
    )


def refused() -> RequestRecord:
    return RequestRecord("r2", outcome=Outcome.REJECTED_QUEUE_FULL, reason="queue_full", status=429)


def written(log_format: Any, *records: RequestRecord) -> str:
    stream = io.StringIO()
    writer = configure_logs("info", log_format, stream)
    log = RequestLog(Hand())
    for record in records:
        log.ended(record)
    log.close()
    writer.close()
    return stream.getvalue()


def test_a_served_request_is_one_json_line() -> None:
    line = json.loads(written("json", served()))
    assert line["message"] == "served"
    assert line["level"] == "info"
    assert line["logger"] == "kvgate.request"
    assert line["time"].endswith("+00:00")
    assert line["request_id"] == "r1"
    assert line["endpoint"] == "chat"
    assert line["queue_s"] == 0.1235
    assert "ttft_s" not in line


def test_a_name_made_by_the_client_cannot_break_the_line() -> None:
    record = served()
    record.model = 'evil"\n{"level":"error"}\x1b[31m' + "x" * 5000
    text = written("json", record)
    assert text.count("\n") == 1
    assert len(json.loads(text)["model"]) == 200
    assert "\x1b" not in text
    plain = written("text", record)
    assert plain.count("\n") == 1
    assert "\x1b" not in plain


def test_text_is_for_people() -> None:
    text = written("text", served())
    assert "INFO    kvgate.request: served request_id=r1" in text


def test_exceptions_stay_in_their_line() -> None:
    stream = io.StringIO()
    writer = configure_logs("info", "json", stream)
    try:
        int("seven")
    except ValueError:
        logging.getLogger("kvgate.x").exception("it broke")
    writer.close()
    line = json.loads(stream.getvalue())
    assert line["message"] == "it broke"
    assert "ValueError: invalid literal" in line["exception"]


def test_the_level_is_honoured() -> None:
    stream = io.StringIO()
    writer = configure_logs("warning", "json", stream)
    RequestLog().ended(served())
    writer.close()
    assert not stream.getvalue()
    with pytest.raises(ValueError, match="LOUD"):
        configure_logs("loud", "json", stream)


@pytest.mark.parametrize(("level", "lines"), [("info", 1), ("debug", 2)])
def test_libraries_do_not_fill_the_log(level: str, lines: int) -> None:
    stream = io.StringIO()
    writer = configure_logs(level, "json", stream)
    logging.getLogger("httpx").info("HTTP Request: GET /metrics")
    logging.getLogger("httpx").warning("trouble")
    writer.close()
    assert len(stream.getvalue().splitlines()) == lines


def test_a_flood_of_rejections_is_sampled_and_the_rest_counted() -> None:
    lines = [json.loads(line) for line in written("json", *[refused()] * 1000).splitlines()]
    assert [line["message"] for line in lines[:10]] == ["rejected_queue_full"] * 10
    assert len(lines) == 11
    assert lines[10]["message"].endswith("not logged one by one")
    assert (lines[10]["reason"], lines[10]["count"]) == ("queue_full", 990)


def test_a_flood_of_one_reason_does_not_hide_another() -> None:
    stranger = RequestRecord("r3", outcome=Outcome.REJECTED_UNAUTHORIZED, reason="unauthorized", status=401)
    lines = [
        json.loads(line) for line in written("json", *[stranger] * 1000, refused(), served()).splitlines()
    ]
    said = [line["message"] for line in lines]
    assert said == ["rejected_unauthorized"] * 10 + ["rejected_queue_full", "served", said[-1]]
    assert (lines[-1]["reason"], lines[-1]["count"]) == ("unauthorized", 990)


def test_what_ran_on_an_engine_is_written_whatever_flood_there_is() -> None:
    gone = served(7)
    gone.outcome, gone.reason = Outcome.UPSTREAM_FAILED, "upstream_failed"
    lines = [json.loads(line) for line in written("json", *[refused()] * 100, *[gone] * 100).splitlines()]
    assert [line["message"] for line in lines].count("upstream_failed") == 100


def test_a_sampled_request_has_its_trace_in_its_line() -> None:
    record = served()
    assert "trace_id" not in json.loads(written("json", record))
    record.trace_id = "0af7651916cd43dd8448eb211c80319c"
    assert json.loads(written("json", record))["trace_id"] == record.trace_id


def test_every_second_has_its_own_share(caplog: pytest.LogCaptureFixture) -> None:
    clock = Hand()
    log = RequestLog(clock, rejections_per_s_max=2)
    with caplog.at_level(logging.INFO, "kvgate.request"):
        for _ in range(3):
            for _ in range(5):
                log.ended(refused())
            clock.now_s += 1.0
    counts = [getattr(r, FIELDS)["count"] for r in caplog.records if r.levelno == logging.WARNING]
    assert counts == [3, 3]
    assert sum(r.levelno == logging.INFO for r in caplog.records) == 6


def test_a_flood_beside_traffic_is_told_once_a_second(caplog: pytest.LogCaptureFixture) -> None:
    clock = Hand()
    log = RequestLog(clock, rejections_per_s_max=2)
    with caplog.at_level(logging.INFO, "kvgate.request"):
        for _ in range(50):
            log.ended(refused())
            log.ended(served())
        clock.now_s += 1.0
        log.ended(served())
    counts = [getattr(r, FIELDS)["count"] for r in caplog.records if r.levelno == logging.WARNING]
    assert counts == [48]
    assert sum(r.levelno == logging.INFO for r in caplog.records) == 53


def test_what_ran_is_always_logged(caplog: pytest.LogCaptureFixture) -> None:
    log = RequestLog(Hand(), rejections_per_s_max=0)
    with caplog.at_level(logging.INFO, "kvgate.request"):
        for number in range(50):
            log.ended(refused())
            log.ended(served(number))
    assert sum(r.message == "served" for r in caplog.records) == 50


def test_a_reader_that_is_stuck_stalls_nobody() -> None:
    reader, end = os.pipe()
    stream = os.fdopen(end, "w")
    writer = QueuedWriter(stream, lines_max=100)
    writer.setFormatter(logging.Formatter("%(message)s"))
    record = logging.makeLogRecord({"msg": "x" * 70_000})  # more than a pipe holds: the first write blocks
    for _ in range(1000):
        writer.emit(record)  # returns, or the test times out
    assert 1000 - 102 <= writer.dropped <= 1000 - 100
    drained: list[bytes] = []
    thread = threading.Thread(target=_drain, args=(reader, drained))
    thread.start()
    writer.close(10.0)
    stream.close()
    thread.join()
    text = b"".join(drained)
    assert text.count(b"\n") in {101, 102}  # one about those that were dropped among them
    assert b"log lines dropped" in text


def _drain(reader: int, into: list[bytes]) -> None:
    while chunk := os.read(reader, 1 << 16):
        into.append(chunk)
    os.close(reader)


def test_what_comes_after_the_close_is_still_written() -> None:
    stream = io.StringIO()
    writer = QueuedWriter(stream)
    writer.close()
    writer.emit(logging.makeLogRecord({"msg": "last words"}))
    assert stream.getvalue() == "last words\n"


def test_a_closed_stream_raises_nothing() -> None:
    stream = io.StringIO()
    writer = QueuedWriter(stream)
    stream.close()
    writer.emit(logging.makeLogRecord({"msg": "x"}))
    writer.close()
    writer.close()
