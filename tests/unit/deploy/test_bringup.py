"""What `deploy/up.py` reads and writes, without starting anything: the shape, the configuration, the keys, the places."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
import yaml

from bringup import monitoring
from bringup.monitoring import find_prometheus, prometheus_config
from bringup.ports import HOST, PortTakenError, check_free, places_for, with_free_ports
from bringup.shape import read_shape
from bringup.traffic import keys_of
from kvgate.demo.children import free_ports
from up import duration_s

DEPLOY = Path(__file__).parents[3] / "deploy"
COMPOSE = DEPLOY / "compose.yaml"


def test_the_shape_is_that_of_the_compose_file():
    shape = read_shape(COMPOSE, {})
    assert [(gate.name, gate.port, gate.admin_port) for gate in shape.gates] == [
        ("kvgate-a", 8080, 9091),
        ("kvgate-b", 8081, 9092),
    ]
    assert [(engine.name, engine.address) for engine in shape.engines] == [
        ("sim-a", "engine-a:8000"),
        ("sim-b", "engine-b:8000"),
    ]
    assert all(engine.command[0] == "sim-engine" for engine in shape.engines)
    assert shape.store_options[-1] == "noeviction"
    assert shape.prometheus_port == 9090


def test_variables_are_put_in_and_an_empty_one_counts_as_none():
    first, second = read_shape(COMPOSE, {"CHAT_KEY": "mine", "RESEARCH_KEY": ""}).gates
    assert first.environment == second.environment
    assert (first.environment["CHAT_KEY"], first.environment["RESEARCH_KEY"]) == ("mine", "research-demo-key")
    assert first.environment["KVGATE_ADMIN_TOKEN"] == ""


def test_free_ports_are_all_different_and_leave_the_rest_as_it_is():
    shape = read_shape(COMPOSE, {})
    free = with_free_ports(shape)
    ports = [port for gate in free.gates for port in (gate.port, gate.admin_port)] + [free.prometheus_port]
    assert len(set(ports)) == 5
    assert [gate.environment for gate in free.gates] == [gate.environment for gate in shape.gates]
    places = places_for(shape)
    assert list(places.engines) == ["engine-a:8000", "engine-b:8000"]
    assert len({*places.engines.values(), places.store_port}) == 3


def test_a_taken_port_is_named_before_anything_starts():
    shape = with_free_ports(read_shape(COMPOSE, {}))
    check_free(shape)
    with socket.create_server((HOST, shape.gates[1].admin_port)):
        with pytest.raises(PortTakenError, match=str(shape.gates[1].admin_port)):
            check_free(shape)


def test_prometheus_gets_the_same_jobs_at_other_addresses(tmp_path: Path):
    wanted = (DEPLOY / "compose/prometheus.yaml").read_text()
    names = ["kvgate-a:9091", "kvgate-b:9091", "engine-a:8000", "engine-b:8000"]
    here = {name: f"{HOST}:{port}" for name, port in zip(names, free_ports(4), strict=True)}
    config = yaml.safe_load(prometheus_config(wanted, here, tmp_path))
    assert config["rule_files"] == [f"{tmp_path}/*.yaml"]
    targets = [target for job in config["scrape_configs"] for target in job["static_configs"][0]["targets"]]
    assert targets == list(here.values())
    del here["engine-b:8000"]
    with pytest.raises(KeyError, match="engine-b"):
        prometheus_config(wanted, here, tmp_path)


def test_keys_come_from_where_the_policy_says(tmp_path: Path):
    policy = tmp_path / "policy.yaml"
    policy.write_text("tenants: {a: {keys: [{env: A_KEY}, {env: OLD}]}, b: {keys: [{file: b-key}]}}")
    (tmp_path / "b-key").write_text("of b\n")
    assert keys_of(policy, {"A_KEY": "of a"}) == {"a": "of a", "b": "of b"}
    with pytest.raises(KeyError, match="A_KEY"):
        keys_of(policy, {})


@pytest.mark.parametrize(("text", "seconds"), [("30s", 30), ("1.5m", 90), ("2h", 7200)])
def test_durations(text: str, seconds: float):
    assert duration_s(text) == seconds


@pytest.mark.parametrize("text", ["30", "s", "-1s", "0s", "1d", ""])
def test_what_is_no_duration(text: str):
    with pytest.raises(ValueError, match=f"^{text}$"):
        duration_s(text)


class TestFindingPrometheus:
    """With an `apt-get` and a `dpkg` of the test's own on the PATH."""

    @pytest.fixture
    def path(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        tools = tmp_path / "tools"
        tools.mkdir()
        monkeypatch.setenv("PATH", str(tools))
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        return tools

    @staticmethod
    def tool(folder: Path, name: str, script: str) -> None:
        (folder / name).write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{script}\n")
        (folder / name).chmod(0o755)

    def test_that_of_the_machine_is_taken(self, path: Path):
        self.tool(path, "prometheus", "")
        assert find_prometheus() == str(path / "prometheus")

    def test_without_packages_there_is_none(self, path: Path):
        assert find_prometheus() is None

    def test_the_package_is_unpacked_once(self, path: Path):
        self.tool(path, "apt-get", f"echo x >>{path}/fetched; touch prometheus_1_amd64.deb")
        self.tool(path, "dpkg", 'mkdir -p "$3/usr/bin"; touch "$3/usr/bin/prometheus"')
        found = find_prometheus()
        assert found == str(monitoring.cache_folder() / "unpacked/usr/bin/prometheus")
        assert find_prometheus() == found
        assert (path / "fetched").read_text() == "x\n"

    @pytest.mark.parametrize(
        ("fetch", "unpack"), [("exit 100", ""), ("true", ""), ("touch a.deb", "mkdir -p $3/usr; exit 2")]
    )
    def test_what_fails_leaves_nothing_and_is_tried_again(self, path: Path, fetch: str, unpack: str):
        self.tool(path, "apt-get", fetch)
        self.tool(path, "dpkg", unpack)
        assert find_prometheus() is None
        assert list(monitoring.cache_folder().iterdir()) == []
