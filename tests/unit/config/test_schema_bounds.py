"""The schema that editors check with is as strict as the reader of the file: what it takes, the file may say.

Each key is tried with values on both sides of each of its bounds, and with all that is right or wrong for any other.
"""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from kvgate.config.schema import keys_of_the_format, policy_schema
from kvgate.config.sources import load_elsewhere
from kvgate.errors import ConfigError

SCHEMA = policy_schema()
VALIDATOR: Any = import_module("jsonschema").Draft202012Validator(SCHEMA)  # has no types
DIGEST = "ab" * 32
Tried = tuple[tuple[Any, ...], tuple[Any, ...]]
"""Of one key: what both take, and what neither does."""
NOTHING: dict[str, Any] = {}
BESIDE_OTHERS = ("heartbeats or more", "or one of t")
"""What is wrong only beside other values: no schema says that."""

COUNT_BEYOND = (
    -1,
    0.5,
    10**12 + 1,
    "1000000000001",
    "1000000001k",
    "1000000.1M",
    "1.5",
    "1.0005k",
    "-1",
    "many",
)
COUNT_0 = ((0, 10**12, "0", "1000000M", "1.5k"), COUNT_BEYOND)
COUNT_1 = ((1, 10**12, "1", "1000000000k", "0.001k"), (0, "0", "0k", "0.0M", "none", *COUNT_BEYOND))
COUNT_2 = ((2, "2", "10", "0.01k"), (0, 1, "0", "1", "01", "1.0", *COUNT_BEYOND))
OR_NONE = ((1, "1", "1.5k", "none", 10**12), (0, "0", *COUNT_BEYOND))
DURATION = (
    ("1ms", "0.5s", "0030s", "1000000000s", "277777h", "16666666m", "1000000000000ms"),
    (
        0,
        30,
        -1,
        "0s",
        "0.0h",
        "30",
        "1000000001s",
        "1000000000.5s",
        "277778h",
        "16666667m",
        "1000000000001ms",
    ),
)
SHARE_BELOW = ((0, 0.99, "0%", "99.9%"), (1, -0.01, "100%", "-1%", "101%", "%"))
SHARE = ((0, 1, "0%", "100%", "100.0%"), (1.01, -0.01, "100.1%", "101%", "1000%"))
RISK = (
    (0.001, 0.5, "0.1%", "50%", "50.0%", "49.999%"),
    (0, 0.51, 0.6, 1, "0%", "0.0%", "50.1%", "51%", "60%", "100%"),
)
SWITCH = (("on", "off", True, False), ("yes", 1, 0))
TEXT = (("x", "x" * 300), ("", 3))
NAME = (("x" * 200, "gpt-4*"), ("x" * 201, "", "*", "**", 3))
RESERVATION = (("forecast", "guaranteed"), ("forecasts", True))
SECRET: dict[str, Tried] = {"env": (("KEY", "_k1"), ("1K", "K-1", "", "KÄ")), "file": (("k",), ("", 3))}
LIMITS: dict[str, Tried] = {
    "weight": ((0.01, 1000, 1), (0.009, 0, -1, 1000.1)),
    "class": (("batch",), ("urgent",)),
    "guarantee": SHARE,
    "limit": (
        (0.001, 1, "0.1%", "100%", "1 tokens", "1000000M tokens", "1.5k tokens"),
        (0, 1.01, "0%", "0.0%", "100.1%", "0 tokens", "0k tokens", "1000001M tokens", "1.5 tokens", "20 GB"),
    ),
    "borrow": (("on", True), SWITCH[1]),
    "queue.depth": COUNT_1,
    "queue.wait": DURATION,
    "queue.order": (("fifo", "deadline", "shortest"), ("lifo",)),
    "max_tokens.default": OR_NONE,
    "max_tokens.cap": OR_NONE,
    "max_tokens.rewrite": SWITCH,
    "rate.tokens_per_minute": OR_NONE,
    "rate.requests_per_minute": OR_NONE,
    "reservation": RESERVATION,
    "risk": RISK,
    "revocable": SWITCH,
    "on_overload": ((429, 503, 529), (428, 500)),
}  # fmt: skip
POOL: dict[str, Tried] = {
    "aliases": ((["gpt-4*"], ["x" * 200]), ([], ["*"], ["x" * 201], ["a", "a"])),
    "backends": (
        (["http://a:1", "https://b:65535/p"], ["http://[::1]:8000"]),
        ([], ["http://a:0"], ["http://a:65536"], ["http://a/v1"], ["http://a/v1/"], ["http://u:p@a"], ["http://a?x"],
         ["ftp://a"], ["http://"], ["http://a b"], ["http://a", "http://a"]),
    ),
    "prompt_tokens": (("learned", "backend", "local:/d"), ("local:", "remote")),
    "reservation": RESERVATION,
    "risk": RISK,
    "max_num_seqs": COUNT_1,
    "num_gpu_blocks": COUNT_2,
    "block_size": COUNT_1,
    "max_model_len": COUNT_1,
    "model_config": (("not-here.json",), ("", {}, 3)),
    "prefix_affinity": SWITCH,
    "prefix_sharing": SWITCH,
    "priority": SWITCH,
    "speculative_tokens": COUNT_0,
    "watermark": SHARE_BELOW,
    "prefill_tokens": COUNT_1,
    **{f"api_key.{name}": tried for name, tried in SECRET.items()},
}  # fmt: skip
TRIED: dict[str, Tried] = {
    "version": ((1,), (0, 2, "1", True)),
    "mode": (("enforce", "observe", "off", False), ("on", True)),
    **{f"pools.NAME.{key}": tried for key, tried in POOL.items()},
    "ledger.url": (
        ("memory://", "redis://r:6379/0", "redis+cluster://r:1"),
        ("redis://", "redis://u:p@r", "http://r", "redis://a b", "memory://x"),
    ),
    "ledger.lease": (DURATION[0][2:], DURATION[1]),
    "ledger.on_failure": (("local", "closed", "open"), ("shut",)),
    **{f"defaults.{key}": tried for key, tried in LIMITS.items()},
    "tenants.NAME.mode": (("enforce", "off"), ("on",)),
    "tenants.NAME.pools.NAME.mode": (("enforce", "off"), ("on",)),
    "tenants.NAME.keys": (([{"sha256": DIGEST}],), ([], ["sk-1"], {})),
    "tenants.NAME.keys[].sha256": ((DIGEST, DIGEST.upper()), (DIGEST[1:], DIGEST + "a", "g" * 64)),
    **{f"tenants.NAME.keys[].{name}": tried for name, tried in SECRET.items()},
    "unknown_tenant": (("reject", "t"), ("", "a/b", "x" * 129)),
    "identity.from": (("api_key",), ("cookie",)),
    "identity.name": (("x-tenant",), ("", "x tenant", "Host", "authorization")),
    "identity.trusted_proxies": ((["10.0.0.0/8", "fd00::/8", "::1"],), ([], ["everyone"])),
    "identity.claim": TEXT,
    "identity.jwks_file": (("k",), ("",)),
    "identity.jwks_url": (
        ("https://i/k.json", "http://localhost:8/k"),
        ("http://i/k.json", "https://u@i/", "https:///k", "https://i:65536/"),
    ),
    "identity.issuer": TEXT,
    "identity.audience": TEXT,
    "identity.algorithms": ((["RS256"],), ([], ["none"])),
    "bypass": COUNT_0,
}  # fmt: skip
SECTIONS = {
    *(
        "pools",
        "pools.NAME.api_key",
        "ledger",
        "defaults",
        "defaults.queue",
        "defaults.max_tokens",
        "defaults.rate",
    ),
    *("tenants", "tenants.NAME.pools", "identity"),
}
ANY = [value for tried in TRIED.values() for side in tried for value in side]
EVERYTHING = [*ANY, *([value] for value in ANY if isinstance(value, str | int))]


