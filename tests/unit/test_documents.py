"""The documents say what is: commands, options, variables, paths, links, tables and numbers are held to the code.

What is generated (the tables between `begin` and `end` marks, and grafana/METRICS.md) is written by

    python tests/unit/test_documents.py
"""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import math
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.testing import CliRunner

from kvgate import app as kvgate_app
from kvgate.admission import Answer, Reason, said
from kvgate.api.answers import RULES
from kvgate.api.routes import TABLE, Treatment
from kvgate.cli import app
from kvgate.cli.admin_port import ADMIN_ENV, TOKEN_ENV, TOKEN_FILE_ENV
from kvgate.config import Settings
from kvgate.config.options import OPTIONS
from kvgate.config.policy import read_policy
from kvgate.telemetry.cardinality import series_max
from kvgate.telemetry.catalogue import METRICS
from kvgate.telemetry.metrics import TENANTS_MAX
from kvgate_policies.kv_cost import price
from kvgate_policies.lifecycle import diagram
from kvgate_policies.occupancy import GRID
from kvgate_policies.types import EngineShape, TenantPolicy

ROOT = Path(__file__).parents[2]
NAMES = ("README", "CHANGELOG", "CONTRIBUTING", "proxy/README", "policies/README", "deploy/README")
DOCUMENTS = {f"{name}.md": (ROOT / f"{name}.md").read_text() for name in NAMES}
README, POLICIES = DOCUMENTS["README.md"], DOCUMENTS["policies/README.md"]
UNIT = (ROOT / "deploy/kvgate.service").read_text()
AGAIN = "run: python tests/unit/test_documents.py"
SOURCES = (ROOT, ROOT / "proxy/kvgate", ROOT / "policies/kvgate_policies")
"""Where a path named in a document may begin."""
OTHER_VARIABLES = {"KVGATE_POLICY", ADMIN_ENV, TOKEN_ENV, TOKEN_FILE_ENV, "KVGATE_VLLM_ENV", "KVGATE_SOAK"}

every_document = pytest.mark.parametrize("name", DOCUMENTS)


# What is generated.


def options_table() -> str:
    """The options of `kvgate serve`, with the help of the command line."""
    variables = {option.flag: option.env for option in OPTIONS} | {"--policy": "KVGATE_POLICY"}
    rows = ["| Option | Variable | Meaning |", "|---|---|---|"]
    for parameter in command("serve").params:
        flag = parameter.opts[0]
        if flag in variables:
            text = _cell(str(getattr(parameter, "help", "")))
            rows.append(f"| `{flag} {parameter.metavar}` | `{variables[flag]}` | {text} |")
    return "\n".join(rows)


def routes_table() -> str:
    """The paths that clients reach, by what becomes of them."""
    told = {
        Treatment.ADMITTED: "priced, reserved, relayed",
        Treatment.RELAYED: "relayed at once: it costs no KV cache",
        Treatment.MODELS: "answered by kvgate: the models of all backends",
    }
    rows = ["| Path | |", "|---|---|"]
    for treatment, text in told.items():
        paths = ", ".join(f"`{route.method} {route.path}`" for route in TABLE if route.treatment is treatment)
        rows.append(f"| {paths} | {text} |")
    return "\n".join(rows)


def metrics_page() -> str:
    """The whole of grafana/METRICS.md."""
    head = (
        "# Metrics\n\nEvery metric of `/metrics` on the admin port, what it means, and what to do when it moves. All "
        "have the label `pool`.\nUnits are seconds, tokens, and KV blocks of one engine.\n\nMade from "
        f"`proxy/kvgate/telemetry/catalogue.py`; to make it again, {AGAIN}\n\n"
        "| Metric | Type | Labels | Meaning | When it moves |\n|---|---|---|---|---|\n"
    )
    rows = (
        f"| `{m.name}` | {m.kind} | {', '.join(f'`{label}`' for label in m.labels) or '–'} "
        f"| {_cell(m.meaning)} | {_cell(m.when_it_moves)} |\n"
        for m in METRICS
    )
    buckets = (
        f"- `{m.name}`: {', '.join(f'{edge:g}' for edge in m.buckets)}\n" for m in METRICS if m.buckets
    )
    return head + "".join(rows) + "\n## Buckets of the histograms\n\n" + "".join(buckets) + series_section()


