"""compose.yaml: valid, pinned, hardened, and about things that exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from bringup.shape import read_shape
from bringup.traffic import FLOWS, keys_of
from kvgate.app import SERVER_STOP_S
from kvgate.config import load
from kvgate.config.options import OPTIONS
from kvgate.config.policy import read_policy

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
COMPOSE = DEPLOY / "compose.yaml"
TEXT = COMPOSE.read_text()
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load(TEXT)["services"]
README = (DEPLOY / "README.md").read_text()
POLICY = DEPLOY / "compose/policy.yaml"
KEYS = {"CHAT_KEY": "a", "RESEARCH_KEY": "b"}

every_service = pytest.mark.parametrize("service", SERVICES.values(), ids=list(SERVICES))


def profile(name: str) -> dict[str, dict[str, Any]]:
    return {key: one for key, one in SERVICES.items() if name in one.get("profiles", [name])}


def mounts() -> list[tuple[str, str, str]]:
    return [tuple(v.split(":")) for one in SERVICES.values() for v in one.get("volumes", []) if v[0] == "."]


def test_it_is_what_the_specification_asks_for():
    command = ("-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(COMPOSE))
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@every_service
def test_images_are_pinned(service: dict[str, Any]):
    name, _, tag = service["image"].rpartition(":")
    assert name
    assert tag == "local" if "build" in service else re.fullmatch(r"v?\d+\.\d+\.\d+(-\w+)?", tag), tag
    assert "build" not in service or (service["image"], service["pull_policy"]) == ("kvgate:local", "build")


def test_what_is_built_is_there():
    builds = {
        (one["build"]["context"], one["build"]["dockerfile"]) for one in SERVICES.values() if "build" in one
    }
    [(context, dockerfile)] = builds
    assert (DEPLOY / context / dockerfile).is_file()


def test_every_file_that_is_mounted_exists_and_is_only_read():
    found = mounts()
    assert found
    for source, _, mode in found:
        assert (DEPLOY / source).exists(), source
        assert mode == "ro", source


def test_what_the_images_are_told_of_is_mounted():
    inside = {Path(target): DEPLOY / source for source, target, _ in mounts()}
    text = "\n".join(
        line for line in TEXT.splitlines() if not line.lstrip().startswith(("-", "#")) or "/etc/" in line
    )
    named = set(re.findall(r"/(?:etc|traffic)/[\w./-]+\.(?:yaml|py)", text))
    assert len(named) >= 3
    for path in map(Path, named):
        here = inside.get(path) or next(inside[p] / path.relative_to(p) for p in path.parents if p in inside)
        assert here.is_file(), path


@every_service
def test_ports_are_published_on_this_machine_only(service: dict[str, Any]):
    for port in service.get("ports", []):
        assert re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port), port


@every_service
def test_it_may_do_and_write_as_little_as_possible(service: dict[str, Any]):
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service.get("read_only") or service["profiles"] == ["gpu"]  # vLLM compiles and downloads


@pytest.mark.parametrize("name", ["cpu", "gpu"])
def test_whoever_waits_for_health_waits_for_a_service_that_has_one(name: str):
    services = profile(name) | profile("load")
    for key, service in services.items():
        for other, how in service.get("depends_on", {}).items():
            assert other in services, (key, other)
            assert how == {"condition": "service_healthy"}
            image_has_one = services[other]["image"] == "kvgate:local"  # its Dockerfile says HEALTHCHECK
            assert "test" in services[other].get("healthcheck", {}) or image_has_one


@pytest.mark.parametrize("name", ["cpu", "gpu"])
def test_each_profile_has_the_engines_of_the_policy(name: str):
    [pool] = read_policy(POLICY).pools.values()
    aliases = [
        alias
        for one in profile(name).values()
        for alias in one.get("networks", {}).get("default", {}).get("aliases", [])
    ]
    assert [f"http://{alias}:8000" for alias in aliases] == list(pool.backends)


def test_prometheus_scrapes_every_kvgate_and_every_engine_under_the_usual_names():
    ours, usual = (
        {
            job["job_name"]: job["static_configs"][0]["targets"]
            for job in yaml.safe_load(path.read_text())["scrape_configs"]
        }
        for path in (DEPLOY / "compose/prometheus.yaml", ROOT / "grafana/prometheus.yaml")
    )
    assert ours.keys() == usual.keys()
    assert ours["kvgate"] == [
        f"{name}:9091" for name, one in SERVICES.items() if one.get("command") == ["serve"]
    ]
    assert ours["vllm"] == ["engine-a:8000", "engine-b:8000"]


def test_its_rules_and_boards_are_those_of_the_project():
    rules = yaml.safe_load((DEPLOY / "compose/prometheus.yaml").read_text())["rule_files"]
    assert rules == ["/etc/prometheus/rules/*.yaml"]
    assert ("../grafana/rules", "/etc/prometheus/rules", "ro") in mounts()
    assert list((ROOT / "grafana/rules").glob("*.yaml"))
    boards = yaml.safe_load((ROOT / "grafana/provisioning/dashboards/kvgate.yaml").read_text())
    assert ("../grafana/dashboards", boards["providers"][0]["options"]["path"], "ro") in mounts()
    source = yaml.safe_load((ROOT / "grafana/provisioning/datasources/prometheus.yaml").read_text())
    assert source["datasources"][0]["url"] == "http://prometheus:9090"


def test_settings_of_kvgate_exist():
    known = {option.env for option in OPTIONS} | {"KVGATE_POLICY"}
    named = {
        key for one in SERVICES.values() for key in one.get("environment", {}) if key.startswith("KVGATE_")
    }
    assert named
    assert named <= known


def test_every_variable_has_a_default_and_is_told_of():
    variables = re.findall(r"\$\{(\w+)(.*?)\}", TEXT)
    assert variables
    for name, rest in variables:
        assert rest.startswith(":-"), name
        assert f"`{name}`" in README, name


def test_the_policy_loads_with_what_compose_gives_it():
    [environment, _] = [gate.environment for gate in read_shape(COMPOSE, {}).gates]
    settings = load(POLICY, environment, {})
    assert settings.ledger_shared
    assert set(settings.book.names) == {"chat", "research", "batch"}
    assert settings.admin_token is None
    grace_s = float(SERVICES["kvgate-a"]["stop_grace_period"].removesuffix("s"))
    assert settings.timeouts.drain_s + SERVER_STOP_S < grace_s


def test_what_is_mounted_can_be_read_by_any_user():
    files = [file for source, _, _ in mounts() for file in [DEPLOY / source, *(DEPLOY / source).rglob("*")]]
    assert [str(file) for file in files if not file.stat().st_mode & 0o004] == []


def test_the_ledger_is_not_evicted_and_not_saved():
    words = SERVICES["valkey"]["command"]
    options = dict(zip(words[1::2], words[2::2], strict=True))
    assert options["--maxmemory-policy"] == "noeviction"
    assert (options["--save"], options["--appendonly"]) == ("", "no")


def test_both_kinds_of_engines_run_what_the_policy_says():
    [pool] = read_policy(POLICY).pools.values()
    for name in ("sim-a", "vllm-a"):
        assert f"--max-num-seqs={pool.max_num_seqs}" in SERVICES[name]["command"]


def test_the_tenants_who_ask_are_those_of_the_policy():
    assert [flow.tenant for flow in FLOWS] == list(keys_of(POLICY, KEYS))


def test_each_gpu_goes_to_one_engine():
    devices = [
        device["device_ids"]
        for one in profile("gpu").values()
        if "deploy" in one
        for device in one["deploy"]["resources"]["reservations"]["devices"]
    ]
    assert devices == [["0"], ["1"]]