def document(path: str, value: Any) -> dict[str, Any]:
    """A file that is right but perhaps for the value at this path of the format."""
    made: dict[str, Any] = {"version": 1, "pools": {"m": {"backends": ["http://a"]}}}
    if path.startswith("identity."):
        made |= {"tenants": {"t": {}}, "identity": _identity_beside(path)}
    elif path.startswith("tenants.") or path == "unknown_tenant":
        made |= {
            "tenants": {"t": {} if path.startswith("tenants.NAME.keys") else {"keys": [{"sha256": DIGEST}]}}
        }
    *sections, key = _named(path).split(".")
    at: Any = made
    for name in sections:
        at = at.setdefault(name.removesuffix("[]"), [{}] if name.endswith("[]") else {})
        at = at[0] if isinstance(at, list) else at
    at[key] = value
    if path == "defaults.borrow":
        at["guarantee"] = "10%"
    return made


def _named(path: str) -> str:
    return path.replace("pools.NAME", "pools.m").replace("tenants.NAME", "tenants.t")


def place(path: str) -> str:
    """Where a refusal of the value at this path begins."""
    return f"policy.yaml: {_named(path).replace('[]', '.0')}"


def _identity_beside(path: str) -> dict[str, Any]:
    key = path.removeprefix("identity.")
    if key in {"name", "trusted_proxies"}:
        return {"from": "header", "name": "x-t", "trusted_proxies": ["10.0.0.0/8"]}
    if key == "from":
        return {}
    return {"from": "jwt", "claim": "sub"} | ({} if key.startswith("jwks") else {"jwks_file": "k"})


