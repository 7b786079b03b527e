"""The book of tenants: what holds for whom in which pool, where it was written, and changes at run time."""

from __future__ import annotations

from dataclasses import fields
from ipaddress import ip_network
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgate.config import Settings, load
from kvgate.config.crosschecks import problems
from kvgate.config.identity import IdentityRules, key_digest
from kvgate.config.layers import FIELDS
from kvgate.config.overrides import CHANGEABLE
from kvgate.config.patterns import best, matches
from kvgate.config.tenants import Override, TenantBook
from kvgate.errors import ConfigError
from kvgate_policies.types import PriorityClass, TenantPolicy, TenantRules

FILE = """
version: 1
mode: observe
pools:
  llama-70b: {backends: [http://a], aliases: ["gpt-4*"]}
  llama-8b: {backends: [http://b], max_num_seqs: 7, api_key: {env: B_KEY}}
  qwen: {backends: [http://c]}
defaults:
  weight: 2
  class: standard
  limit: 80%
  queue: {depth: 100, wait: 20s, order: deadline}
  max_tokens: {default: 1k, cap: 4k}
  rate: {requests_per_minute: 60}
  on_overload: 503
tenants:
  chat:
    keys: [{env: CHAT_KEY}, {file: chat-key}]
    weight: 4
    class: interactive
    guarantee: 30%
    queue: {wait: 10s}
    mode: enforce
    pools:
      "llama-*": {limit: 200k tokens, queue: {depth: 7}}
      llama-8b: {weight: 0.5, max_tokens: {cap: none, rewrite: off}}
  batch:
    class: batch
    borrow: off
    guarantee: 50%
    rate: {tokens_per_minute: 600k, requests_per_minute: none}
    max_tokens: {default: none}
unknown_tenant: batch
"""
ENV = {"CHAT_KEY": "sk-one", "B_KEY": "shh"}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "chat-key").write_text("second\n")
    (tmp_path / "policy.yaml").write_text(FILE)
    return load(tmp_path / "policy.yaml", ENV, {})


@pytest.fixture
def book(settings: Settings) -> TenantBook:
    return settings.book


def test_what_nobody_wrote_is_the_default() -> None:
    book = Settings(backends=("http://a",)).book
    assert book.names == ("anonymous",)
    assert book.policy("anonymous", "any") == TenantPolicy()
    assert book.rules("any") == {"anonymous": TenantRules()}
    assert set(book.origins("anonymous", "any").values()) == {"default"}
    assert book.identity == IdentityRules("anonymous")


def test_a_tenant_given_in_code_is_the_anonymous_one() -> None:
    tenant = TenantPolicy(queue_depth_max=3, rules=TenantRules(limit=0.5))
    book = Settings(backends=("http://a",), tenant=tenant).book
    assert book.policy("anonymous", "p") == tenant


def test_every_key_of_a_tenant_has_its_effect(book: TenantBook) -> None:
    assert book.policy("batch", "qwen") == TenantPolicy(
        name="batch",
        max_tokens_default=None,
        max_tokens_cap=4000,
        queue_depth_max=100,
        queue_wait_s_max=20.0,
        overload_status=503,
        priority=PriorityClass.BATCH,
        order="deadline",
        mode="observe",
        rewrite_max_tokens=True,
        rules=TenantRules(
            weight=2.0, guarantee=0.5, limit=0.8, borrow=False, tokens_per_minute=600_000
        ),
    )  # fmt: skip


def test_the_special_goes_over_the_general(book: TenantBook) -> None:
    chat = {pool: book.policy("chat", pool) for pool in ("llama-70b", "llama-8b", "qwen")}
    assert [chat[p].rules.weight for p in chat] == [4.0, 0.5, 4.0]
    # The exact name is taken instead of the pattern, not over it.
    assert [chat[p].queue_depth_max for p in chat] == [7, 100, 100]
    assert [(chat[p].rules.limit, chat[p].rules.limit_tokens) for p in chat] == [
        (1.0, 200_000), (0.8, None), (0.8, None),
    ]  # fmt: skip
    assert [chat[p].max_tokens_cap for p in chat] == [4000, None, 4000]
    assert [chat[p].rewrite_max_tokens for p in chat] == [True, False, True]
    assert {chat[p].mode for p in chat} == {"enforce"}
    assert {chat[p].rules.requests_per_minute for p in chat} == {60}


