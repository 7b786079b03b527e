"""What was learned, over a restart; and files that are no good."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path

import pytest

from kvgate.forecasting.keeping import statements_of, text_of
from kvgate.forecasting.stored import Stored, why_unusable
from kvgate_policies.forecast import Lengths
from kvgate_policies.forecast_lengths import NUMBERS


def learn(lengths: Lengths, tenant: str = "a", length: int = 300, times: int = 60) -> None:
    for _ in range(times):
        cohort = lengths.start(tenant)
        lengths.reach(tenant, cohort, 0, length)
        lengths.end(tenant, cohort, length)
    lengths.review()


async def test_a_restart_remembers(tmp_path: Path):
    before = Lengths()
    async with Stored(str(tmp_path / "new"), "a pool/with a name").serving(before):
        learn(before)
    after = Lengths()
    async with Stored(str(tmp_path / "new"), "a pool/with a name").serving(after):
        assert after.curve("a").alive(0, 200) == pytest.approx(before.curve("a").alive(0, 200), rel=0.01)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["lengths-a%20pool%2Fwith%20a%20name.json"]


async def test_pools_have_files_of_their_own(tmp_path: Path):
    one, other = Lengths(), Lengths()
    async with Stored(str(tmp_path), "one").serving(one), Stored(str(tmp_path), "other").serving(other):
        learn(one)
    found = {path.name: statements_of(path.read_bytes()) for path in tmp_path.iterdir()}
    assert "a" in found["lengths-one.json"]
    assert "a" not in found["lengths-other.json"]


async def test_it_is_saved_now_and_then_and_only_if_there_is_news(tmp_path: Path):
    lengths = Lengths()
    stored = Stored(str(tmp_path), "p", every_s=0.01)
    async with stored.serving(lengths):
        learn(lengths)
        for _ in range(500):
            await asyncio.sleep(0.01)
            if stored.path.exists() and "a" in statements_of(stored.path.read_bytes()):
                break
        first = stored.path.stat().st_ino
        await asyncio.sleep(0.1)
        assert stored.path.stat().st_ino == first
        learn(lengths)
    assert stored.path.stat().st_ino != first
    assert statements_of(stored.path.read_bytes())["a"][1] == 120


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"a": 1}',
        '{"a": []}',
        '{"a": [0, 1]}',
        '{"a": ["0"]}',
        text_of({"a": [-1.0, *[0.0] * NUMBERS]}),
        text_of({"a": [0.0] * 70}),  # as it was written before it was known where in a bin ends were
        json.dumps({str(n): [] for n in range(1000)}),
        '{"a": [NaN]}',
        "[" * 100_000,
        "\xff",
        " " * 1_000_001,
    ],
)
async def test_a_damaged_file_is_a_warning(tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture):
    stored = Stored(str(tmp_path), "p")
    stored.path.write_text(text, encoding="latin-1")
    lengths = Lengths()
    with caplog.at_level(logging.WARNING, "kvgate"):
        async with stored.serving(lengths):
            assert lengths.statements() == Lengths().statements()
            learn(lengths)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "a" in statements_of(stored.path.read_bytes())
    assert stored.path.with_suffix(".bad").read_text(encoding="latin-1") == text


async def test_the_first_damaged_file_stays_and_the_last_one_beside_it(tmp_path: Path):
    stored = Stored(str(tmp_path), "p")
    for text in ("first", "second", "third"):
        stored.path.write_text(text)
        async with stored.serving(Lengths()):
            pass
    kept = {path.name: path.read_text() for path in tmp_path.iterdir() if path != stored.path}
    assert kept == {"lengths-p.bad": "first", "lengths-p.bad2": "third"}
    (tmp_path / "lengths-p.bad").unlink()
    stored.path.write_text("fourth")
    async with stored.serving(Lengths()):
        pass
    assert (tmp_path / "lengths-p.bad").read_text() == "fourth", "somebody looked at the first"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"chat": [-1, 0]}', "'chat': not a statement: [-1, 0];"),
        ('{"chat": []}', "'chat': not a statement: [];"),
        ('{"chat": 1}', "'chat': not a list of numbers: 1;"),
        (json.dumps({"x" * 500: [0] * 90}), "xxx…: a length histogram has"),
        ("[]", "not a mapping of a few hundred tenants;"),
        ("{", "Expecting property name"),
        ("[" * 100_000, "nested too deeply;"),
        (" " * 1_000_001, "more than 1000000 bytes;"),
    ],
)
async def test_the_warning_says_what_is_wrong(
    tmp_path: Path, text: str, said: str, caplog: pytest.LogCaptureFixture
):
    stored = Stored(str(tmp_path), "p")
    stored.path.write_text(text)
    with caplog.at_level(logging.WARNING, "kvgate"):
        async with stored.serving(Lengths()):
            pass
    [record] = caplog.records
    assert said in record.getMessage()
    assert len(record.getMessage()) < 600


@pytest.mark.parametrize("name", ["there", "new", "new/deeper"])
def test_a_directory_that_can_be_used_is_left_as_it_was(tmp_path: Path, name: str):
    (tmp_path / "there").mkdir()
    assert why_unusable(str(tmp_path / name)) is None
    assert [*tmp_path.rglob("*")] == [tmp_path / "there"]


@pytest.mark.parametrize("name", ["file", "file/in/it"])
def test_one_that_cannot_says_why_and_what_to_do(tmp_path: Path, name: str):
    (tmp_path / "file").write_text("no directory")
    said = why_unusable(str(tmp_path / name))
    assert said is not None
    assert said.startswith(f"--state-dir: nothing can be kept in {tmp_path / name}: ")
    assert said.endswith("let --state-dir be a directory that this user may write to")


async def test_a_directory_that_cannot_be_written_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    (tmp_path / "file").write_text("no directory")
    lengths = Lengths()
    with caplog.at_level(logging.WARNING, "kvgate"):
        async with Stored(str(tmp_path / "file"), "p").serving(lengths):
            assert "not kept in" in caplog.text
            assert "let --state-dir be" in caplog.text  # at the start, not when there is something to lose
            learn(lengths)
    assert {record.levelname for record in caplog.records} == {"WARNING"}


def test_what_is_kept_can_be_read_again_to_three_decimals():
    lengths = Lengths()
    learn(lengths)
    numbers = lengths.statements()
    numbers["a"][3] += 1 / 7
    found = statements_of(text_of(numbers))
    assert found["a"] == pytest.approx(numbers["a"], abs=0.001)
    assert len(text_of(numbers)) < 2000
