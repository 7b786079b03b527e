from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from vllm import environment, measured, server, traffic
from vllm.model import write_model
from vllm.simulated import simulate
from vllm.steps import Summary, table

if TYPE_CHECKING:
    from collections.abc import Iterator

BURSTS = pytest.StashKey[dict[str, Summary]]()


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[server.Engine]:
    """One real vLLM for the whole session."""
    home = environment.home()
    if environment.state(home) is not environment.State.COMPLETE:
        pytest.skip(f"no vLLM environment at {home}: `make test-vllm` builds it")
    folder = tmp_path_factory.mktemp("vllm")
    write_model(folder / "model")
    with server.engine(environment.python(home), folder / "model", folder) as running:
        yield running


@pytest.fixture(scope="session")
def gateway(engine: server.Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[server.Gateway]:
    """One kvgate in front of the engine, counting prompts by the engine's own tokenizer, and reserving peaks: what it
    promises then holds without a chance of error (`test_forecast` has its own).
    """
    options = ("--reservation", "guaranteed", "--prompt-tokens", "backend")
    limit = ("--max-tokens-default", str(server.MAX_TOKENS_DEFAULT))
    with server.gateway(engine.url, tmp_path_factory.mktemp("kvgate"), *options, *limit) as running:
        yield running


@pytest.fixture(scope="session")
def accounted(engine: server.Engine) -> list[measured.Accounted]:
    """The 30 requests, one by one."""
    return measured.one_by_one(engine)


@pytest.fixture(scope="session")
def bursts(pytestconfig: pytest.Config) -> dict[str, Summary]:
    """The bursts that were measured, for the table at the end of the run."""
    return pytestconfig.stash.setdefault(BURSTS, {})


@pytest.fixture(scope="session")
def burst_direct(engine: server.Engine, bursts: dict[str, Summary]) -> measured.Burst:
    burst = measured.burst(engine, engine.url, seed=481)
    bursts["direct"] = burst.summary
    return burst


@pytest.fixture(scope="session")
def burst_through_kvgate(
    engine: server.Engine, gateway: server.Gateway, bursts: dict[str, Summary]
) -> measured.Burst:
    burst = measured.burst(engine, gateway.url, seed=482)
    bursts["kvgate"] = burst.summary
    return burst


@pytest.fixture(scope="session")
def burst_simulated(bursts: dict[str, Summary]) -> Summary:
    bursts["model"] = Summary.of(simulate(traffic.burst(seed=481)))
    return bursts["model"]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Show the bursts side by side, whatever else is captured."""
    if bursts := config.stash.get(BURSTS, None):
        terminalreporter.section("48 streams at once, 12 of them fit")
        terminalreporter.write_line(table(bursts))