def test_each_value_has_its_place(book: TenantBook, tmp_path: Path) -> None:
    at = f"{tmp_path / 'policy.yaml'}: "
    origins = book.origins("chat", "llama-70b")
    assert set(origins) == set(FIELDS)
    assert origins["mode"] == at + "tenants.chat.mode"
    assert origins["limit"] == origins["limit_tokens"] == at + "tenants.chat.pools.llama-*.limit"
    assert origins["queue_wait_s_max"] == at + "tenants.chat.queue.wait"
    assert origins["order"] == at + "defaults.queue.order"
    assert origins["priority"] == at + "tenants.chat.class"
    assert origins["borrow"] == "default"
    assert book.origins("batch", "qwen")["mode"] == at + "mode"


def test_only_digests_are_kept(book: TenantBook, settings: Settings) -> None:
    assert book.keys == {key_digest(b"sk-one"): "chat", key_digest(b"second"): "chat"}
    for shown in (repr(book), repr(settings), str(settings.model_dump())):
        assert "sk-one" not in shown
        assert key_digest(b"sk-one").hex() not in shown
        assert str(key_digest(b"sk-one")) not in shown


def test_a_tenant_that_is_not_there_is_a_key_error(book: TenantBook) -> None:
    with pytest.raises(KeyError):
        book.policy("nobody", "qwen")
    with pytest.raises(KeyError):
        book.origins("nobody", "qwen")


def test_several_pools(settings: Settings) -> None:
    specs = {spec.name: spec for spec in settings.pool_specs()}
    assert list(specs) == ["llama-70b", "llama-8b", "qwen"]
    assert (settings.pool, settings.backends) == ("llama-70b", ("http://a",))
    eight = settings.for_pool(specs["llama-8b"])
    assert (eight.pool, eight.backends, eight.max_num_seqs) == ("llama-8b", ("http://b",), 7)
    assert (eight.backend_api_key, settings.backend_api_key) == ("shh", None)
    assert eight.book == settings.book
    assert eight.pool_specs() == (specs["llama-8b"],)
    assert settings.for_pool(specs["qwen"]).max_num_seqs == 256
    assert "shh" not in repr(settings)


@pytest.mark.parametrize("option", [("--pool", {"pool": "x"}), ("--max-num-seqs", {"max_num_seqs": "3"})])
def test_an_option_about_a_pool_does_not_say_which(
    settings: Settings, tmp_path: Path, option: tuple[str, dict[str, object]]
) -> None:
    assert len(settings.pools) == 3
    flag, given = option
    with pytest.raises(ConfigError, match=f"^{flag}: with several pools it goes into the pool's section of "):
        load(tmp_path / "policy.yaml", ENV, given)


def test_a_variable_with_a_secret_is_no_pools_either(settings: Settings, tmp_path: Path) -> None:
    assert settings.pools
    with pytest.raises(ConfigError, match=r"^KVGATE_BACKEND_API_KEY: with several pools"):
        load(tmp_path / "policy.yaml", ENV | {"KVGATE_BACKEND_API_KEY": "k"}, {})


def test_an_option_about_tenants_replaces_the_defaults(settings: Settings, tmp_path: Path) -> None:
    changed = load(tmp_path / "policy.yaml", ENV, {"queue_wait": "5s", "queue_depth": "9"}).book
    assert [changed.policy(t, "qwen").queue_wait_s_max for t in ("chat", "batch")] == [10, 5]
    assert changed.policy("chat", "llama-70b").queue_depth_max == 7
    assert changed.origins("batch", "qwen")["queue_depth_max"] == "--queue-depth"
    assert settings.book != changed


