"""`kvgate load`: every option reaches what it is for, and a line for every mistake."""

from __future__ import annotations

import asyncio
import json
import shlex
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest
from typer.testing import CliRunner

from kvgate.cli import app
from kvgate.load.lengths import Fixed, Independent, LogNormal, Uniform
from kvgate.load.mix import ALONE, Tenant
from kvgate.load.order import Order
from kvgate.load.result import Result as LoadResult
from kvgate.load.workload import PromptKind
from kvgate.sim import SimServer

ENV = {"NO_COLOR": "1", "COLUMNS": "200", "TERM": "dumb", "SECRET": "sk-1"}
URL = "http://127.0.0.1:9"


@pytest.fixture
def runner() -> CliRunner:
    return CliRunner(env=ENV)


@pytest.fixture
def orders(monkeypatch: pytest.MonkeyPatch) -> list[Order]:
    """What would be carried out."""
    seen: list[Order] = []

    def take(order: Order) -> LoadResult:
        seen.append(order)
        return LoadResult(order.what, order.objective)

    monkeypatch.setattr("kvgate.cli.load._carried_out", take)
    return seen


def order_of(runner: CliRunner, orders: Any, args: str) -> Order:
    result = runner.invoke(app, ["load", *shlex.split(args)])
    assert result.exit_code == 1, result.output  # nothing completed
    order: Order = orders[-1]
    return order


def test_defaults(runner: CliRunner, orders: Any) -> None:
    order = order_of(runner, orders, f"{URL}/v1/")
    assert order.urls == {"result": URL}
    assert order.sizes == Independent(Fixed(256), Fixed(128))
    assert (order.concurrency, order.rate, order.requests, order.in_flight_max) == (8, None, None, 512)
    assert (order.bounds.duration_s, order.bounds.drain_s, order.patience.retries_max) == (60.0, 60.0, 0)
    assert (order.tenants, order.kind, order.engines, order.find_ceiling) == (
        ALONE,
        PromptKind.TOKEN_IDS,
        (),
        False,
    )
    assert order.what == "8 clients, one request each, at most 60 s; the longest session is 256 + 128 tokens."


def test_all_of_them(runner: CliRunner, orders: Any) -> None:
    order = order_of(
        runner,
        orders,
        f"--compare direct={URL} kvgate={URL}1 --engine {URL} --engine {URL}/ --model m --prompt uniform:5:9 "
        "--output lognormal:20:90 --kind chat --worst-case --seed 7 --rate 2.5 --requests 40 --duration 2m --drain 5s "
        "--in-flight-max 64 --retries 3 --timeout 90s --slo-ttft 2s --slo-itl 50ms --tenant a:@SECRET:3 --tenant b:k:1",
    )
    assert order.urls == {"direct": URL, "kvgate": URL + "1"}
    assert (order.engines, order.model) == ((URL,), "m")
    assert order.sizes == Independent(Uniform(5, 9), LogNormal(20, 90))
    assert (order.kind, order.worst_case, order.seed) == (PromptKind.CHAT, True, 7)
    assert (order.rate, order.requests, order.bounds.duration_s, order.bounds.drain_s) == (
        2.5,
        40,
        120.0,
        5.0,
    )
    assert (order.in_flight_max, order.patience.retries_max, order.patience.stream_s_max) == (64, 3, 90.0)
    assert (order.objective.ttft_s_max, order.objective.itl_s_max) == (2.0, 0.05)
    assert order.tenants == (Tenant("a", "sk-1", 3.0), Tenant("b", "k", 1.0))
    assert order.what.startswith("2.5 requests a second, 40 requests")


def test_the_search_has_a_longer_time(runner: CliRunner, orders: Any) -> None:
    order = order_of(runner, orders, f"{URL} --find-ceiling --prompt 192 --output 129")
    assert (order.find_ceiling, order.bounds.duration_s) == (True, 600.0)
    assert order.what == "Sessions of 192 + 129 tokens, ever more of them at once."