def series_section() -> str:
    """Of METRICS.md: how large a page can get."""
    engines = (1, 10, 100)
    sizes = "".join(f"| {count} | {series_max(count):,} |\n" for count in engines)
    return (
        "\n## How many series\n\nA pool has at most as many as its labels have values, whatever clients send: the first "
        f"{TENANTS_MAX} tenants\nthat are seen keep their names, all others are `other`; engines are those of the policy; "
        "everything else is a word of\nkvgate's own. Model names, paths, headers and request ids are in no label. The "
        "product of it all, far above what one\nhouse uses (500 tenants on 100 engines, all of them busy, have some "
        "5,000 series):\n\n| Engines of a pool | Series at most |\n|---:|---:|\n"
        f"{sizes}\nSuch a page takes some 30 ms of processor time (`bench/scrape.py`), in a thread. With several workers "
        "they are read and\nmerged by the process that answers on the admin port. Asked for as OpenMetrics, the histograms of "
        "wait, time to first\ntoken and duration carry exemplars: the trace of the latest sampled request in a bucket.\n"
    )


GENERATED = {"options": options_table, "routes": routes_table}


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _between(document: str, part: str) -> re.Match[str]:
    found = re.search(rf"<!-- {part}: begin [^\n]*-->\n(.*?)<!-- {part}: end -->", document, re.DOTALL)
    assert found, f"no place for the table of {part}"
    return found


def write() -> None:
    """Bring all that is generated up to date."""
    text = README
    for part, make in GENERATED.items():
        start, end = _between(text, part).span(1)
        text = text[:start] + make() + "\n" + text[end:]
    (ROOT / "README.md").write_text(text)
    (ROOT / "grafana/METRICS.md").write_text(metrics_page())


def test_the_page_of_metrics_is_the_catalogue():
    assert (ROOT / "grafana/METRICS.md").read_text() == metrics_page(), AGAIN


@pytest.mark.parametrize("part", GENERATED)
def test_generated_tables_are_up_to_date(part: str):
    assert _between(README, part)[1] == GENERATED[part]() + "\n", AGAIN


# Reading documents.


def blocks(document: str, language: str = "[a-z]*") -> list[str]:
    """The fenced code blocks, dedented as far as their fence."""
    found = re.findall(rf"^( *)```{language}\n(.*?)^\1```$", document, re.MULTILINE | re.DOTALL)
    return [re.sub(rf"^{indent}", "", body, flags=re.MULTILINE) for indent, body in found]


def code(document: str) -> list[str]:
    """Everything set as code: lines of shell blocks, with their continuations, and spans."""
    lines = "".join(blocks(document, "sh")).replace("\\\n", " ").splitlines()
    prose = re.sub(r"^( *)```.*?^\1```$", "", document, flags=re.MULTILINE | re.DOTALL)
    return [*lines, *re.findall(r"`([^`]+)`", prose.replace("\n", " "))]


def table(document: str, heading: str) -> list[list[str]]:
    """The rows of the table whose first heading cell is `heading`, as cells."""
    found = re.search(rf"^\| {re.escape(heading)} \|.*\n\|---.*\n((?:\|.*\n)+)", document, re.MULTILINE)
    assert found, heading
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in found[1].splitlines()]


def command(*path: str) -> Any:
    """A command of the command line. Raises KeyError for none."""
    found: Any = typer.main.get_command(app)
    for name in path:
        found = commands_of(found)[name]
    return found


def commands_of(group: Any) -> dict[str, Any]:
    """Of a group; a command has none. By duck type: some versions of typer have a click of their own."""
    return getattr(group, "commands", {})


def check_command_line(words: list[str]) -> None:
    """Every command of `kvgate …` exists, and so does every option. Raises KeyError or AssertionError."""
    path: list[str] = []
    rest = iter(words)
    for word in rest:
        if not commands_of(command(*path)) or word.startswith("-"):
            rest = iter([word, *rest])
            break
        path.append(word)
    known = {opt for parameter in command(*path).params for opt in parameter.opts} | {"--help"}
    given = {word for word in rest if word.startswith("--")}
    assert given <= known, (path, given - known)