def test_another_name_for_the_only_pool(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(
        "version: 1\npools: {m-1: {backends: [http://a]}}\n"
        "tenants: {t: {pools: {m-1: {weight: 3}}}}\nunknown_tenant: t\n"
    )
    with pytest.raises(
        ConfigError, match="--pool: 'x' is not allowed; allowed: a name that the tenants' `pools`"
    ):
        load(file, {}, {"pool": "x"})
    file.write_text(file.read_text().replace("pools: {m-1: {weight", "pools: {m-*: {weight"))
    assert load(file, {}, {"pool": "m-2"}).book.policy("t", "m-2").rules.weight == 3


def test_defaults_need_not_make_sense_without_a_tenant(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    text = "version: 1\npools: {m: {backends: [http://a]}}\ndefaults: {borrow: off}\n"
    file.write_text(text + "tenants: {t: {guarantee: 10%}}\nunknown_tenant: t\n")
    assert not load(file, {}, {}).book.policy("t", "m").rules.borrow
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"defaults\.borrow: off is not allowed"):
        load(file, {}, {})


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        ("", IdentityRules("api_key", unknown="t")),
        (
            "identity: {from: header, name: X-Tenant, trusted_proxies: [10.0.0.0/8, 'fd00::/8', 127.0.0.1]}",
            IdentityRules(
                "header",
                header="x-tenant",
                trusted_proxies=(ip_network("10.0.0.0/8"), ip_network("fd00::/8"), ip_network("127.0.0.1/32")),
                unknown="t",
            ),
        ),
        (
            "identity: {from: jwt, claim: team, jwks_url: 'https://i/k', issuer: i, audience: a, algorithms: [EdDSA]}",
            IdentityRules(
                "jwt", jwt_claim="team", jwks_url="https://i/k", jwt_issuer="i", jwt_audience="a",
                jwt_algorithms=("EdDSA",), unknown="t",
            ),
        ),
    ],
)  # fmt: skip
def test_how_a_tenant_is_found(tmp_path: Path, text: str, rules: IdentityRules) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(
        f"version: 1\npools: {{m: {{backends: [http://a]}}}}\ntenants: {{t: {{}}}}\nunknown_tenant: t\n{text}"
    )
    assert load(file, {}, {}).book.identity == rules


