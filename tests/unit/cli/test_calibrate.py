"""`kvgate calibrate`: mistakes, and profiles that are read back."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvgate.cli import app
from kvgate.errors import ConfigError
from kvgate.sim.profiles import find_profile, profile_text, read_profile
from kvgate_policies.engine_model import StepProfile


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ("", "URL"),
        ("nonsense", "URL: 'nonsense' is not allowed; allowed: a URL"),
        ("http://127.0.0.1:9", "http://127.0.0.1:9/v1/models gave no list of models"),
        ("URL --out profile.txt", "--out: profile.txt is not allowed; allowed: a file that ends in .yaml"),
        ("URL --out no/such/dir/x.yaml", "--out: no/such/dir/x.yaml cannot be written"),
        ("URL --name a:b", "--name: 'a:b' is not allowed"),
        ("URL --batch-max 1", "--batch-max"),
        ("URL --batch-max 99", "--batch-max"),
    ],
)
def test_mistakes(args: str, said: str) -> None:
    runner = CliRunner(env={"NO_COLOR": "1", "COLUMNS": "200", "TERM": "dumb"})
    result = runner.invoke(app, ["calibrate", *shlex.split(args.replace("URL", "http://127.0.0.1:9"))])
    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stdout == ""


def test_a_profile_is_read_back(tmp_path: Path) -> None:
    profile = StepProfile("gpu: a", 0.0123456, 0.0005, 2.5e-6, 0.0, source="Fitted: to 'm' at http://x")
    path = tmp_path / "p.yaml"
    path.write_text(profile_text(profile))
    found = read_profile(path)
    assert (found.name, found.source) == (profile.name, profile.source)
    assert found.step_s == pytest.approx(profile.step_s, rel=1e-3)
    assert (found.kv_s_per_token, found.prefill_s_per_token) == pytest.approx((2.5e-6, 0.0))
    assert find_profile(str(path)) == found
    assert find_profile(f"{path}:2").step_s == pytest.approx(2 * found.step_s)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not one profile"),
        ("a: {step_ms: 1, source: s}\nb: {step_ms: 1, source: s}", "not one profile"),
        ("a: 5", "a has no numbers"),
        ("a: {step_ms: 1}", "a has no source"),
        ("a: {source: s}", "a has no step_ms"),
        ("a: {step_ms: 1, source: s, stepms: 3}", "a has stepms; allowed: step_ms"),
        ("a: {step_ms: -1, source: s}", "a.step_ms: -1 is not allowed; allowed: milliseconds"),
        ("a: {step_ms: true, source: s}", "a.step_ms: True is not allowed"),
        ("a: {step_ms: .nan, source: s}", "a.step_ms: nan is not allowed"),
        ("a: {step_ms: fast, source: s}", "a.step_ms: 'fast' is not allowed"),
        ("a: [", "cannot be read"),
        ("a: \x00", "cannot be read"),
    ],
)
def test_a_file_that_is_no_profile(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as refused:
        find_profile(str(path))
    assert said in str(refused.value)
    assert str(path) in str(refused.value)


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match=r"no-such\.yaml cannot be read"):
        find_profile("no-such.yaml")
