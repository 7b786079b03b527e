"""The policy file: the part of its format that this version has, and where each value goes in the settings.

    version: 1
    mode: enforce
    pools:
      llama-70b:
        backends: [http://gpu-a:8000, http://gpu-b:8000]
        prompt_tokens: learned           # backend | local:/models/llama-70b
        reservation: guaranteed
        max_num_seqs: 256
        speculative_tokens: 0
        watermark: 0%
        api_key: {env: BACKEND_KEY}      # or {file: /run/secrets/backend}
    ledger:
      url: memory://                     # redis://redis:6379/0, shared by all processes with this pool
      lease: 5s
      on_failure: local                  # closed | open
    defaults:
      queue: {depth: 200, wait: 30s, order: fifo}
      max_tokens: {default: 2048, cap: 16384}
      on_overload: 429
    bypass: 8

A key nobody knows is refused with those that are allowed there; a key of a later version is refused with its
reason. Everything but `version` and `pools` may be left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from kvgate.config import choices, units
from kvgate.config.document import read_yaml
from kvgate.config.given import Given, refusal
from kvgate.errors import ConfigError

NOT_YET = "is not in this version"


class Section(BaseModel):
    """A mapping of known keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    later: ClassVar[Mapping[str, str]] = {}
    """Keys of the full format that this version refuses, and what to do instead."""

    @model_validator(mode="before")
    @classmethod
    def known_keys(cls, data: Any) -> Any:
        allowed = ", ".join(cls.model_fields)
        if not isinstance(data, Mapping):
            raise PydanticCustomError("not_a_section", "keys and values: {allowed}", {"allowed": allowed})
        for key in data:
            if key in cls.later:
                what = f"{NOT_YET}{cls.later[key]}"
                raise PydanticCustomError("bad_key", "{what}", {"key": str(key), "what": what})
            if key not in cls.model_fields:
                what = f"unknown key; allowed here: {allowed}"
                raise PydanticCustomError("bad_key", "{what}", {"key": str(key), "what": what})
        return data


def _fifo(value: object) -> Literal["fifo"]:
    if str(value) in {"deadline", "shortest"}:
        raise ValueError(f"fifo (`{value}` {NOT_YET})")
    if value != "fifo":
        raise ValueError("fifo")
    return "fifo"


def _enforce(value: object) -> Literal["enforce"]:
    # YAML 1.1 reads a bare `off` as false.
    if str(value) in {"observe", "off", "False"}:
        raise ValueError("enforce (the modes `observe` and `off` are not in this version)")
    if value != "enforce":
        raise ValueError("enforce")
    return "enforce"


def _version(value: object) -> Literal[1]:
    if value != 1 or isinstance(value, bool):
        raise ValueError("1")
    return 1


OptionalCount = Annotated[int | None, BeforeValidator(choices.count_1)]


class SecretRef(Section):
    """Where a secret is: never in the file itself."""

    env: Annotated[str | None, BeforeValidator(choices.text)] = None
    file: Path | None = None

    @model_validator(mode="before")
    @classmethod
    def no_plain_secret(cls, data: Any) -> Any:
        if isinstance(data, str):  # not repeated in the message
            raise PydanticCustomError("secret", "{env: NAME} or {file: PATH}, never the key itself")
        return data

    @model_validator(mode="after")
    def one_of_both(self) -> Self:
        if (self.env is None) == (self.file is None):
            raise ValueError("{env: NAME} or {file: PATH}, one of them")
        return self


class Pool(Section):
    later: ClassVar[Mapping[str, str]] = {
        "aliases": "; the names that the backends serve are taken from them",
        "risk": "; it belongs to `reservation: forecast`",
        "headroom": "; it belongs to `reservation: forecast`",
        "model_config": "",
        "allow": "",
    }
    backends: Annotated[tuple[str, ...], BeforeValidator(choices.backends)]
    prompt_tokens: Annotated[str | None, BeforeValidator(choices.prompt_tokens)] = None
    reservation: Annotated[Literal["guaranteed"] | None, BeforeValidator(choices.reservation)] = None
    max_num_seqs: OptionalCount = None
    speculative_tokens: Annotated[int | None, BeforeValidator(units.count)] = None
    watermark: Annotated[float | None, BeforeValidator(units.share)] = None
    api_key: SecretRef | None = None


class LedgerSection(Section):
    url: Annotated[str | None, BeforeValidator(choices.ledger_url_in_a_file)] = None
    lease: Annotated[float | None, BeforeValidator(units.duration_s)] = None
    on_failure: Annotated[Literal["local", "closed", "open"] | None, BeforeValidator(choices.on_failure)] = (
        None
    )