def test_a_key_set_is_beside_the_file(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(
        "version: 1\npools: {m: {backends: [http://a]}}\ntenants: {t: {}}\n"
        "identity: {from: jwt, claim: c, jwks_file: keys.json}\n"
    )
    identity = load(file, {}, {}).book.identity
    assert identity.jwks_file == tmp_path / "keys.json"
    assert identity.unknown is None


# Changes at run time.


def test_a_change_goes_over_everything(book: TenantBook) -> None:
    changed = book.with_overrides({"chat": Override(weight=9, limit=0.6, until="noon")})
    policy = changed.policy("chat", "llama-70b")
    assert (policy.rules.weight, policy.rules.limit, policy.rules.limit_tokens) == (9, 0.6, None)
    assert changed.origins("chat", "llama-70b")["limit"] == "override until noon"
    assert changed.policy("batch", "qwen") == book.policy("batch", "qwen")
    assert changed.with_overrides({}) == book


def test_a_change_in_one_pool_goes_over_one_in_all(book: TenantBook) -> None:
    in_all, in_one = Override(weight=9, limit=0.6), Override(weight=10)
    changed = book.with_overrides({"chat": in_all}, {"qwen": {"chat": in_one, "gone": in_one}})
    assert [changed.policy("chat", p).rules.weight for p in ("llama-8b", "qwen")] == [9, 10]
    assert changed.policy("chat", "qwen").rules.limit == 0.6


def test_a_change_for_who_has_left_is_left_out(book: TenantBook) -> None:
    assert book.with_overrides({"gone": Override(weight=9)}) == book


def test_a_change_is_checked_as_the_file_is(settings: Settings) -> None:
    changed = settings.book.with_overrides({"chat": Override(guarantee=0.6, until="noon")})
    assert problems(settings.book, settings.pool_specs()) == ()
    said = problems(changed, settings.pool_specs())
    assert said[0] == (
        "override until noon: 110% guaranteed in pool llama-70b (chat 60%, batch 50%) is not allowed; allowed: 100% "
        "for all tenants together"
    )
    assert len(said) == 3


def test_a_change_is_read_as_the_file_is() -> None:
    override = Override.of_json(
        {"weight": "6", "guarantee": "30%", "limit": "50%", "priority": "batch", "queue_depth_max": "2k",
         "queue_wait_s_max": 10, "tokens_per_minute": "600k", "mode": "observe"}
    )  # fmt: skip
    assert override == Override(
        weight=6, guarantee=0.3, limit=0.5, priority=PriorityClass.BATCH, queue_depth_max=2000,
        queue_wait_s_max=10, tokens_per_minute=600_000, mode="observe",
    )  # fmt: skip
    assert Override.of_json({"limit": "200k tokens"}) == Override(limit_tokens=200_000)
    assert Override.of_json({"queue_wait_s_max": "2m"}).queue_wait_s_max == 120


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"weight": 0}, "override: weight: 0 is not allowed; allowed: a number from 0.01 to 1000"),
        ({"limit": 0}, "override: limit: 0 is not allowed; allowed: a percentage above 0% and up to 100%"),
        ({"queue_wait_s_max": -1}, "override: queue_wait_s_max: -1 is not allowed; allowed: a duration"),
        ({"name": "x"}, "override: 'name' cannot be changed; allowed: weight, guarantee, limit"),
        ({"until": "a\nb"}, "override: until: 'a\\nb' is not allowed"),
        ([], "override: [] is not allowed; allowed: a mapping of weight, guarantee"),
    ],
)
def test_a_change_that_is_refused(given: object, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Override.of_json(given)
    assert str(caught.value).startswith(said)


def test_a_text_that_is_no_change_is_refused() -> None:
    with pytest.raises(ConfigError, match="override: not JSON"):
        Override.of_text("{")


OVERRIDES = st.builds(
    Override,
    weight=st.none() | st.floats(0.01, 1000),
    guarantee=st.none() | st.floats(0, 1),
    limit=st.none() | st.floats(0.001, 1),
    priority=st.none() | st.sampled_from(PriorityClass),
    queue_depth_max=st.none() | st.integers(1, 10**9),
    queue_wait_s_max=st.none() | st.integers(1, 10**6).map(lambda ms: ms / 1000),
    max_tokens_cap=st.none() | st.integers(1, 10**9),
    mode=st.none() | st.sampled_from(["enforce", "observe", "off"]),
    until=st.sampled_from(["", "2030-01-31T12:00:00Z"]),
)


@given(OVERRIDES)
def test_a_change_survives_the_ledger(override: Override) -> None:
    assert Override.of_text(override.text()) == override


@given(OVERRIDES)
def test_a_change_changes_what_it_sets_and_nothing_else(override: Override) -> None:
    plain = Settings(backends=("http://a",)).book
    changed = plain.with_overrides({"anonymous": override})
    policy, before = changed.policy("anonymous", "p"), plain.policy("anonymous", "p")
    for name in FIELDS:
        new = getattr(policy if hasattr(policy, name) else policy.rules, name)
        old = getattr(before if hasattr(before, name) else before.rules, name)
        assert new == override.changes.get(name, old), name


def test_every_field_of_a_change_has_a_reader() -> None:
    assert {one.name for one in fields(Override)} == {*CHANGEABLE, "until"}
    assert set(CHANGEABLE) <= set(FIELDS)


# Names and patterns.


def test_an_exact_name_comes_before_a_pattern_and_the_first_pattern_before_the_next() -> None:
    assert best("llama-70b", ["llama-*", "llama-70b"]) == "llama-70b"
    assert best("llama-8b", ["llama-*", "*-8b"]) == "llama-*"
    assert best("qwen-8b", ["llama-*", "*-8b"]) == "*-8b"
    assert best("x", ["y", "z*"]) is None


@given(st.text(max_size=8), st.text(max_size=8))
def test_only_the_star_is_special(left: str, right: str) -> None:
    assert matches(f"{left}*{right}", f"{left}.+[x]{right}")
    assert matches(left, right) == (left == right or ("*" in left and matches(left, right)))