def kvgate_lines(text: str) -> Iterator[list[str]]:
    for one in re.split(r"&&|;|\|", text):
        words = shlex.split(one, comments=True) if one.count("'") % 2 == 0 else one.split()
        if words and re.fullmatch(r"(\S*/bin/)?kvgate", words[0]):
            yield words[1:]


def slugs(document: str) -> set[str]:
    """The anchors of a document's headings, as they are made on the common hosts."""
    headings = re.findall(r"^#+ (.*)$", document, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


# What documents name exists.


@every_document
def test_commands_and_options_exist(name: str):
    for text in code(DOCUMENTS[name]):
        for words in kvgate_lines(text):
            check_command_line(words)


def test_readme_names_every_command():
    named = {
        " ".join(w for w in words[:2] if not w.startswith("-"))
        for t in code(README)
        for words in kvgate_lines(t)
    }
    for name in (
        "serve",
        "check",
        "plan",
        "traffic",
        "replay",
        "load",
        "calibrate",
        "policy check",
        "tenants set",
        "engines drain",
        "queue",
        "sim-engine",
        "demo",
        "version",
    ):
        assert any(text.startswith(name) for text in named), name


@every_document
def test_single_options_exist(name: str):
    ours = {
        opt
        for c in (
            "serve",
            "check",
            "plan",
            "traffic",
            "replay",
            "load",
            "calibrate",
            "queue",
            "tenants set",
            "demo",
            "sim-engine",
            "version",
        )
        for p in command(*c.split()).params
        for opt in p.opts
    }
    vllm = {
        "--watermark",
        "--max-num-queued-reqs",
        "--disable-hybrid-kv-cache-manager",
        "--max-num-queued-tokens",
        "--otlp-traces-endpoint",
        "--long-prefill-token-threshold",
        "--scheduling-policy",
    }
    named = {text.split()[0] for text in code(DOCUMENTS[name]) if text.startswith("--")}
    assert named <= ours | vllm


@every_document
def test_make_targets_exist(name: str):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {m[1] for text in code(DOCUMENTS[name]) if (m := re.match(r"make ([a-z-]+)", text))}
    assert named <= targets


@every_document
def test_variables_exist(name: str):
    known = {option.env for option in OPTIONS} | OTHER_VARIABLES
    named = set(re.findall(r"KVGATE_[A-Z_]*[A-Z]", DOCUMENTS[name]))
    assert named <= known


@every_document
def test_metrics_exist(name: str):
    known = {metric.name for metric in METRICS} | {"kvgate_policies"}
    assert set(re.findall(r"\bkvgate_[a-z_]*[a-z]", DOCUMENTS[name])) <= known


@every_document
def test_paths_exist(name: str):
    path = r"(?:[\w.-]+/)*[\w.*-]+\.(?:py|md|yaml|toml|service)|(?:proxy|policies|tests|deploy|grafana|bench)(?:/[\w.-]+)+/?"
    owned = {"policy.yaml", "mine.yaml"}  # the reader's own
    for text in code(DOCUMENTS[name]):
        for named in re.findall(rf"(?<![\w/.-])(?:{path})(?![\w-])", text):
            places = (*SOURCES, (ROOT / name).parent)
            assert named in owned or any(list(place.glob(named)) for place in places), named


@every_document
def test_rooms_exist(name: str):
    for text in code(DOCUMENTS[name]):
        if re.fullmatch(r"[a-z_]+/", text):
            assert any((place / text).is_dir() for place in SOURCES), text


@every_document
def test_links_lead_somewhere(name: str):
    for target in re.findall(r"\]\(([^)\s]+)\)", DOCUMENTS[name]):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        file = (ROOT / name).parent / path if path else ROOT / name
        assert file.is_file(), target
        assert not anchor or anchor in slugs(file.read_text()), target


def test_every_room_of_the_proxy_is_told_of():
    rooms = {p.name + "/" for p in (ROOT / "proxy/kvgate").iterdir() if (p / "__init__.py").exists()}
    assert rooms - set(code(DOCUMENTS["proxy/README.md"])) == set()


def test_every_policy_module_is_told_of():
    modules = {p.name for p in (ROOT / "policies/kvgate_policies").glob("*.py")} - {"__init__.py"}
    named = {cell for row in table(POLICIES, "Module") for cell in re.findall(r"`([^`]+)`", row[0])}
    assert {m for m in modules if m not in named and not m.startswith("engine_model_")} == set()


# The tables of the README.


def test_the_table_of_variables_is_complete_and_has_the_defaults():
    settings = Settings(backends=("http://a:1",))
    rows = {cells[0].strip("`"): cells[1].strip("`") for cells in table(README, "Variable")}
    assert set(rows) == {option.env for option in OPTIONS if not option.flag}
    for option in OPTIONS:
        if option.env in rows:
            default: object = settings
            for part in option.target.split("."):
                default = getattr(default, part)
            shown = rows[option.env]
            assert (None if shown == "–" else option.read(shown)) == default, option.env


def test_the_table_of_reasons_is_that_of_the_answers():
    rows = table(README, "`x-kvgate-reason`")
    assert {cells[0].strip("`"): int(cells[1]) for cells in rows} == {
        r.value: rule.status for r, rule in RULES.items()
    }
    unretried = {cells[0].strip("`") for cells in rows if "x-should-retry: false" in cells[3]}
    assert unretried == {reason.value for reason, rule in RULES.items() if rule.should_retry is False}


def test_the_table_of_reasons_says_when_to_come_back():
    rows = {Reason(cells[0].strip("`")): cells[2] == "yes" for cells in table(README, "`x-kvgate-reason`")}
    tenant = TenantPolicy()
    answers: list[Answer] = [
        said.queue_full(tenant, 1.0), said.deadline(1.0, 1), said.queue_timeout(tenant, 1, 1.0, "lower n"),
        said.never_fits(1, 1, 1, 1, "lower n"),
        said.no_backend(), said.draining(), said.ledger_unavailable(), said.unknown_model("m"), said.unauthorized("No"), said.bad_token("no"),
        said.rate_spent(tenant, "tokens_per_minute", 1.0), said.above_limit(2, 1, "lower n"), said.unknown_class("batch"),
        said.internal_error(), said.upstream_failed(), said.upstream_empty(), said.upstream_silent(1.0),
    ]  # fmt: skip
    assert {a.reason: a.retry_after_s is not None for a in answers}.items() <= rows.items()


def test_the_paths_under_control_are_routed():
    assert {f"{route.method} {route.path}" for route in TABLE} <= set(code(_between(README, "routes")[1]))


# Examples and numbers.


def test_policy_examples_load(tmp_path: Path):
    examples = [text for document in DOCUMENTS.values() for text in blocks(document, "yaml")]
    assert examples
    for text in [*examples, (ROOT / "policies/single-pool.yaml").read_text()]:
        file = tmp_path / "policy.yaml"
        file.write_text(text)
        assert read_policy(file).version == 1
        assert CliRunner().invoke(app, ["policy", "check", str(file)]).exit_code == 0


def test_python_examples_compile():
    examples = [text for document in DOCUMENTS.values() for text in blocks(document, "python")]
    assert len(examples) == 2
    for text in examples:
        compile(text, "a document", "exec")


def test_the_grid_of_look_aheads_is_as_told():
    assert f"at τ = {', '.join(map(str, GRID))}\n" in POLICIES
    assert (len(GRID), GRID[-1]) == (14, 4096), "README says fourteen, up to 4,096"


def test_what_a_reservation_costs_is_what_the_script_prints():
    [script] = blocks(POLICIES, "python")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(script, "policies/README.md", "exec"), {"__name__": "script"})  # noqa: S102
    lines = [line.rstrip() for line in printed.getvalue().splitlines()]
    assert "\n".join(lines) + "\n" in blocks(POLICIES, "")


