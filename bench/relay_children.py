"""The processes of the bench: started, kept apart on their cores, and read out.

A child says where it listens in the first line of its standard output, as JSON, and ends with its standard
input, so that none outlives the bench. What a proxy costs is the processor time of its whole process tree: that
does not count the time it waited for a core, so a busy machine changes it little.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import IO, Any, cast

import psutil

HERE = Path(__file__).parent
STOP_S_MAX = 10.0
"""For a child to end by itself; then it is killed."""


def cores() -> tuple[int, int]:
    """The core of the proxies, and that of the engine and the load; the same one where there is only one."""
    usable = sorted(os.sched_getaffinity(0))
    return usable[0], usable[-1]


def say_ready(url: str) -> None:
    """For a child: tell the parent, and end when the parent does."""
    print(json.dumps({"url": url}), flush=True)


def end_with_parent() -> None:
    """For a child that does not read its standard input otherwise."""
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


class Child:
    """A script of this folder as a process on one core."""

    def __init__(self, script: str, *args: str, core: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / script), *args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        os.sched_setaffinity(self._process.pid, {core})
        self._ps = psutil.Process(self._process.pid)
        self.url = str(self._read()["url"])

    def ask(self) -> dict[str, Any]:
        """One line out, one line in: what a child tells of itself when asked."""
        stdin = cast("IO[bytes]", self._process.stdin)
        stdin.write(b"?\n")
        stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        line = cast("IO[bytes]", self._process.stdout).readline()
        if not line:
            raise RuntimeError(f"{self._process.args!r} ended before it was ready")
        return cast("dict[str, Any]", json.loads(line))

    @property
    def pid(self) -> int:
        return self._process.pid

    def cpu_s(self) -> float:
        return _tree_cpu_s(self._ps)

    def memory_bytes(self) -> int:
        """Proportional set size: what would be free without this process."""
        return int(self._ps.memory_full_info().pss)

    def close(self) -> None:
        _stop(self._process)


class Nginx:
    """nginx as a plain streaming proxy: what the relay itself costs without Python."""

    def __init__(self, upstream: str, port: int, core: int) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="relay-bench-")
        config = Path(self._folder.name) / "nginx.conf"
        config.write_text(_NGINX.format(folder=self._folder.name, upstream=upstream, port=port))
        self._process = subprocess.Popen(
            ["nginx", "-c", str(config), "-p", self._folder.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        time.sleep(0.5)
        self._ps = psutil.Process(self._process.pid)
        for process in [self._ps, *self._ps.children(recursive=True)]:
            os.sched_setaffinity(process.pid, {core})
        self.url = f"http://127.0.0.1:{port}"

    @staticmethod
    def installed() -> bool:
        return shutil.which("nginx") is not None

    def cpu_s(self) -> float:
        return _tree_cpu_s(self._ps)

    def memory_bytes(self) -> int:
        tree = [self._ps, *self._ps.children(recursive=True)]
        return sum(int(process.memory_full_info().pss) for process in tree)

    def close(self) -> None:
        _stop(self._process)
        self._folder.cleanup()


def _tree_cpu_s(root: psutil.Process) -> float:
    times = [process.cpu_times() for process in [root, *root.children(recursive=True)]]
    return sum(one.user + one.system for one in times)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_S_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


_NGINX = """
daemon off;
worker_processes 1;
pid {folder}/pid;
error_log {folder}/error.log;
events {{ worker_connections 8192; }}
http {{
  access_log off;
  client_body_temp_path {folder}; proxy_temp_path {folder};
  fastcgi_temp_path {folder}; uwsgi_temp_path {folder}; scgi_temp_path {folder};
  upstream engine {{ server {upstream}; keepalive 512; }}
  server {{
    listen 127.0.0.1:{port};
    keepalive_requests 1000000;
    location / {{
      proxy_pass http://engine;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
      proxy_read_timeout 120s;
    }}
  }}
}}
"""
