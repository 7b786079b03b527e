"""What the commands over the admin port say when the answer is no, or is none."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from kvgate.cli.admin_port import AdminPort, seconds, share
from kvgate.cli.engines import list_engines
from kvgate.cli.queue import queue
from kvgate.errors import ConfigError


class Answers(ThreadingHTTPServer):
    """Answers everything the same way, and remembers what it was asked."""

    daemon_threads = True
    status = 200
    text = "{}"

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[tuple[str, str, str | None, str]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Answers

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0))).decode()
        self.server.asked.append((self.command, self.path, self.headers.get("authorization"), body))
        self.send_response(self.server.status)
        self.end_headers()
        self.wfile.write(self.server.text.encode())

    do_GET = do_POST = do_PATCH = do_DELETE = answer  # noqa: N815  as http.server calls them

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def server() -> Iterator[Answers]:
    with Answers() as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KVGATE_ADMIN", "KVGATE_ADMIN_TOKEN", "KVGATE_ADMIN_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)


def test_every_method_with_query_body_and_token(server: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVGATE_ADMIN", server.url + "/")
    monkeypatch.setenv("KVGATE_ADMIN_TOKEN", "hush")
    server.text = '{"a": 1}'
    port = AdminPort(None, None)
    assert port.get("/x", pool="p q", after=None) == {"a": 1}
    port.patch("/x", {"weight": "6"})
    port.post("/x", {})
    port.delete("/x", pool=None)
    assert server.asked == [
        ("GET", "/x?pool=p+q", "Bearer hush", ""),
        ("PATCH", "/x", "Bearer hush", '{"weight":"6"}'),
        ("POST", "/x", "Bearer hush", "{}"),
        ("DELETE", "/x", "Bearer hush", ""),
    ]


def test_a_token_from_a_file_comes_before_the_environment(
    server: Answers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "token"
    file.write_text("from-file\n")
    monkeypatch.setenv("KVGATE_ADMIN_TOKEN", "from-environment")
    AdminPort(server.url, file).get("/x")
    monkeypatch.setenv("KVGATE_ADMIN_TOKEN_FILE", str(file))
    AdminPort(server.url, None).get("/x")
    assert [asked[2] for asked in server.asked] == ["Bearer from-file"] * 2


@pytest.mark.parametrize(
    ("status", "text", "said"),
    [
        (401, json.dumps({"detail": "no"}), "the admin token is missing"),
        (422, json.dumps({"detail": "weight: not that"}), "weight: not that"),
        (404, json.dumps({"error": "Not Found"}), "is no admin port of kvgate"),
        (404, "<html>", "is no admin port of kvgate"),
        (200, "[]", "is no admin port of kvgate"),
        (200, "", "is no admin port of kvgate"),
    ],
)
def test_what_is_no_good_answer(server: Answers, status: int, text: str, said: str) -> None:
    server.status, server.text = status, text
    with pytest.raises(ConfigError, match=said):
        AdminPort(server.url, None).get("/x")


def test_nobody_there_a_bad_url_and_a_bad_token_file(tmp_path: Path) -> None:
    with Answers() as gone:
        url = gone.url
    with pytest.raises(ConfigError, match="no kvgate answers at"):
        AdminPort(url, None).get("/x")
    with pytest.raises(ConfigError, match="--admin: 'gpu-a:9091' is not allowed"):
        AdminPort("gpu-a:9091", None)
    with pytest.raises(ConfigError, match="cannot be read"):
        AdminPort(url, tmp_path / "missing")
    (tmp_path / "bad").write_bytes(b"two\nlines")
    with pytest.raises(ConfigError, match="is no token"):
        AdminPort(url, tmp_path / "bad")


def test_numbers_for_people() -> None:
    assert [seconds(s) for s in (0.25, 119.9, 120, 7199, 7200)] == [
        "0.2 s",
        "119.9 s",
        "2 min",
        "120 min",
        "2 h",
    ]
    assert [share(s) for s in (0, 0.3, 1, 0.125)] == ["0%", "30%", "100%", "12.5%"]


@pytest.mark.parametrize(
    ("accepting", "said"),
    [
        (2, "p: 40 of 1,100 KV blocks and 3 of 8 sequence slots are reserved, 2 of 3 engines take work."),
        (0, "p: no engine takes work; see `kvgate engines`."),
    ],
)
def test_the_queue_says_why(
    server: Answers, capsys: pytest.CaptureFixture[str], accepting: int, said: str
) -> None:
    waiting = {"tenant": "chat", "queued": 2, "oldest_wait_s": 1.5, "waits_for": "room"}
    room = {"blocks": 1100, "reserved_blocks": 40, "seqs": 8, "reserved_seqs": 3, "engines": 3}
    pool = {"pool": "p", "queued": 2, "tenants": [waiting], "kept_free": [], "engines_accepting": accepting}
    server.text = json.dumps({"pools": [pool | room]})
    assert queue(admin=server.url) == 0
    assert said in capsys.readouterr().out.splitlines()
    server.text = json.dumps({"pools": [pool | room | {"share_blocks": 330}]})
    assert queue(admin=server.url) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert ("each process may use at most 330 of the blocks" in out) is bool(accepting)


@pytest.mark.parametrize(
    ("different", "said"),
    [
        (
            {"closed_blocks": 30, "closed_seqs": 1},
            (
                "p: 10 of 1,100 KV blocks and 2 of 8 sequence slots are reserved, 2 of 3 engines take work. Engines that "
                "take none still hold 30 blocks and 1 sequence."
            ),
        ),
        (
            {"closed_blocks": 40, "closed_seqs": 3, "engines_accepting": 0},
            (
                "p: no engine takes work; see `kvgate engines`. Engines that take none still hold 40 blocks and 3 "
                "sequences."
            ),
        ),
        (
            {"waits_for": "prompts"},
            "engines take work. 5,000 of 8,192 prompt tokens that may be under way are not computed yet: who waits",
        ),
    ],
)
def test_the_queue_says_what_still_runs_and_what_is_computed(
    server: Answers, capsys: pytest.CaptureFixture[str], different: dict[str, object], said: str
) -> None:
    waiting = {"tenant": "chat", "queued": 2, "oldest_wait_s": 1.5, "waits_for": "room"}
    waiting |= {name: value for name, value in different.items() if name in waiting}
    pool = {
        "pool": "p",
        "queued": 2,
        "tenants": [waiting],
        "kept_free": [],
        "engines_accepting": 2,
        "engines": 3,
    }
    room = {"blocks": 1100, "reserved_blocks": 40, "seqs": 8, "reserved_seqs": 3, "share_blocks": None}
    prompts = {"prefill_tokens": 8192, "reserved_prefill_tokens": 5600, "closed_prefill_tokens": 600}
    server.text = json.dumps({"pools": [pool | room | prompts | different]})
    assert queue(admin=server.url) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert said in out
    assert ("prompt tokens" in out) is ("waits_for" in different)


def test_the_engines_say_what_is_reserved_and_the_share_while_the_ledger_is_away(
    server: Answers, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = {
        "engine_id": "e", "pool": "p", "state": "up", "limits": {"blocks": 300}, "gauges": None,
        "blocks_usable": 200, "reserved_blocks": 66, "peak_blocks": 5184, "share_blocks": None,
    }  # fmt: skip
    server.text = json.dumps({"engines": [engine]})
    assert list_engines(admin=server.url) == 0
    out = capsys.readouterr().out
    assert ["e", "p", "up", "300", "200", "66"] in [line.split()[:6] for line in out.splitlines()]
    assert "away" not in out
    server.text = json.dumps({"engines": [engine | {"share_blocks": 90}]})
    assert list_engines(admin=server.url) == 0
    out = capsys.readouterr().out
    assert ["e", "p", "up", "300", "90", "66"] in [line.split()[:6] for line in out.splitlines()]
    assert "The shared ledger is away" in out