def test_the_readme_quotes_that_script():
    printed = {
        line[:36].strip(): line[36:].split() for text in blocks(POLICIES, "") for line in text.splitlines()
    }
    quoted = {
        "192 + 129, `max_tokens` exact": ("192 + 129, direct", "192 + 129, reserved"),
        "64 + 257, exact": ("64 + 257, direct", "64 + 257, reserved"),
        "mixed up to 512 + 512, exact": ("mixed, direct", "mixed, reserved"),
        "mixed, `max_tokens` twice the real length": ("mixed, direct", "mixed, reserved for twice that"),
        "mixed, four times": ("mixed, direct", "mixed, reserved for four times that"),
    }
    for row, (direct, reserved) in quoted.items():
        use = printed[reserved][3].replace("%", " %")
        assert f"| {row} | {printed[direct][0]} | {printed[reserved][0]} | {use} |" in README
    for row, name in {
        "as it is": "direct", "`--watermark 0.1`": "--watermark 0.1", "`--max-num-seqs 8`": "--max-num-seqs 8",
        "`--max-num-seqs 6`": "--max-num-seqs 6", "peaks reserved, as with `reservation: guaranteed`": "reserved",
    }.items():  # fmt: skip
        steps, preemptions, gap, _ = printed[f"mixed, {name}"]
        assert f"| {row} | {steps} | {preemptions} | {gap} |" in README


