"""The policies that are shipped: each is right as it stands, and does what its comments say."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvgate.cli import app
from kvgate.config import Settings, warnings_of
from kvgate.config.sources import load_elsewhere
from kvgate_policies.types import PriorityClass

SHIPPED = Path(__file__).parents[3] / "policies"
FILES = {path.stem: path for path in sorted(SHIPPED.glob("*.yaml"))}


def test_they_are_all_there() -> None:
    assert set(FILES) == {
        "fair-share", "hard-partitions", "interactive-over-batch", "one-noisy-tenant", "several-models",
        "single-pool", "single-user",
    }  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_each_passes_the_check_without_a_doubt(name: str) -> None:
    result = CliRunner().invoke(app, ["policy", "check", str(FILES[name])])
    assert (result.exit_code, result.output) == (0, f"OK: {FILES[name]}\n")


@pytest.mark.parametrize("name", FILES)
def test_each_says_what_it_is_for_and_how_it_is_checked(name: str) -> None:
    text = FILES[name].read_text()
    assert text.startswith("# ")
    assert f"kvgate policy check {name}.yaml" in text
    assert max(map(len, text.splitlines())) <= 120


def of(name: str) -> Settings:
    settings = load_elsewhere(FILES[name])
    assert warnings_of(settings) == ()
    return settings


def test_fair_share() -> None:
    book = of("fair-share").book
    rules = book.rules("llama-70b")
    assert rules["product"].weight == 2 * rules["research"].weight == 2 * rules["support"].weight
    assert {book.policy(name, "llama-70b").priority for name in book.names} == {PriorityClass.STANDARD}
    assert book.identity.unknown is None


def test_interactive_over_batch() -> None:
    book = of("interactive-over-batch").book
    chat, batch = (book.policy(name, "llama-70b") for name in ("chat", "batch"))
    assert (chat.priority, batch.priority) == (PriorityClass.INTERACTIVE, PriorityClass.BATCH)
    assert chat.rules.guarantee + batch.rules.limit == pytest.approx(1)
    assert chat.queue_wait_s_max < batch.queue_wait_s_max < 600


def test_hard_partitions() -> None:
    book = of("hard-partitions").book
    rules = book.rules("llama-70b").values()
    assert not any(one.borrow for one in rules)
    assert sum(one.guarantee for one in rules) == pytest.approx(1)
    assert book.identity.unknown == "trial"


def test_one_noisy_tenant() -> None:
    book = of("one-noisy-tenant").book
    rules = book.rules("llama-8b")
    assert rules["crawler"].weight * 5 == rules["everyone"].weight
    assert rules["crawler"].limit == 0.25
    assert book.policy("crawler", "llama-8b").max_tokens_cap == 1024


def test_several_models() -> None:
    settings = of("several-models")
    assert [spec.name for spec in settings.pool_specs()] == ["llama-70b", "qwen-7b"]
    book = settings.book
    assert book.policy("app", "llama-70b").rules.guarantee == 0.4
    assert book.policy("app", "qwen-7b").rules.guarantee == 0
    assert book.policy("notebooks", "llama-70b").rules.limit_tokens == 200_000
    assert book.policy("notebooks", "qwen-7b").rules.weight == 2


@pytest.mark.parametrize("name", ["single-user", "single-pool"])
def test_without_tenants(name: str) -> None:
    settings = of(name)
    assert settings.book.names == ("anonymous",)
    assert settings.book.identity.source == "anonymous"
    assert settings.tenant == settings.book.policy("anonymous", settings.pool)
