"""Which reservation holds for a tenant in a pool, what else that changes, and that a reload takes it over."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from kvgate.assembly.file import needs_restart, taken_over
from kvgate.config import Settings, load, warnings_of
from kvgate_policies.types import RESERVATION_DEFAULT, TenantPolicy

FILE = """
version: 1
pools:
  plain: {backends: ["http://a:1"]}
  bold: {backends: ["http://b:1"], reservation: forecast, risk: 5%}
  firm: {backends: ["http://c:1"], reservation: guaranteed}
tenants:
  any: {keys: [{sha256: "A"}]}
  sure: {keys: [{sha256: "B"}], reservation: guaranteed}
  own: {keys: [{sha256: "C"}], reservation: forecast, risk: 0.1%, revocable: on, class: batch}
  capped: {keys: [{sha256: "D"}], max_tokens: {default: 500}}
  here: {keys: [{sha256: "E"}], pools: {bold: {reservation: guaranteed}}}
"""


def text(old: str = "", new: str = "") -> str:
    keys = {letter: f"{index:064x}" for index, letter in enumerate("ABCDE")}
    made = FILE.replace(old, new)
    for letter, key in keys.items():
        made = made.replace(f'"{letter}"', f'"{key}"')
    return textwrap.dedent(made)


def settings(tmp_path: Path, written: str) -> Settings:
    path = tmp_path / "policy.yaml"
    path.write_text(written)
    return load(path, {}, {})


@pytest.mark.parametrize(
    ("tenant", "pool", "expected"),
    [
        ("any", "plain", (RESERVATION_DEFAULT, 0.01, None)),
        ("any", "firm", ("guaranteed", 0.01, 2048)),
        ("any", "bold", ("forecast", 0.05, None)),
        ("sure", "bold", ("guaranteed", 0.05, 2048)),
        ("own", "plain", ("forecast", 0.001, None)),
        ("own", "bold", ("forecast", 0.001, None)),
        ("own", "firm", ("forecast", 0.001, None)),
        ("capped", "bold", ("forecast", 0.05, 500)),
        ("here", "bold", ("guaranteed", 0.05, 2048)),
        ("here", "plain", (RESERVATION_DEFAULT, 0.01, None)),
    ],
)
def test_the_more_special_place_wins_and_forecasts_write_no_limit(tenant, pool, expected, tmp_path: Path):
    policy = settings(tmp_path, text()).book.policy(tenant, pool)
    assert (policy.reservation, policy.risk, policy.max_tokens_default) == expected
    assert policy.revocable is (tenant == "own")


def test_each_value_says_where_it_comes_from(tmp_path: Path):
    book = settings(tmp_path, text()).book
    assert book.origins("any", "bold")["reservation"].endswith("policy.yaml: pools.bold.reservation")
    assert book.origins("here", "bold")["reservation"].endswith("tenants.here.pools.bold.reservation")
    assert book.origins("any", "plain")["risk"] == "default"


def test_a_change_is_taken_over_without_a_restart(tmp_path: Path):
    before = settings(tmp_path, text())
    after = settings(tmp_path, text('"http://c:1"], reservation: guaranteed', '"http://c:1"], risk: 2%'))
    assert needs_restart(before, after) == []
    assert after.book.policy("any", "firm").reservation == RESERVATION_DEFAULT
    assert after.book.policy("any", "firm").risk == 0.02
    assert taken_over(before, after) == after


def test_without_a_file(tmp_path: Path):
    given = load(None, {"KVGATE_RISK": "2%"}, {"backends": ["http://a:1"]})
    policy = given.book.policy("anonymous", "default")
    assert (policy.reservation, policy.risk, policy.max_tokens_default) == ("forecast", 0.02, None)
    assert given.tenant == policy
    limited = load(None, {}, {"backends": ["http://a:1"], "max_tokens_default": "100"})
    assert limited.book.policy("anonymous", "default").max_tokens_default == 100
    peaks = load(None, {}, {"backends": ["http://a:1"], "reservation": "guaranteed"}).tenant
    assert (peaks.reservation, peaks.max_tokens_default) == ("guaranteed", 2048)


def test_a_directory_beside_a_shared_ledger_is_doubted():
    alone = Settings(backends=("http://a",), state_dir="/var/lib/kvgate")
    assert warnings_of(alone) == ()
    (said,) = warnings_of(alone.model_copy(update={"ledger_url": "redis://r"}))
    assert said.startswith("the state directory is not used")


def test_made_in_code():
    made = Settings(backends=("http://a",), reservation="forecast", risk=0.1)
    assert made.book.policy("anonymous", "default").risk == 0.1
    assert made.book.policy("anonymous", "default").max_tokens_default is None
    own = Settings(backends=("http://a",), reservation="forecast", tenant=TenantPolicy(max_tokens_default=64))
    assert own.book.policy("anonymous", "default").max_tokens_default == 64
    assert own.book.policy("anonymous", "default").reservation == "forecast"


@pytest.mark.parametrize("tenants", ["", "tenants: {a: {keys: [{sha256: '%s'}]}}" % ("a" * 64)])
def test_an_option_replaces_what_the_file_says_for_all(tmp_path: Path, tenants: str):
    """As for every other thing that `defaults` says."""
    text = f"version: 1\npools: {{m: {{backends: ['http://a:1'], reservation: guaranteed}}}}\n{tenants}\n"
    text += "defaults: {reservation: guaranteed, risk: 2%}\n"
    path = tmp_path / "policy.yaml"
    path.write_text(text, encoding="utf-8")
    made = load(path, {}, {"reservation": "forecast", "risk": "5%"})
    [name] = made.book.names
    policy = made.book.policy(name, "m")
    assert (policy.reservation, policy.risk) == ("forecast", 0.05)
    assert made.book.origins(name, "m")["reservation"] == "--reservation"
