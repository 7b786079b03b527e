"""Policy files: what is in them is what is in force, and every mistake is named with its place."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgate.config import load
from kvgate.config.document import BYTES_MAX, parse_yaml
from kvgate.config.policy import Policy, read_policy
from kvgate.config.sources import load_elsewhere
from kvgate.errors import ConfigError

FULL = """
version: 1
mode: enforce
pools:
  llama-70b:
    backends: [http://gpu-a:8000, "https://gpu-b:8443/engine/"]
    prompt_tokens: backend
    reservation: guaranteed
    max_num_seqs: 128
    speculative_tokens: 3
    watermark: 2%
    num_gpu_blocks: 5001
    block_size: 32
    max_model_len: 32k
    prefill_tokens: 4k
    aliases: [gpt-4o, "gpt-4*"]
    api_key: {env: BACKEND_KEY}
ledger: {url: "redis://r:6379/1", lease: 8s, on_failure: closed}
defaults:
  queue: {depth: 5k, wait: 15m, order: fifo}
  max_tokens: {default: 1024, cap: 16k}
  on_overload: 529
bypass: 3
"""
SMALL = "version: 1\npools: {m: {backends: [http://a:8000]}}\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "policy.yaml"


def refused(file: Path, text: str) -> str:
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(file, {}, {})
    return str(caught.value)


def test_every_key_reaches_the_settings(file: Path) -> None:
    file.write_text(FULL)
    settings = load(file, {"BACKEND_KEY": "s3cret"}, {})
    assert settings.pool == "llama-70b"
    assert settings.backends == ("http://gpu-a:8000", "https://gpu-b:8443/engine")
    assert settings.prompt_tokens == "backend"
    assert settings.max_num_seqs == 128
    assert settings.speculative_tokens == 3
    assert settings.watermark == pytest.approx(0.02)
    assert settings.backend_api_key == "s3cret"
    assert settings.ledger_url == "redis://r:6379/1"
    assert (settings.ledger_lease_s, settings.ledger_on_failure) == (8, "closed")
    assert settings.bypass_max == 3
    assert (settings.num_gpu_blocks, settings.block_size, settings.max_model_len) == (5001, 32, 32_000)
    assert settings.prefill_tokens_max == 4000
    assert settings.aliases == ("gpt-4o", "gpt-4*")
    assert settings.tenant.queue_depth_max == 5000
    assert settings.tenant.queue_wait_s_max == 900
    assert settings.tenant.max_tokens_default == 1024
    assert settings.tenant.max_tokens_cap == 16_000
    assert settings.tenant.overload_status == 529
    assert "s3cret" not in repr(settings)
    (spec,) = settings.pool_specs()
    assert settings.for_pool(spec) == settings


def test_a_small_file_leaves_the_defaults(file: Path) -> None:
    file.write_text(SMALL)
    with_file = load(file, {}, {})
    without = load(None, {}, {"backends": ["http://a:8000"]})
    assert with_file.model_copy(update={"pool": "default"}) == without


def test_the_example_in_the_documentation_is_valid(file: Path) -> None:
    from kvgate.config import policy  # noqa: PLC0415

    assert policy.__doc__
    file.write_text(policy.__doc__.split("\n\n")[1])
    settings = load_elsewhere(file)
    assert settings.max_num_seqs == 256
    assert settings.book.policy("batch", "llama-70b").rules.limit == 0.5


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("version: 1\npool: {}", "pool: unknown key; allowed here: version, mode, pools, ledger"),
        (
            SMALL + "defaults: {queue: {dept: 3}}",
            "defaults.queue.dept: unknown key; allowed here: depth, wait, order",
        ),
        (
            SMALL + "defaults: {queue: {wait: 30}}",
            "defaults.queue.wait: 30 is not allowed; allowed: a duration",
        ),
        (SMALL + "defaults: {queue: {depth: }}", "defaults.queue.depth: None is not allowed"),
        (
            SMALL + "defaults: 7",
            "defaults: 7 is not allowed; allowed: keys and values: weight, class, guarantee",
        ),
        (
            SMALL + "defaults: {max_tokens: {default: 0}}",
            "max_tokens.default: 0 is not allowed; allowed: a whole",
        ),
        (
            SMALL + "defaults: {max_tokens: {default: 5, cap: 4}}",
            "max_tokens.default: 5 is not allowed; allowed: at most",
        ),
        (SMALL + "ledger: {url: 'redis:x'}", "ledger.url: 'redis:x' is not allowed; allowed: memory://, or"),
        (
            SMALL + "ledger: {url: 'redis://u:hush@x'}",
            "ledger.url: 'redis://…@x' is not allowed; allowed: a URL without user and password; the whole URL",
        ),
        (
            SMALL + "ledger: {on_failure: ask}",
            "on_failure: 'ask' is not allowed; allowed: local, closed or open",
        ),
        (SMALL + "ledger: {lease: 5}", "ledger.lease: 5 is not allowed; allowed: a duration"),
        (SMALL + "ledger: {lease: 500ms}", "ledger.lease: 0.5 is not allowed; allowed: 4 heartbeats or more"),
        ("version: 2\npools: {m: {backends: [http://a]}}", "version: 2 is not allowed; allowed: 1"),
        ("pools: {m: {backends: [http://a]}}", "version: is missing"),
        ("version: 1", "pools: is missing"),
        ("version: 1\npools: {m: {}}", "pools.m.backends: is missing"),
        (
            "version: 1\npools: {m: {backends: []}}",
            "pools.m.backends: [] is not allowed; allowed: one base URL",
        ),
        ("version: 1\npools: {m: {backends: [gpu:8000]}}", "allowed: base URLs such as http://gpu-a:8000"),
        ("version: 1\npools: {m: {backends: [http://a, http://a/]}}", "http://a is there twice"),
        ("version: 1\npools: {m: {backends: [http://a/v1]}}", "base URLs without /v1: http://a"),
        (
            "version: 1\npools: {m: {backends: [http://a], reservation: perhaps}}",
            "pools.m.reservation: 'perhaps' is not allowed; allowed: guaranteed or forecast",
        ),
        (
            "version: 1\npools: {m: {backends: [http://a], headroom: 1%}}",
            "pools.m.headroom: is not in this version",
        ),
        (
            "version: 1\npools: {m: {backends: [http://a], prompt_tokens: guess}}",
            "learned, backend, or local:DIR",
        ),
        (
            "version: 1\npools: {m: {backends: [http://a], prompt_tokens: local:/nowhere}}",
            "/nowhere has none",
        ),
        ("version: 1\npools: {m: {backends: [http://a], api_key: {env: A, file: b}}}", "one of {env: NAME}"),
        (
            "version: 1\npools: {m: {backends: [http://a], api_key: {env: NOT_SET}}}",
            "NOT_SET is empty or not set",
        ),
        ("version: 1\npools: {m: {backends: [http://a], api_key: {file: gone}}}", "gone cannot be read"),
        ("- 1", "the document: [1] is not allowed; allowed: keys and values: version"),
        ("", "the document: None is not allowed"),
    ],
)
def test_mistakes_are_named_with_file_path_and_what_is_allowed(file: Path, text: str, said: str) -> None:
    message = refused(file, text)
    assert message.startswith(f"{file}: ")
    assert said in message
    assert "\n" not in message


def test_a_strange_key_cannot_break_the_line(file: Path) -> None:
    assert "pools.'a\\nb'.backends: is missing" in refused(file, 'version: 1\npools: {"a\\nb": {}}')


def test_several_mistakes_have_a_line_each(file: Path) -> None:
    message = refused(file, SMALL + "mode: watch\nbypass: -1\ndefaults: {queue: {wait: 0s, depth: 0}}")
    assert len(message.splitlines()) == 4


def test_a_key_in_the_file_itself_is_refused_and_not_repeated(file: Path) -> None:
    message = refused(file, "version: 1\npools: {m: {backends: [http://a], api_key: sk-1234}}")
    assert "pools.m.api_key: allowed: {env: NAME} or {file: PATH}, never the key itself" in message
    assert "sk-1234" not in message


def test_a_secret_file_is_found_beside_the_policy(file: Path) -> None:
    (file.parent / "key").write_text("abc\n")
    file.write_text("version: 1\npools: {m: {backends: [http://a], api_key: {file: key}}}")
    assert load(file, {}, {}).backend_api_key == "abc"


BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 7)
)
"""Ten million values in seven lines."""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [", "line 1, column 5"),
        ("a: 1\nb: 2\na: 3", "line 3, column 1: the key 'a' is there twice"),
        ("a: 1\n\tb: 2", "line 2, column 1"),
        ("? [1]\n: 2", "line 1, column 3"),
        ("a: !!python/object/apply:os.system [ls]", "could not determine a constructor"),
        ("a: 2024-99-99", "not YAML"),
        ("\x00", "not YAML"),
        ("[" * 3000, "nested too deeply"),
        (BOMB, "line 6, column 5: with its aliases it stands for more than 500000 values"),
        (f"{BOMB}z: {{<<: [*a6, *a6]}}", "more than 500000 values"),
        ("a: &a {b: *a}", "line 1, column 4: it is a part of itself"),
    ],
)
def test_what_is_no_yaml_is_named_with_its_line(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match="source") as caught:
        parse_yaml(text.encode(), "source")
    assert said in str(caught.value)


def test_an_alias_stands_for_what_it_names() -> None:
    text = b"a: &keys [{env: A}]\nb: *keys\nc: &c {d: 1}\n"
    assert parse_yaml(text, "source") == {"a": [{"env": "A"}], "b": [{"env": "A"}], "c": {"d": 1}}
    assert parse_yaml(b"# nothing", "source") is None


def test_a_number_too_long_to_be_shown_is_refused_like_any(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(f"version: 1\npools: {{m: {{backends: [http://a], max_num_seqs: 0x{'F' * 8000}}}}}\n")
    with pytest.raises(ConfigError, match="max_num_seqs: a number of thousands of digits is not allowed"):
        load(file, {}, {})


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_policy(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        read_policy(tmp_path)
    (tmp_path / "big.yaml").write_bytes(b"#" * (BYTES_MAX + 1))
    with pytest.raises(ConfigError, match="larger than"):
        read_policy(tmp_path / "big.yaml")


@given(st.binary(max_size=200))
def test_any_bytes_are_a_document_or_refused(data: bytes) -> None:
    try:
        parse_yaml(data, "s")
    except ConfigError as error:
        if not str(error).startswith("s: "):
            raise


NAMES = ("m", "backends", "aliases", "queue", "depth", "env", "keys", "limit", "from", "x")
KEYS = st.sampled_from([*Policy.model_fields, *NAMES])
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=5), st.just("http://a")),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=4)),
    max_leaves=12,
)


@given(VALUES)
def test_any_document_is_a_policy_or_refused(
    tmp_path_factory: pytest.TempPathFactory, document: object
) -> None:
    import json  # noqa: PLC0415

    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_text(json.dumps(document))
    try:
        assert load(path, {}, {}).backends
    except ConfigError as error:
        if not str(error).startswith(f"{path}: "):
            raise
