"""The plot: its points, its formats, and what is said without matplotlib."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kvgate.errors import ConfigError
from kvgate.planner import Answer, Question, make_answer, write_plot
from kvgate.planner.plot import LINES_MAX, curves, plot_format
from kvgate.planner.sizes import read_size


def answer(target: float | None = None) -> Answer:
    return make_answer(
        Question(
            layers=32,
            kv_heads=32,
            head_dim=128,
            gpu_memory=read_size("80GiB"),
            weights=read_size("16GiB"),
            max_model_len=8192,
            target=target,
        )
    )


def test_the_first_line_is_the_setup_as_it_is() -> None:
    found = answer()
    lines = curves(found)
    assert next(iter(lines)) == "as it is"
    assert lines["as it is"][-1] == (8192, found.plan.max_sequences_engine)
    tokens = [at for at, _ in lines["as it is"]]
    assert tokens == sorted(set(tokens))
    assert len(lines) <= LINES_MAX


def test_longer_sessions_are_never_more() -> None:
    for points in curves(answer()).values():
        counts = [count for _, count in points]
        assert counts == sorted(counts, reverse=True)


def test_with_a_target_the_ways_to_it_are_drawn() -> None:
    found = answer(target=8)
    assert list(curves(found))[1:] == [way.name for way in found.ways]


@pytest.mark.parametrize("name", ["ceiling.png", "ceiling.SVG"])
def test_a_picture_is_written(tmp_path: Path, name: str) -> None:
    pytest.importorskip("matplotlib")
    write_plot(answer(), tmp_path / name)
    data = (tmp_path / name).read_bytes()
    assert data.startswith(b"\x89PNG") if name.endswith("png") else b"<svg" in data
    assert b"tokens of a session" in data or name.endswith("png")


def test_without_matplotlib_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigError, match=r"pip install 'kvgate\[plots\]'"):
        write_plot(answer(), tmp_path / "a.png")


def test_other_formats_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"allowed: a file that ends in \.png or \.svg"):
        plot_format(Path("a.pdf"))


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(ConfigError, match="cannot be written: No such file"):
        write_plot(answer(), tmp_path / "nowhere" / "a.png")
