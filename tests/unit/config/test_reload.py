"""Reading the policy again and again: a good file gives what it says, a bad one an error and nothing else."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import yaml

from kvgate.config import Settings, load
from kvgate.config.live import LivePolicy
from kvgate.errors import ConfigError

ENV = {"KEY_A": "a", "KEY_B": "b", "KEY_C": "c"}
TENANTS = ("a", "b", "c")


def a_file(rng: random.Random) -> dict[str, object]:
    """Some policy that is right: tenants come and go, weights, guarantees and limits change."""
    present = rng.sample(TENANTS, rng.randint(1, 3))
    tenants = {
        name: {
            "keys": [{"env": f"KEY_{name.upper()}"}],
            "weight": rng.randint(1, 9),
            "guarantee": f"{rng.randint(0, 33)}%",
            "limit": f"{rng.randint(34, 100)}%",
        }
        for name in present
    }
    backends = [f"http://{host}" for host in rng.sample("xyz", rng.randint(1, 3))]
    return {"version": 1, "pools": {"m": {"backends": backends}}, "tenants": tenants}


def broken(rng: random.Random, document: dict[str, object]) -> dict[str, object]:
    return document | rng.choice(
        [{"version": 2}, {"tenants": {"a": {}}}, {"pools": {}}, {"unknown_tenant": "z"}, {"extra": 1}]
    )


def test_fifty_changes_right_and_wrong(tmp_path: Path) -> None:
    rng, file = random.Random(4), tmp_path / "policy.yaml"
    file.write_text(yaml.safe_dump(a_file(rng)))
    settings = load(file, ENV, {})
    live, refused = LivePolicy(settings.book), 0
    for _ in range(50):
        good = rng.random() < 0.7
        document = a_file(rng) if good else broken(rng, a_file(rng))
        file.write_text(yaml.safe_dump(document))
        if not good:
            refused += 1
            with pytest.raises(ConfigError, match=str(file)):
                load(file, ENV, {})
            continue
        live.current = load(file, ENV, {}).book
        tenants = document["tenants"]
        assert isinstance(tenants, dict)
        assert set(live.current.names) == set(tenants)
        for name, section in tenants.items():
            assert live.current.policy(name, "m").rules.weight == section["weight"]
    assert 5 < refused < 30


def test_reading_the_same_file_again_gives_the_same(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(yaml.safe_dump(a_file(random.Random(1))))
    assert load(file, ENV, {}) == load(file, ENV, {})


def test_a_key_that_changed_in_its_file_is_read_anew(tmp_path: Path) -> None:
    file, key = tmp_path / "policy.yaml", tmp_path / "key"
    file.write_text("version: 1\npools: {m: {backends: [http://a]}}\ntenants: {t: {keys: [{file: key}]}}\n")
    key.write_text("old")
    before = load(file, {}, {}).book
    key.write_text("new")
    after = load(file, {}, {}).book
    assert before.keys.keys().isdisjoint(after.keys)
    key.write_text(" \n")
    with pytest.raises(ConfigError, match=r"tenants\.t\.keys\.0: the file .*key is empty or not set"):
        load(file, {}, {})
    key.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="cannot be read: it is no text"):
        load(file, {}, {})
    key.write_bytes(b"x" * 70_000)
    with pytest.raises(ConfigError, match="is larger than 65536 bytes"):
        load(file, {}, {})


def test_what_a_request_took_stays_as_it_was(tmp_path: Path) -> None:
    live = LivePolicy(Settings(backends=("http://a",)).book)
    taken = live.current
    file = tmp_path / "policy.yaml"
    file.write_text(yaml.safe_dump(a_file(random.Random(2))))
    live.current = load(file, ENV, {}).book
    assert taken.names == ("anonymous",)
    assert taken.policy("anonymous", "m").rules.weight == 1