def test_lengths_of_a_log(runner: CliRunner, orders: Any, tmp_path: Path) -> None:
    line = {
        "arrived": 1.0,
        "tenant": "t",
        "endpoint": "chat",
        "outcome": "served",
        "total_s": 1.0,
        "queue_s": 0.0,
    }
    (tmp_path / "log").write_text(json.dumps(line | {"prompt_tokens": 70, "completion_tokens": 30}) + "\n")
    assert order_of(runner, orders, f"{URL} --lengths-from {tmp_path / 'log'}").sizes.largest == (70, 30)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ("", "give either a URL, or two with --compare"),
        ("URL --compare a=URL b=URL", "give either a URL, or two with --compare"),
        ("nonsense", "URL: 'nonsense' is not allowed; allowed: a URL"),
        ("http://", "URL: 'http://' is not allowed"),
        ("--compare a=URL a=URL", "--compare: 'a=URL a=URL' is not allowed; allowed: two names"),
        ("--compare URL URL", "allowed: two names, such as"),
        ("--compare a=x b=URL", "--compare: 'x' is not allowed; allowed: a URL"),
        ("--compare a=URL", "--compare"),
        ("URL --engine x", "--engine: 'x' is not allowed"),
        ("URL --prompt 0", "--prompt: '0' is not allowed; allowed: a number of tokens"),
        ("URL --output uniform:9:5", "--output: 'uniform:9:5' is not allowed; allowed: a number of tokens"),
        ("URL --lengths-from no-such-file", "no-such-file cannot be read"),
        ("URL --lengths-from x --prompt 5", "--lengths-from: has both lengths"),
        ("URL --kind poem", "--kind: 'poem' is not allowed; allowed: token-ids, text, chat"),
        ("URL --rate 0", "--rate: 0 is not allowed"),
        ("URL --rate nan", "--rate: nan is not allowed"),
        ("URL --rate 1e9", "--rate: 1e+09 is not allowed"),
        ("URL --rate 1 --concurrency 4", "--concurrency, --rate: only one of both"),
        ("URL --concurrency 0", "--concurrency"),
        ("URL --requests 0", "--requests"),
        ("URL --requests 50001", "--requests: 50001 is not allowed; allowed: at most 50000"),
        ("URL --duration 5", "--duration: '5' is not allowed; allowed: a duration"),
        ("URL --duration 2h", "--duration: '2h' is not allowed; allowed: at most 1h"),
        ("URL --drain x", "--drain: 'x' is not allowed"),
        ("URL --timeout -1s", "--timeout: '-1s' is not allowed"),
        ("URL --slo-ttft x", "--slo-ttft: 'x' is not allowed"),
        ("URL --slo-itl 0s", "--slo-itl: '0s' is not allowed"),
        ("URL --in-flight-max 5000", "--in-flight-max"),
        ("URL --retries -1", "--retries"),
        ("URL --seed -1", "--seed"),
        ("URL --tenant a:sk-hush:x", "--tenant: a:… is not allowed; allowed: NAME:KEY:SHARE"),
        (
            "URL --tenant a:@NO_SUCH:1",
            "--tenant: a:… is not allowed; allowed: a variable that is set; NO_SUCH is not",
        ),
        ("URL --tenant a:k:1 --tenant a:k:1", "--tenant: each name once"),
        ("URL --find-ceiling --rate 1", "--find-ceiling: not with --rate"),
        ("URL --find-ceiling --concurrency 1", "--find-ceiling: not with --concurrency"),
        ("URL --find-ceiling --worst-case", "--find-ceiling: not with --worst-case"),
        ("URL --find-ceiling --untold --kind chat", "--find-ceiling: not with --untold"),
        ("URL --untold", "--untold: add --kind chat"),
        ("--find-ceiling --compare a=URL b=URL1", "--find-ceiling: not with --compare"),
        ("URL --find-ceiling --tenant a:k:1 --tenant b:k:1", "--find-ceiling: with one --tenant at most"),
        ("URL --html no/such/dir/x.html", "--html: no/such/dir/x.html cannot be written"),
        ("URL", "http://127.0.0.1:9/v1/models gave no list of models: ConnectError"),
    ],
)
def test_mistakes(runner: CliRunner, args: str, said: str) -> None:
    result = runner.invoke(app, ["load", *shlex.split(args.replace("URL", URL))])
    assert result.exit_code == 2, result.output
    assert said.replace("=URL", "=" + URL) in result.stderr
    assert result.stderr.startswith("kvgate: ")
    assert "hush" not in result.stderr
    assert result.stdout == ""