class Queue(Section):
    depth: OptionalCount = None
    wait: Annotated[float | None, BeforeValidator(units.duration_s)] = None
    order: Annotated[Literal["fifo"] | None, BeforeValidator(_fifo)] = None


class MaxTokens(Section):
    default: OptionalCount = None
    cap: OptionalCount = None


class Defaults(Section):
    later: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("weight", "class", "guarantee", "limit", "rate", "borrow"), "; there is one tenant"
    )
    queue: Queue = Queue()
    max_tokens: MaxTokens = MaxTokens()
    on_overload: Annotated[int | None, BeforeValidator(choices.overload_status)] = None


class Policy(Section):
    """A whole policy file."""

    later: ClassVar[Mapping[str, str]] = {
        "tenants": "; every request belongs to one tenant, and `defaults` holds for it",
        "unknown_tenant": "; see `tenants`",
        "identity": "; see `tenants`",
    }
    version: Annotated[Literal[1], BeforeValidator(_version)]
    mode: Annotated[Literal["enforce"], BeforeValidator(_enforce)] = "enforce"
    pools: dict[str, Pool]
    ledger: LedgerSection = LedgerSection()
    defaults: Defaults = Defaults()
    bypass: Annotated[int | None, BeforeValidator(units.count)] = None

    @model_validator(mode="after")
    def one_pool(self) -> Self:
        if len(self.pools) != 1:
            what = f"exactly one pool (several {NOT_YET}: run a kvgate for each); there are {len(self.pools)}"
            raise PydanticCustomError("bad_key", "{what}", {"key": "pools", "what": what})
        return self


def read_policy(path: Path) -> Policy:
    """The policy in a file. Raises ConfigError with a line for each thing that is wrong."""
    document = read_yaml(path)
    try:
        return Policy.model_validate(document)
    except ValidationError as error:
        raise ConfigError("\n".join(refusal(str(path), dict(e)) for e in error.errors())) from error


def settings_of(policy: Policy, source: str) -> dict[str, Given]:
    """The settings a policy gives, by their path in `Settings`. Secrets are not among them."""
    (name, pool), *_ = policy.pools.items()
    in_pool = f"pools.{name}"
    defaults = policy.defaults
    rows: tuple[tuple[str, str, object], ...] = (
        ("pool", "pools", name),
        ("backends", f"{in_pool}.backends", pool.backends),
        ("prompt_tokens", f"{in_pool}.prompt_tokens", pool.prompt_tokens),
        ("reservation", f"{in_pool}.reservation", pool.reservation),
        ("max_num_seqs", f"{in_pool}.max_num_seqs", pool.max_num_seqs),
        ("speculative_tokens", f"{in_pool}.speculative_tokens", pool.speculative_tokens),
        ("watermark", f"{in_pool}.watermark", pool.watermark),
        ("ledger_url", "ledger.url", policy.ledger.url),
        ("ledger_lease_s", "ledger.lease", policy.ledger.lease),
        ("ledger_on_failure", "ledger.on_failure", policy.ledger.on_failure),
        ("bypass_max", "bypass", policy.bypass),
        ("tenant.queue_depth_max", "defaults.queue.depth", defaults.queue.depth),
        ("tenant.queue_wait_s_max", "defaults.queue.wait", defaults.queue.wait),
        ("tenant.max_tokens_default", "defaults.max_tokens.default", defaults.max_tokens.default),
        ("tenant.max_tokens_cap", "defaults.max_tokens.cap", defaults.max_tokens.cap),
        ("tenant.overload_status", "defaults.on_overload", defaults.on_overload),
    )
    return {
        target: Given(target, value, f"{source}: {path}") for target, path, value in rows if value is not None
    }


def secrets_of(policy: Policy, source: Path, env: Mapping[str, str]) -> dict[str, Given]:
    """The secrets a policy refers to. A relative file is looked for beside the policy. Raises ConfigError."""
    (name, pool), *_ = policy.pools.items()
    if pool.api_key is None:
        return {}
    origin = f"{source}: pools.{name}.api_key"
    return {"backend_api_key": Given("backend_api_key", _secret(pool.api_key, origin, source, env), origin)}


def _secret(ref: SecretRef, origin: str, source: Path, env: Mapping[str, str]) -> str:
    if ref.file is None:
        value, place = env.get(ref.env or "", ""), f"the environment variable {ref.env}"
    else:
        path = source.parent / ref.file
        place = f"the file {path}"
        try:
            value = path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{origin}: {place} cannot be read: {error}") from error
    if not value:
        raise ConfigError(f"{origin}: {place} is empty or not set")
    return value
