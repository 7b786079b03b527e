"""Where a setting comes from: command line, then environment, then policy file, then default."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvgate.config import PoolSpec, Settings, load, policy_path, redacted, warnings_of
from kvgate.config.effects import POOL_KEYS
from kvgate.config.model_file import model_of
from kvgate.config.options import OPTIONS, Option
from kvgate.config.policy import Pool
from kvgate.config.sources import ledger_place
from kvgate.errors import ConfigError

BACKEND = {"backends": ["http://a:1"]}
POLICY = "version: 1\npools: {m: {backends: [http://policy:1]}}\ndefaults: {queue: {depth: 10, wait: 10s}}\n"


def refused(env: dict[str, str] | None = None, **cli: object) -> str:
    with pytest.raises(ConfigError) as caught:
        load(None, env or {}, {**BACKEND, **cli})
    return str(caught.value)


def test_precedence(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(POLICY)
    env = {"KVGATE_QUEUE_DEPTH": "20", "KVGATE_BACKENDS": "http://env:1, http://env:2"}

    def depth(env: dict[str, str], cli: dict[str, object]) -> int:
        return load(file, env, cli).tenant.queue_depth_max

    assert depth({}, {}) == 10
    assert depth(env, {}) == 20
    assert depth(env, {"queue_depth": 30}) == 30
    assert depth(env, {"queue_depth": None}) == 20
    assert load(file, env, {}).backends == ("http://env:1", "http://env:2")
    assert load(file, env, BACKEND).backends == ("http://a:1",)
    assert load(file, env, {}).tenant.queue_wait_s_max == 10
    assert load(None, {}, BACKEND).tenant == Settings(backends=()).tenant


def test_the_policy_file_may_come_from_the_environment(tmp_path: Path) -> None:
    assert policy_path(None, {}) is None
    assert str(policy_path(None, {"KVGATE_POLICY": "x.yaml"})) == "x.yaml"
    assert policy_path(tmp_path, {"KVGATE_POLICY": "x.yaml"}) == tmp_path


def test_no_backend_says_the_three_ways() -> None:
    with pytest.raises(ConfigError, match="--backend URL, KVGATE_BACKENDS, or a policy file"):
        load(None, {}, {})


@pytest.mark.parametrize(
    ("cli", "said"),
    [
        ({"port": 99999}, "--port: 99999 is not allowed; allowed: a port"),
        ({"queue_wait": "soon"}, "--queue-wait: 'soon' is not allowed; allowed: a duration"),
        ({"queue_depth": 0}, "--queue-depth: 0 is not allowed; allowed: a whole number from 1"),
        ({"workers": 2}, "--workers: 2 is not allowed; allowed: 1 with the ledger memory://, which each"),
        (
            {"workers": 65, "ledger": "redis://r"},
            "--workers: 65 is not allowed; allowed: Input should be less",
        ),
        (
            {"ledger": "postgres://r"},
            "--ledger: 'postgres://r' is not allowed; allowed: memory://, or redis://",
        ),
        ({"ledger": "memory://x"}, "--ledger: 'memory://x' is not allowed; allowed: memory://, or redis://"),
        ({"ledger": "redis://"}, "--ledger: 'redis://' is not allowed; allowed: memory://, or redis://"),
        ({"ledger": "redis://:hush@"}, "--ledger: 'redis://…@' is not allowed"),
        (
            {"ledger_on_failure": "ask"},
            "--ledger-on-failure: 'ask' is not allowed; allowed: local, closed or",
        ),
        ({"ledger_lease": "900ms"}, "--ledger-lease: 0.9 is not allowed; allowed: 4 heartbeats or more, 1 s"),
        (
            {"ledger": "redis://r", "pool": "a}b"},
            "--pool: 'a}b' is not allowed; allowed: a name without { and",
        ),
        ({"reservation": "some"}, "--reservation: 'some' is not allowed; allowed: guaranteed or forecast"),
        ({"risk": "0%"}, "--risk: '0%' is not allowed; allowed: a percentage above 0% and up to 50%"),
        ({"risk": "0.6"}, "--risk: '0.6' is not allowed; allowed: a percentage above 0% and up to 50%"),
        ({"prompt_tokens": "local:"}, "--prompt-tokens: 'local:' is not allowed; allowed: learned, backend"),
        ({"num_gpu_blocks": 1}, "--num-gpu-blocks: 1 is not allowed; allowed: a whole number from 2"),
        ({"backends": ["a:1"]}, "--backend: ['a:1'] is not allowed; allowed: base URLs"),
        ({"backends": ["http://u:p@a"]}, "base URLs without user"),
        ({"backends": ["http://a:99999"]}, "base URLs such as"),
        ({"backends": ["http://[::1"]}, "base URLs such as"),
        ({"backends": ["http://a b"]}, "base URLs such as"),
        ({"log_level": "loud"}, "--log-level: 'loud' is not allowed; allowed: debug, info"),
        (
            {"port": 9091},
            "--admin-port: 9091 is not allowed; allowed: a port that is not the one for clients",
        ),
    ],
)
def test_a_bad_option_is_named(cli: dict[str, object], said: str) -> None:
    message = refused(None, **cli)
    assert said in message
    assert "\n" not in message


def test_a_bad_variable_is_named() -> None:
    assert "KVGATE_QUEUE_WAIT: '5' is not allowed" in refused({"KVGATE_QUEUE_WAIT": "5"})
    assert "enableServiceLinks" in refused({"KVGATE_PORT": "tcp://10.0.0.1:8080"})


def test_each_mistake_has_its_line() -> None:
    assert len(refused(port="x", queue_wait="y", workers="z").splitlines()) == 3


def test_variables_that_are_no_settings_are_left_alone() -> None:
    env = {"KVGATE_SOAK": "1", "KVGATE_PORT_8080_TCP": "tcp://x", "KVGATE_HOST": "", "PORT": "1"}
    assert load(None, env, BACKEND) == load(None, {}, BACKEND)


MODEL = Path(__file__).parents[1] / "policies/models/gpt-oss-20b.json"
EXAMPLES: dict[str, tuple[str, object]] = {
    "backends": ("http://b:2", ("http://b:2",)),
    "ledger": ("redis+sentinel://a:1,b:2/main/0", "redis+sentinel://a:1,b:2/main/0"),
    "ledger_on_failure": ("closed", "closed"),
    "ledger_heartbeat": ("200ms", 0.2),
    "host": ("0.0.0.0", "0.0.0.0"),
    "admin_host": ("::", "::"),
    "workers": ("1", 1),
    "reservation": ("guaranteed", "guaranteed"),
    "prompt_tokens": ("backend", "backend"),
    "log_level": ("DEBUG", "debug"),
    "log_format": ("text", "text"),
    "request_log": ("/tmp/r.jsonl", "/tmp/r.jsonl"),
    "otlp_endpoint": ("http://c:4318/", "http://c:4318"),
    "trace_sample": ("5%", 0.05),
    "request_log_bytes_max": ("2M", 2_000_000),
    "request_log_files_max": ("7", 7),
    "backend_api_key": ("k", "k"),
    "admin_token": ("t", "t"),
    "pool": ("p", "p"),
    "prefix_affinity": ("off", False),
    "prefix_sharing": ("on", True),
    "priority": ("on", True),
    "model_config": (str(MODEL), model_of(str(MODEL))),
    "overload_status": ("503", 503),
    "watermark": ("3%", 0.03),
    "risk": ("3%", 0.03),
    "state_dir": ("/var/lib/kvgate", "/var/lib/kvgate"),
    "expose_backend": ("true", True),
    "max_tokens_cap": ("9k", 9000),
}


def example_of(option: Option) -> tuple[str, object]:
    if option.key in EXAMPLES:
        return EXAMPLES[option.key]
    return ("7s", 7.0) if option.target.endswith(("_s", "_s_max")) else ("7", 7)


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.key)
def test_every_variable_reaches_its_setting(option: Option) -> None:
    text, value = example_of(option)
    settings: object = load(None, {"KVGATE_BACKENDS": "http://a:1", option.env: text}, {})
    for name in option.target.split("."):
        settings = getattr(settings, name)
    assert settings == value


def test_every_setting_can_be_set() -> None:
    targets = {option.target for option in OPTIONS}
    names = set(Settings.model_fields) - {"tenant", "timeouts", "aliases", "pools", "book"}
    assert {
        f"timeouts.{name}" for name in Settings.model_fields["timeouts"].default.__class__.model_fields
    } <= targets
    assert names <= targets


def test_secrets_are_never_shown() -> None:
    settings = load(None, {"KVGATE_ADMIN_TOKEN": "hush", "KVGATE_BACKEND_API_KEY": "shh"}, BACKEND)
    assert "hush" not in repr(settings)
    assert "shh" not in repr(settings)
    assert all(not option.flag for option in OPTIONS if option.secret)


PASSWORDS = ("hush", "hu/sh", "hu@sh", "hu:sh", "", "p%40ss")


@pytest.mark.parametrize("password", PASSWORDS)
def test_the_password_of_a_ledger_is_never_shown(password: str) -> None:
    url = f"redis://user:{password}@host:6379/0"
    settings = load(None, {"KVGATE_LEDGER": url}, BACKEND)
    assert settings.ledger_url == url
    assert settings.ledger_shared
    assert "user" not in repr(settings)
    assert redacted(f"cannot reach {url} now") == "cannot reach redis://…@host:6379/0 now"
    message = refused({"KVGATE_LEDGER": url + "\x00"})
    assert "user" not in message
    assert "redis://…@host" in message


def test_several_workers_have_a_shared_ledger() -> None:
    shared = {**BACKEND, "ledger": "redis://r", "workers": "4", "pool": "llama"}
    assert load(None, {}, shared).workers == 4
    assert not load(None, {}, BACKEND).ledger_shared


@pytest.mark.parametrize("name", ["KVGATE_ADMIN_TOKEN", "KVGATE_BACKEND_API_KEY"])
def test_a_secret_is_what_a_header_can_carry(name: str) -> None:
    field = name.removeprefix("KVGATE_").lower()
    assert getattr(load(None, {name: "hush hush\n"}, BACKEND), field) == "hush hush"
    for bad in ("pässword", "two\nlines", " \n"):
        with pytest.raises(ConfigError) as told:
            load(None, {name: bad}, BACKEND)
        assert "one line of ASCII text" in str(told.value)
        assert bad.strip() not in str(told.value) or not bad.strip()


def test_doubtful_settings_are_said() -> None:
    assert warnings_of(load(None, {}, BACKEND)) == ()
    long_wait = load(
        None, {}, {**BACKEND, "queue_wait": "15m", "admin_host": "0.0.0.0", "queue_depth": 50_000}
    )
    said = warnings_of(long_wait, {"KVGATE_QUEUE_DEPHT", "KVGATE_SOAK", "HOME", "KVGATE_PORT"})
    assert len(said) == 4
    assert "longer than the 600 s" in said[0]
    assert "holds that many bodies in memory" in said[1]
    assert "KVGATE_ADMIN_TOKEN" in said[2]
    assert "did you mean KVGATE_QUEUE_DEPTH?" in said[3]


def test_an_admin_token_that_can_be_guessed_is_said() -> None:
    reached = {**BACKEND, "admin_host": "0.0.0.0"}
    (said,) = warnings_of(load(None, {"KVGATE_ADMIN_TOKEN": "hush"}, reached))
    assert "fewer than 16 characters" in said
    assert "hush" not in said
    assert warnings_of(load(None, {"KVGATE_ADMIN_TOKEN": "h" * 16}, reached)) == ()
    assert warnings_of(load(None, {"KVGATE_ADMIN_TOKEN": "hush"}, BACKEND)) == ()


def test_a_local_tokenizer_must_be_there(tmp_path: Path) -> None:
    cli = {**BACKEND, "prompt_tokens": f"local:{tmp_path}"}
    assert "allowed: a directory with a tokenizer.json" in refused(None, prompt_tokens=f"local:{tmp_path}")
    (tmp_path / "tokenizer.json").write_text("{}")
    assert load(None, {}, cli).prompt_tokens == f"local:{tmp_path}"


TWO_POOLS = (
    "version: 1\npools: {a: {backends: [http://a]}, b: {backends: [http://b]}}\nledger: {url: 'redis://r'}\n"
)


def test_the_ledger_of_one_of_several_pools_is_chosen(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(TWO_POOLS)
    assert ledger_place(file, {}, {"pool": "b"}) == ("redis://r", "b")
    assert ledger_place(file, {"KVGATE_POOL": "a"}, {"ledger": "redis://x"}) == ("redis://x", "a")
    with pytest.raises(ConfigError, match=r"has several pools; choose one with --pool: a, b$"):
        ledger_place(file, {}, {})
    with pytest.raises(ConfigError, match=r"^--pool: 'c' is not allowed; allowed: a pool of "):
        ledger_place(file, {}, {"pool": "c"})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "identity: {from: header, name: x-tenant, trusted_proxies: ['0.0.0.0/0']}",
            "identity.trusted_proxies trusts every peer",
        ),
        ("identity: {from: jwt, claim: sub, jwks_file: k}", "identity has neither issuer nor audience"),
        (
            "defaults: {limit: 5k tokens}\nunknown_tenant: t",
            "FILE: defaults.limit: the limit of t in pool m is 5000",
        ),
        (
            "defaults: {queue: {wait: 11m}}\nunknown_tenant: t",
            "FILE: defaults.queue.wait: the queue wait of 660 s",
        ),
    ],
)
def test_doubts_about_tenants_are_said_once(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "p.yaml"
    pool = "version: 1\npools: {m: {backends: [http://a], max_model_len: 8k}}\n"
    file.write_text(f"{pool}tenants: {{t: {{}}}}\n{text}\n")
    [doubt] = warnings_of(load(file, {}, {}))
    assert doubt.startswith(said.replace("FILE", str(file)))


def test_all_that_differs_between_pools_can_be_written_for_one() -> None:
    assert {*POOL_KEYS, "name", "backend_api_key", "kv_model"} == set(PoolSpec.model_fields)
    assert set(POOL_KEYS.values()) | {"api_key", "model_config_"} == set(Pool.model_fields)
    for name in set(PoolSpec.model_fields) - {"name", "backends"}:
        assert PoolSpec.model_fields[name].default == Settings.model_fields[name].default, name