def readable(made: dict[str, Any], tmp_path: Path) -> str:
    """What the reader says against a file; empty for nothing."""
    file = tmp_path / "policy.yaml"
    file.write_text(json.dumps(made))  # JSON is YAML, and leaves no doubt of what is text and what a number
    try:
        load_elsewhere(file)
    except ConfigError as error:
        return str(error)
    return ""


def takes(made: dict[str, Any]) -> bool:
    return bool(VALIDATOR.is_valid(made))


def cases(side: int) -> list[Any]:
    return [
        pytest.param(path, value, id=f"{path}={str(value)[:30]}")
        for path, tried in TRIED.items()
        for value in tried[side]
    ]


def test_every_key_is_tried() -> None:
    assert {key.path for key in keys_of_the_format()} - SECTIONS == TRIED.keys()


@pytest.mark.parametrize(("path", "value"), cases(0))
def test_what_is_within_its_bounds_is_taken_by_both(path: str, value: Any, tmp_path: Path) -> None:
    made = document(path, value)
    said = readable(made, tmp_path)
    belongs_to_nobody = said.count("\n") == 0 and "no request could belong to it" in said
    assert not said or (path == "identity.from" and belongs_to_nobody)
    assert takes(made)


@pytest.mark.parametrize(("path", "value"), cases(1))
def test_what_is_beyond_them_is_taken_by_neither(path: str, value: Any, tmp_path: Path) -> None:
    made = document(path, value)
    said = readable(made, tmp_path)
    assert place(path) in said
    assert "Input should" not in said  # in the words of the format, not of a library
    assert not takes(made)


@pytest.mark.parametrize("path", TRIED)
def test_whatever_the_schema_takes_can_be_read(path: str, tmp_path: Path) -> None:
    taken = [value for value in EVERYTHING if takes(document(path, value))]
    told = {repr(value): readable(document(path, value), tmp_path) for value in taken}
    assert taken
    assert {
        value: said
        for value, said in told.items()
        if place(path) in said and not any(beside in said for beside in BESIDE_OTHERS)
    } == {}


@pytest.mark.parametrize("name", ["reject", "other", "unknown", "all", "a/b", "", "x" * 129])
def test_names_that_no_tenant_can_have(name: str, tmp_path: Path) -> None:
    made = document("bypass", 1) | {"tenants": {name: {"keys": [{"sha256": DIGEST}]}}}
    assert readable(made, tmp_path)
    assert not takes(made)
    right = document("bypass", 1) | {"tenants": {"rejected": {"keys": [{"sha256": DIGEST}]}}}
    assert (readable(right, tmp_path), takes(right)) == ("", True)


@pytest.mark.parametrize("name", ["gpt-*", " m", "m ", "x" * 201])
def test_names_that_no_pool_can_have(name: str, tmp_path: Path) -> None:
    made = {"version": 1, "pools": {name: {"backends": ["http://a"]}}}
    assert readable(made, tmp_path)
    assert not takes(made)
    right = {"version": 1, "pools": {"m m": {"backends": ["http://a"]}}}
    assert (readable(right, tmp_path), takes(right)) == ("", True)


def test_a_section_of_pools_says_something(tmp_path: Path) -> None:
    made = document("tenants.NAME.pools", NOTHING)
    assert "tenants.t.pools" in readable(made, tmp_path)
    assert not takes(made)