def test_the_arithmetic_of_the_twelve_sessions():
    token_bytes = 2 * 32 * 32 * 128 * 2
    assert token_bytes == 512 * 1024
    assert 8192 * token_bytes == 4 * 1024**3
    blocks_of_pool = 48 * 1024**3 // (token_bytes * 16)
    assert (blocks_of_pool, 48 // 4) == (6144, 12)
    engine = EngineShape(block_size=16, max_model_len=8192)
    whole, session = (price(engine, [tokens - 100], 100, 1).blocks for tokens in (8192, 8000))
    assert (whole, session) == (512, 500)
    assert ((blocks_of_pool - 1) // whole, (blocks_of_pool - 1) // session) == (11, 12)
    assert 48 * (192 + 129 - 1) == 15360
    for number in ("524,288", "512 KiB", "4 GiB", "6,144", "6,143", "**11**", "**12**", "15,360"):
        assert number in README, number


def test_the_table_of_options_is_what_the_planner_says():
    """The README's own command, and the rows it quotes of the answer."""
    [words] = [
        words for text in code(README) for words in kvgate_lines(text) if words[0] == "plan" and "8x" in words
    ]
    result = CliRunner().invoke(app, [*words, "--json"])
    answer = json.loads(result.stdout)
    assert (answer["max_sequences"], answer["max_sequences_engine"]) == (12, 11)
    options = {option["name"]: option for option in answer["options"]}
    rows = table(README, "Option | Sessions | Times | Paid for with")
    for name, sessions, times, _ in rows:
        option = options[name.split(",")[0]]
        assert (option["max_sequences"], f"{option['factor']:.1f}×") == (
            int(sessions),
            times.split(",")[0],
        ), name
    assert [row[0] for row in rows[-3:]] == answer["ways_to_target"]


def test_the_states_are_drawn_from_the_table():
    assert diagram() + "\n" in blocks(POLICIES, "mermaid")


# What is deployed.


def test_the_unit_starts_what_exists_and_waits_for_the_drain():
    start = re.search(r"^ExecStart=(.*)$", UNIT, re.MULTILINE)
    stop = re.search(r"^TimeoutStopSec=(\d+)$", UNIT, re.MULTILINE)
    assert start
    assert stop
    [words] = kvgate_lines(start[1])
    check_command_line(words)
    drain_s = Settings(backends=("http://a:1",)).timeouts.drain_s
    assert int(stop[1]) > math.ceil(drain_s + kvgate_app.SERVER_STOP_S)


def test_the_unit_reloads_by_the_signal_that_reloads():
    assert "ExecReload=/bin/kill -HUP $MAINPID" in UNIT
    assert "signal.SIGHUP" in inspect.getsource(kvgate_app)


def test_prometheus_scrapes_the_admin_port():
    wanted = yaml.safe_load((ROOT / "grafana/prometheus.yaml").read_text())
    [targets] = [
        job["static_configs"][0]["targets"] for job in wanted["scrape_configs"] if job["job_name"] == "kvgate"
    ]
    settings = Settings(backends=("http://a:1",))
    assert targets == [f"{settings.admin_host}:{settings.admin_port}"]


if __name__ == "__main__":
    write()
