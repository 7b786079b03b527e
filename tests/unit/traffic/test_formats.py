"""Public traces: which one a file is, what its lines say, and what is said of lines that are none."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvgate.cli import app
from kvgate.errors import ConfigError
from kvgate.load.lengths import Measured
from kvgate.telemetry.request_line import LoggedRequest
from kvgate.traffic import Format, Reading, format_of, formats, lines, of_log, read_log, read_requests

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0798765,110,27
"""
AZURE_WEEK = """TIMESTAMP,ContextTokens,GeneratedTokens
2024-05-12 00:00:00.001163+00:00,256,31
2024-05-12 00:00:01.501163+00:00,70,5
"""
MOONCAKE = """{"timestamp": 0, "input_length": 1200, "output_length": 80, "hash_ids": [0, 1, 2]}
{"timestamp": 2500, "input_length": 600, "output_length": 7, "hash_ids": [0, 3]}
"""
BURST = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45.5,GPT-4,1087,230,1317,API log
"""
BURST_SESSIONS = """Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type
5,a1,0.4,ChatGPT,472,18,490,Conversation log
45.5,,9.1,GPT-4,1087,230,1317,API log
"""
FILES = {
    "azure": (AZURE, Format.AZURE, [(4808, 10), (110, 27)], 0.0999165),
    "azure of 2024": (AZURE_WEEK, Format.AZURE, [(256, 31), (70, 5)], 1.5),
    "mooncake": (MOONCAKE, Format.MOONCAKE, [(1200, 80), (600, 7)], 2.5),
    "burstgpt": (BURST, Format.BURSTGPT, [(472, 18), (1087, 230)], 40.5),
    "burstgpt with sessions": (BURST_SESSIONS, Format.BURSTGPT, [(472, 18), (1087, 230)], 40.5),
}
each_file = pytest.mark.parametrize("name", FILES)


@pytest.fixture
def written(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "requests"
        path.write_text(text)
        return path

    return write


def requests_of(path: Path) -> tuple[list[LoggedRequest], Reading]:
    reading = Reading()
    return list(read_requests(path, reading)), reading


@each_file
def test_a_trace_is_known_by_its_columns_and_read(name: str, written: Callable[[str], Path]):
    text, known, lengths, gap_s = FILES[name]
    path = written(text)
    assert format_of(path) is known
    found, reading = requests_of(path)
    assert [(one.prompt_tokens, one.completion_tokens) for one in found] == lengths
    assert found[1].arrived - found[0].arrived == pytest.approx(gap_s, abs=1e-5)
    assert (reading.lines, reading.bad, reading.failed) == (2, 0, 0)
    assert {(one.outcome, one.tenant, one.prompt_tokens_exact) for one in found} == {
        ("served", "anonymous", True)
    }


def test_the_time_of_azure_is_utc(written: Callable[[str], Path]):
    [first, _], _ = requests_of(written(AZURE_WEEK))
    assert first.arrived == pytest.approx(1715472000.001163)
    [first, _], _ = requests_of(written(AZURE))
    assert first.arrived == pytest.approx(1700158623.97996)


def test_a_request_log_is_still_one(written: Callable[[str], Path]):
    line = {"arrived": 1.0, "tenant": "a", "endpoint": "chat", "outcome": "served", "total_s": 1.0}
    path = written(json.dumps(line) + "\n")
    assert format_of(path) is Format.LOG
    assert [one.tenant for one in requests_of(path)[0]] == ["a"]


def test_columns_stand_in_any_order_and_after_a_mark_of_bytes(written: Callable[[str], Path]):
    path = written('\ufeff"GeneratedTokens",TIMESTAMP,ContextTokens\r\n7,2024-05-12 00:00:00+00:00,9\r\n')
    [one], _ = requests_of(path)
    assert (one.prompt_tokens, one.completion_tokens) == (9, 7)


@each_file
def test_what_had_no_answer_is_left_out_and_counted(name: str, written: Callable[[str], Path]):
    text, _, lengths, _ = FILES[name]
    first, second = lengths
    at = text.rindex(str(second[1]))
    path = written(text[:at] + "0" + text[at + len(str(second[1])) :])
    found, reading = requests_of(path)
    assert [(one.prompt_tokens, one.completion_tokens) for one in found] == [first]
    assert (reading.failed, reading.bad) == (1, 0)


BAD = {
    "no time": ("soon,10,10", "line 42: TIMESTAMP 'soon' is no time"),
    "no number": ("2024-05-12 00:00:00,ten,10", "line 42: ContextTokens 'ten' is no number of tokens"),
    "half": ("2024-05-12 00:00:00,1.5,10", "line 42: ContextTokens '1.5' is no number of tokens"),
    "negative": ("2024-05-12 00:00:00,10,-1", "line 42: GeneratedTokens '-1' is no number of tokens"),
    "endless": ("2024-05-12 00:00:00,10,inf", "line 42: GeneratedTokens 'inf' is no number of tokens"),
    "huge": ("2024-05-12 00:00:00,10,99999999999", "line 42: GeneratedTokens '99999999999' is no number of tokens"),
    "short": ("2024-05-12 00:00:00,10", "line 42: it has no `GeneratedTokens`"),
    "long": ("x" * (lines.LINE_BYTES_MAX + 10), "line 42: longer than 65,536 bytes"),
    "binary": ("\0\ufffd\0", "line 42: it has no `ContextTokens`, `GeneratedTokens`"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_line_that_is_none_is_skipped_with_its_number(name: str, written: Callable[[str], Path]):
    line, said = BAD[name]
    good = ["2024-05-12 00:00:00,10,10"] * 40
    path = written("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *good, line, "", *good]) + "\n")
    found, reading = requests_of(path)
    assert len(found) == 80
    assert (reading.bad, reading.shown) == (1, [said])


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("[1, 2]", "it has no `timestamp`, `input_length`, `output_length`"),
        ('{"timestamp": 1, "input_length": 5', "it has no `timestamp`, `input_length`, `output_length`"),
        ('{"timestamp": "NaN", "input_length": 5, "output_length": 5}', "timestamp 'NaN' is no time"),
        ('{"timestamp": -1, "input_length": 5, "output_length": 5}', "timestamp -1 is no time"),
        (
            '{"timestamp": 1, "input_length": [5], "output_length": 5}',
            "input_length [5] is no number of tokens",
        ),
    ],
)
def test_a_line_of_json_that_is_none(line: str, said: str, written: Callable[[str], Path]):
    found, reading = requests_of(written(MOONCAKE * 20 + line + "\n"))
    assert len(found) == 40
    assert reading.shown == [f"line 41: {said}"]


def test_a_trace_with_too_many_of_them_is_refused_with_the_first(written: Callable[[str], Path]):
    path = written(BURST + "1,x,a,2,,\n" * 9)
    with pytest.raises(
        ConfigError, match=r"9 of 11 lines cannot be read, and more than 5%(.|\n)*line 4: Request"
    ):
        requests_of(path)


@pytest.mark.parametrize("text", ["a,b,c\n1,2,3\n", "Timestamp,Model\n1,x\n"])
def test_a_table_that_nobody_knows_is_refused_with_those_that_are(text: str, written: Callable[[str], Path]):
    with pytest.raises(ConfigError, match=r"ContextTokens.*Azure.*Request tokens.*BurstGPT.*input_length"):
        read_log(written(text))


def test_a_file_that_is_too_large_is_refused_unread(
    written: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(formats, "FILE_BYTES_MAX", 50)
    with pytest.raises(ConfigError, match=r"allowed: at most 50\. Cut it in parts"):
        requests_of(written(AZURE))


def test_traffic_of_a_trace_has_lengths_and_no_waits(written: Callable[[str], Path]):
    found = of_log(read_log(written(BURST + "50,ChatGPT,10,0,10,API log\n")), windows=[1000])
    assert (found.whole, found.prompt.percentile(100), found.output.percentile(100)) == (2, 1087, 230)
    assert (found.concurrency.mean, found.concurrency.largest) == (None, None)
    assert found.span_s == 40.5
    assert [cut.cut for cut in found.windows] == [0.5]
    assert "1 requests of the trace had no answer and were left out." in found.notes


def test_the_command_reads_a_trace(written: Callable[[str], Path]):
    shown = CliRunner().invoke(app, ["traffic", str(written(MOONCAKE)), "--json"])
    assert shown.exit_code == 0
    assert json.loads(shown.stdout)["prompt"]["longest"] == 1200
    assert json.loads(shown.stdout)["concurrency"]["largest"] is None


def test_load_takes_its_lengths_from_a_trace(written: Callable[[str], Path]):
    tally = read_log(written(AZURE))
    assert Measured(tally.prompt, tally.output).largest == (4808, 10)


@pytest.mark.parametrize("content", [MOONCAKE, AZURE, BURST])
def test_a_mark_before_the_text_is_no_part_of_it(tmp_path: Path, content: str):
    path = tmp_path / "marked"
    path.write_text(content, encoding="utf-8-sig")
    reading = Reading()
    assert len(list(read_requests(path, reading))) == 2
    assert reading.bad == 0


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("a,b\rc,d\n1,2\r3,4\n", "is no file of requests that is known"),
        (AZURE + "2023-11-16\r18:17:04,5,6\n", "1 of 3 lines cannot be read"),
        (
            MOONCAKE + '{"timestamp": 1, "input_length": 4, "x": ' + "[" * 5000 + "]" * 5000 + "}\n",
            "1 of 3 lines cannot be read",
        ),
        (AZURE.splitlines()[0], "it has the names of its columns, and no request"),
        ("\n".join([*BURST.splitlines()[:1], "5,x,472,0,472,x"]), "none of its 1 requests had an answer"),
    ],
)
def test_what_holds_no_request_that_can_be_read(tmp_path: Path, content: str, said: str):
    path = tmp_path / "odd"
    path.write_bytes(content.encode())
    with pytest.raises(ConfigError, match=said):
        read_log(path)


def test_a_log_with_a_line_nested_too_deeply(tmp_path: Path):
    path = tmp_path / "requests.jsonl"
    good = '{"arrived": 1.0, "tenant": "t", "endpoint": "chat", "outcome": "served", "total_s": 1.0, "queue_s": 0.0'
    deep = ', "later": ' + "[" * 5000 + "]" * 5000
    path.write_text(f"{good}}}\n{good}{deep}}}\n")
    reading = Reading()
    assert len(list(read_requests(path, reading))) + reading.bad == 2


def test_a_pipe_can_not_be_read_twice(tmp_path: Path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(ConfigError, match="is a pipe; allowed: a file"):
        read_log(pipe)
