"""Settings that change nothing are pointed out, with their place and what to do; those that are of some use are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvgate.config import Settings, load, warnings_of
from kvgate.config.reserved import reservations

BACKEND: dict[str, object] = {"backends": ["http://a"]}
POOL = "version: 1\npools: {m: {backends: [http://a]}}\n"
POOLS = "version: 1\npools: {ma: {backends: [http://a]}, mb: {backends: [http://b]}}\n"


def tenants(**sections: str) -> str:
    """Tenants with these keys besides the one they need."""
    keys = {name: f"keys: [{{sha256: ab{index:062x}}}]" for index, name in enumerate(sections)}
    made = ", ".join(f"{name}: {{{keys[name]}, {said}}}" for name, said in sections.items())
    return f"tenants: {{{made}}}\n"


def settings(tmp_path: Path, text: str, **cli: object) -> Settings:
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    return load(path, {}, cli)


PEAKS = "reservation: guaranteed"
BATCH = "class: batch, revocable: on"
DOUBTED = {
    "a risk where all reserve peaks": (
        POOL + tenants(a=f"{PEAKS}, risk: 2%", b=PEAKS),
        "tenants.a.risk: the risk has no effect",
        POOL + tenants(a=f"{PEAKS}, risk: 2%", b="weight: 1"),  # its own, beside the forecasts of b
    ),
    "a risk in defaults": (
        POOL + f"defaults: {{risk: 2%}}\n{tenants(a=PEAKS, b=PEAKS)}",
        "defaults.risk: the risk has no effect",
        POOL + f"defaults: {{risk: 2%}}\n{tenants(a=PEAKS, b='class: batch')}",
    ),
    "a risk of a pool": (
        POOL.replace("[http://a]", f"[http://a], {PEAKS}, risk: 2%"),
        "pools.m.risk: the risk has no effect",
        POOL.replace("[http://a]", "[http://a], risk: 2%"),
    ),
    "a class that is never sent back": (
        POOL + tenants(a="revocable: on", b=BATCH),
        "tenants.a.revocable: revocable is for requests of class batch",
        POOL + f"defaults: {{revocable: on}}\n{tenants(a='weight: 1', b='class: batch')}",
    ),
    "peaks that are never sent back": (
        POOL + tenants(a=f"{PEAKS}, {BATCH}", b="weight: 1"),
        "tenants.a.revocable: revocable has no effect",
        POOL + f"defaults: {{{BATCH}}}\n{tenants(a=PEAKS, b='weight: 1')}",
    ),
    "a default that is not written": (
        POOL + "defaults: {max_tokens: {default: 100, rewrite: off}}\n",
        "defaults.max_tokens.default: the default has no effect",
        POOL + "defaults: {max_tokens: {default: none, rewrite: off}}\n",
    ),
    "a cap that is not written": (
        POOL + "defaults: {max_tokens: {cap: 100, rewrite: off}}\n",
        "defaults.max_tokens.cap: the cap has no effect",
        POOL
        + f"defaults: {{max_tokens: {{cap: 100}}}}\n{tenants(a='max_tokens: {rewrite: off}', b='weight: 1')}",
    ),
    "a limit above a partition": (
        POOL + tenants(a="borrow: off, guarantee: 20%, limit: 30%", b="limit: 50%"),
        "tenants.a.limit: the limit has no effect",
        POOL + tenants(a="borrow: off, guarantee: 20%, limit: 10%", b="limit: 50%"),
    ),
    "a weight of one alone": (
        POOL + "defaults: {weight: 2}\n",
        "defaults.weight: the weight has no effect",
        POOL + f"defaults: {{weight: 2}}\n{tenants(a='weight: 1', b='class: batch')}",
    ),
    "prefixes of prompts whose ids are not known": (
        POOL.replace("[http://a]", "[http://a], prefix_sharing: on"),
        "pool m: prefix_sharing has no effect on chats and texts",
        POOL.replace("[http://a]", "[http://a], prefix_sharing: on, prompt_tokens: backend"),
    ),
    "a priority where all reserve alike": (
        POOL.replace("[http://a]", "[http://a], priority: on") + tenants(a="risk: 2%", b="weight: 2"),
        "pool m: priority prefers no tenant to another, since all there reserve alike (forecast)",
        POOL.replace("[http://a]", "[http://a], priority: on") + tenants(a=PEAKS, b="weight: 2"),
    ),
    "a priority where all reserve peaks": (
        POOL.replace("[http://a]", f"[http://a], priority: on, {PEAKS}"),
        "pool m: priority prefers no tenant to another, since all there reserve alike (guaranteed)",
        POOL.replace("[http://a]", f"[http://a], priority: on, {PEAKS}")
        + tenants(a="reservation: forecast", b="weight: 2"),
    ),
    "a section behind a pattern for all": (
        POOLS + tenants(a='pools: {"m*": {limit: 20%}, "ma*": {limit: 30%}}'),
        "tenants.a.pools.ma* holds in no pool",
        POOLS + tenants(a='pools: {"ma*": {limit: 30%}, "m*": {limit: 20%}}'),
    ),
    "a pattern for one that has its own": (
        POOLS + tenants(a='pools: {"ma*": {limit: 20%}, ma: {limit: 30%}}'),
        "tenants.a.pools.ma* holds in no pool",
        POOLS + tenants(a='pools: {"m*": {limit: 20%}, ma: {limit: 30%}}'),
    ),
}


@pytest.mark.parametrize("name", DOUBTED)
def test_what_has_no_effect_is_said_and_its_counterpart_is_not(name: str, tmp_path: Path) -> None:
    doubted, said, fine = DOUBTED[name]
    [warning] = warnings_of(settings(tmp_path, doubted))
    assert warning.removeprefix(f"{tmp_path / 'policy.yaml'}: ").startswith(said)
    assert warnings_of(settings(tmp_path, fine)) == ()


@pytest.mark.parametrize(
    ("text", "cli", "said"),
    [
        (POOL + tenants(a=PEAKS, b=PEAKS), {"risk": "2%"}, "--risk: the risk has no effect"),
        (POOL + tenants(a=PEAKS, b=PEAKS), {"reservation": "forecast"}, "--reservation: has no effect"),
        (POOL + tenants(a="queue: {wait: 1s}"), {"queue_wait": "2s"}, "--queue-wait: has no effect"),
        (POOL, {"trace_sample": "10%"}, "--trace-sample: has no effect without --otlp-endpoint"),
    ],
)
def test_options_that_have_no_effect(text: str, cli: dict[str, object], said: str, tmp_path: Path) -> None:
    [warning] = warnings_of(settings(tmp_path, text, **cli))
    assert warning.startswith(said)


def test_variables_of_a_log_that_is_not_written() -> None:
    env = {"KVGATE_REQUEST_LOG_BYTES_MAX": "2M"}
    [warning] = warnings_of(load(None, env, BACKEND))
    assert warning.startswith("KVGATE_REQUEST_LOG_BYTES_MAX: has no effect without --request-log")
    assert warnings_of(load(None, env, {**BACKEND, "request_log": "log"})) == ()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (POOL, "forecast, risk 1%"),
        (POOL + f"defaults: {{{PEAKS}}}\n", "guaranteed"),
        (POOL + tenants(a="weight: 2", b="class: batch", c=PEAKS), "forecast, risk 1%; guaranteed for c"),
        (POOL + tenants(a=PEAKS, b=PEAKS, c="risk: 0.1%"), "guaranteed; forecast, risk 0.1% for c"),
        (
            POOL + "defaults: {risk: 2%}\n" + tenants(a=PEAKS, b="risk: 5%", c="weight: 2"),
            "forecast, risk 2%; guaranteed for a; forecast, risk 5% for b",
        ),
        (POOL + tenants(a=PEAKS, b="risk: 5%"), "guaranteed for a; forecast, risk 5% for b"),
        (
            POOLS + tenants(a="weight: 2", b=f"pools: {{mb: {{{PEAKS}}}}}", c=PEAKS),
            "forecast, risk 1%; guaranteed for b in mb, c",
        ),
    ],
)
def test_which_reservation_holds_and_for_whom(text: str, said: str, tmp_path: Path) -> None:
    assert reservations(settings(tmp_path, text)) == said


def test_ten_names_and_how_many_more(tmp_path: Path) -> None:
    many = {f"t{index}": PEAKS if index < 12 else "weight: 1" for index in range(30)}
    said = reservations(settings(tmp_path, POOL + tenants(**many)))
    assert said.startswith("forecast, risk 1%; guaranteed for t0, ")
    assert said.endswith("t9 and 2 more")