class Simulated:
    """An engine beside the test, which has the main thread, as the command line has."""

    def __init__(self) -> None:
        self.server = SimServer(blocks=121, block_size=32, max_model_len=2048, profile="instant", model="m")
        self._ready, self._loop = threading.Event(), asyncio.new_event_loop()
        self._over = asyncio.Event()
        self._thread = threading.Thread(target=lambda: self._loop.run_until_complete(self._serve()))

    @property
    def url(self) -> str:
        return self.server.url

    async def _serve(self) -> None:
        async with self.server:
            self._ready.set()
            await self._over.wait()

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()
        self._loop.close()


@pytest.fixture(scope="module")
def sim() -> Iterator[Simulated]:
    with Simulated() as server:
        yield server


def test_a_run_for_people_as_json_and_as_a_page(runner: CliRunner, sim: Simulated, tmp_path: Path) -> None:
    args = [
        sim.url,
        "--requests",
        "6",
        "--concurrency",
        "2",
        "--prompt",
        "20",
        "--output",
        "5",
        "--engine",
        sim.url,
    ]
    result = runner.invoke(app, ["load", *args, "--html", str(tmp_path / "x.html")])
    assert (result.exit_code, result.stderr) == (0, "")
    assert "6 of 6" in result.stdout
    assert "6 of 6" in (tmp_path / "x.html").read_text()
    told = json.loads(runner.invoke(app, ["load", *args, "--json", "--worst-case"]).stdout)
    assert [run["name"] for run in told["runs"]] == ["as drawn", "worst case"]
    assert [(run["completed"], run["preemptions"]) for run in told["runs"]] == [(6, 0), (6, 0)]


def test_tenants_and_an_open_loop(runner: CliRunner, sim: Simulated) -> None:
    args = "--rate 200 --requests 40 --prompt uniform:5:50 --output 3 --tenant a:k:3 --tenant b:k:1 --json"
    told = json.loads(runner.invoke(app, ["load", sim.url, *shlex.split(args)]).stdout)
    [run] = told["runs"]
    assert run["offered"] == 40
    assert run["tenants"]["a"]["offered"] + run["tenants"]["b"]["offered"] == 40
    assert run["tenants"]["a"]["offered"] > run["tenants"]["b"]["offered"] > 0


def test_what_the_server_does_not_have(runner: CliRunner, sim: Simulated) -> None:
    result = runner.invoke(app, ["load", sim.url, "--model", "other"])
    assert (result.exit_code, "--model: " in result.stderr, "has no 'other'; it has m" in result.stderr) == (
        2,
        True,
        True,
    )
    result = runner.invoke(app, ["load", sim.url, "--prompt", "uniform:5:2000"])
    assert result.exit_code == 2
    assert "the longest session is 2000 + 128 tokens, but 'm' at" in result.stderr


def test_when_nothing_completes_it_is_a_no(runner: CliRunner, sim: Simulated) -> None:
    sim.server.add_fault("500", 2)
    result = runner.invoke(app, ["load", sim.url, "--requests", "2", "--prompt", "5", "--output", "2"])
    assert result.exit_code == 1, result.output
    assert "0 of 2" in result.stdout
