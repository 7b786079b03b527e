"""Prometheus without a container: where its program comes from, and what it scrapes.

The program of this machine is taken if there is one. Otherwise, on Debian and its relatives, the package is fetched
from the machine's own mirror and unpacked into the cache folder: nothing is installed, no service is started, and it
needs no root.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Mapping

FETCH_S_MAX = 120.0
"""The package is about 25 MB."""


def find_prometheus() -> str | None:
    """The program on this machine or in the cache, or else fetched; None where that can't be done."""
    if found := shutil.which("prometheus"):
        return found
    unpacked = cache_folder() / "unpacked"
    program = unpacked / "usr/bin/prometheus"
    if not program.is_file():
        _fetch(unpacked)
    return str(program) if program.is_file() else None


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvgate/prometheus"


def _fetch(folder: Path) -> None:
    """Download and unpack. It appears under its name only when it is whole; nothing does where that can't be done."""
    if not (shutil.which("apt-get") and shutil.which("dpkg")):
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(dir=folder.parent) as work,
        contextlib.suppress(OSError, subprocess.SubprocessError, ValueError),
    ):
        _run(["apt-get", "download", "prometheus"], work)
        [package] = Path(work).glob("*.deb")
        _run(["dpkg", "-x", package.name, "unpacked"], work)
        (Path(work) / "unpacked").rename(folder)  # refused when somebody else was faster


def _run(command: list[str], folder: str) -> None:
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=FETCH_S_MAX)


def prometheus_config(compose_config: str, addresses: Mapping[str, str], rules: Path) -> str:
    """The configuration of the compose file with other addresses and another folder of rules.

    Raises KeyError for a target that has no address here.
    """
    config: dict[str, Any] = yaml.safe_load(compose_config)
    config["rule_files"] = [str(rules / Path(pattern).name) for pattern in config["rule_files"]]
    for job in config["scrape_configs"]:
        for group in job["static_configs"]:
            group["targets"] = [addresses[target] for target in group["targets"]]
    return yaml.safe_dump(config, sort_keys=False)
