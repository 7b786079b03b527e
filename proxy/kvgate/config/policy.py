"""The policy file: its format, in the order in which it is read.

    version: 1
    mode: enforce                        # observe: decide, count, forward everything; off
    pools:
      llama-70b:                         # with several pools, a model name that clients send
        aliases: [gpt-4o, "gpt-4*"]
        backends: [http://gpu-a:8000, http://gpu-b:8000]
        prompt_tokens: learned           # backend | local:/models/llama-70b
        reservation: forecast            # guaranteed
        risk: 1%                         # of forecasts
        max_num_seqs: 256
        speculative_tokens: 0
        watermark: 0%
        api_key: {env: BACKEND_KEY}      # or {file: /run/secrets/backend}
    ledger:
      url: memory://                     # redis://redis:6379/0, shared by all processes with these pools
      lease: 5s
      on_failure: local                  # closed | open
    defaults:
      weight: 1
      class: standard                    # interactive | batch
      guarantee: 0%
      limit: 100%                        # or 200k tokens
      queue: {depth: 200, wait: 30s, order: fifo}
      max_tokens: {cap: 16384}           # default: 2048
      on_overload: 429
    tenants:
      chat:
        keys: [{env: CHAT_KEY}]
        weight: 4
        class: interactive
        guarantee: 30%
        queue: {wait: 10s}
      batch:
        keys: [{file: /run/secrets/batch}]
        class: batch
        limit: 60%
        rate: {tokens_per_minute: 600k}
        pools: {"llama-*": {limit: 50%}}
    unknown_tenant: reject               # or the name of a tenant
    identity: {from: api_key}            # header | jwt
    bypass: 8

A key nobody knows is refused with those that are allowed there; a key of a later version is refused with its
reason. Everything but `version` and `pools` may be left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import BeforeValidator, Field, ValidationError

from kvgate.config import values
from kvgate.config.contradictions import contradictions
from kvgate.config.document import read_yaml
from kvgate.config.given import refusal
from kvgate.config.policy_identity import Identity, Keys, SecretRef
from kvgate.config.section import Section
from kvgate.errors import ConfigError

POOLS_MAX = 64
"""Each has a ledger, a queue and a prober of its own; a process with more is better split."""
NO_OTHERS = {"additionalProperties": False}
"""In the schema: no names but those of the pattern."""


class Pool(Section):
    """Engines that serve one model."""

    later: ClassVar[Mapping[str, str]] = {
        "headroom": "; `watermark` keeps blocks free, and `risk` leaves room for what forecasts can't know",
        "allow": "",
    }
    aliases: values.Aliases = ()
    """Further names for the model; `*` stands for any text. A request is sent with the name the engines serve."""
    backends: values.Backends
    """Base URLs of vLLM servers, without /v1; all serve the same model."""
    prompt_tokens: values.PromptTokens = None
    """Who counts prompt tokens: `learned`, `backend`, or `local:DIR` with the model's tokenizer.json."""
    reservation: values.ReservationKind = None
    """`forecast`: what each request is expected to hold is reserved, by the lengths of answers seen; nothing is written
    into requests without a limit unless `max_tokens` says so. `guaranteed`: the peak of each, to its end."""
    risk: values.Risk = None
    """Of forecasts: how often an engine may turn out too small for what was started on it."""
    max_num_seqs: values.Count1 = None
    """The engines' --max-num-seqs, which vLLM does not export."""
    num_gpu_blocks: values.EngineBlocks = None
    """KV blocks of an engine as vLLM counts them, where they can't be discovered."""
    block_size: values.Count1 = None
    """Tokens of a KV block, where it can't be discovered."""
    max_model_len: values.Count1 = None
    """The model's window in tokens, where it can't be discovered."""
    model_config_: values.ModelConfig = Field(default=None, alias="model_config")
    """The model's config.json (a path, from the policy file's folder; or what is in it), for models with several KV
    groups: sliding window, Mamba."""
    prefix_affinity: values.Switch = None
    """Requests that begin alike go to the same engine, which has that beginning in its cache, as long as they fit there
    and others are not much emptier."""
    prefix_sharing: values.Switch = None
    """`on`: of requests that run on one engine and begin alike, one reserves the KV blocks of that beginning, not each.
    For prompts of token ids; with `prompt_tokens` of `backend` or `local:DIR` for chats and texts, too. Of several
    processes each counts its own. Not for vLLM servers with --long-prefill-token-threshold."""
    priority: values.Switch = None
    """`on`: engines are told to preempt forecast requests before guaranteed ones, whatever priority clients ask for.
    For vLLM servers with --scheduling-policy priority; others take no notice."""
    speculative_tokens: values.Count0 = None
    """vLLM's num_speculative_tokens."""
    watermark: values.Share = None
    """vLLM's --watermark."""
    prefill_tokens: values.Count1 = None
    """Prompt tokens pushed into an engine at once."""
    api_key: SecretRef | None = None
    """Sent to the backends instead of the client's key."""


class LedgerSection(Section):
    """Where reservations and queues are kept."""

    url: values.LedgerUrl = None
    """`memory://` for one process, or a Redis that any number share. With a password: KVGATE_LEDGER."""
    lease: values.Seconds = None
    """How long a silent process keeps its reservations."""
    on_failure: values.OnFailure = None
    """While Redis is away: admit within a share of the room (`local`), nothing (`closed`), all (`open`)."""


class Queue(Section):
    """The waiting line of a tenant."""

    depth: values.Count1 = None
    """Requests that may wait, in all processes together; one more is answered at once."""
    wait: values.Seconds = None
    """The longest wait, from arrival."""
    order: values.OrderName = None
    """Who is first: `fifo` by arrival, `deadline` by the end of its wait, `shortest` by its size."""


class MaxTokens(Section):
    """Output tokens of a sequence."""

    default: values.CountOrNone = None
    """Written into requests that set no limit; `none`: they may fill the rest of the window. Unless written, 2048 where
    the reservation is `guaranteed`."""
    cap: values.CountOrNone = None
    """A larger limit is lowered to this; `none`: no cap."""
    rewrite: values.Switch = None
    """`off`: bodies are never changed; what was asked for, or the rest of the window, is reserved."""


class Rate(Section):
    """Budgets of a tenant in one pool, over all processes. A minute's worth may be spent at once."""

    tokens_per_minute: values.CountOrNone = None
    """Prompt and output tokens: charged when a request is queued, corrected at its end."""
    requests_per_minute: values.CountOrNone = None
    """Requests that are queued."""


class Limits(Section):
    """What may be said of a tenant."""

    weight: values.Weight = None
    """Share of the service among tenants that wait in the same class."""
    class_: values.Class = Field(default=None, alias="class")
    """How urgent: `interactive` before `standard` before `batch`, which still progresses."""
    guarantee: values.ShareWhole = None
    """Share of the pool's KV cache: while it holds less, a tenant that waits goes first. What others hold above their
    bounds, because their answers ran longer than forecast, it has to wait for."""
    limit: values.Limit = None
    """Nothing starts that would bring it above this part of the pool's KV cache: a share, or KV tokens such as `200k
    tokens`. By forecast what is expected counts, and answers that run longer take it above that for a time; with
    `reservation: guaranteed` it never is."""
    borrow: values.Switch = None
    """`off`: nothing starts that would bring it above its guarantee, and what it does not use of that is lent to
    nobody. By forecast it is kept to as `limit` is; `reservation: guaranteed` makes it strict."""
    queue: Queue = Queue()
    max_tokens: MaxTokens = MaxTokens()
    rate: Rate = Rate()
    reservation: values.ReservationKind = None
    """As the pool's `reservation`, which it replaces."""
    risk: values.Risk = None
    """As the pool's `risk`, which it replaces. That of a guaranteed tenant counts beside forecasts of others only."""
    revocable: values.Switch = None
    """`on`: a request of class `batch` whose client has seen nothing may be stopped and sent back to its old place in
    the queue, when forecasts turn out too low. What it computed is lost, and its wait goes on."""
    on_overload: values.OverloadStatus = None
    """HTTP status for a full queue and for a wait that took too long."""


class TenantInPool(Limits):
    """A tenant, in the pools that a name or pattern means."""

    mode: values.ModeName = None
    """As the mode of the file, for this tenant."""


class Tenant(TenantInPool):
    """A tenant: its keys, and what differs from `defaults`."""

    keys: Keys = ()
    """Its API keys. Several are good for changing one without a gap."""
    pools: Annotated[
        dict[values.PoolPattern, TenantInPool], BeforeValidator(values.some("names or patterns of pools"))
    ] = Field(default_factory=dict[str, TenantInPool], json_schema_extra={"minProperties": 1, **NO_OTHERS})
    """What differs in some pools, by name or pattern: the exact name before patterns, the first that matches."""


class Policy(Section):
    """A whole policy file."""

    version: values.Version
    """Of the format: 1."""
    mode: values.ModeName = None
    """`enforce`; `observe`: decide, count what would have been done, forward everything at once; `off`."""
    pools: Annotated[
        dict[values.PoolName, Pool], BeforeValidator(values.some("names of pools", POOLS_MAX))
    ] = Field(json_schema_extra={"minProperties": 1, "maxProperties": POOLS_MAX, **NO_OTHERS})
    """By name. With several, it is a model name that clients send."""
    ledger: LedgerSection = LedgerSection()
    defaults: Limits = Limits()
    """What holds for any tenant unless its own section says otherwise."""
    tenants: Annotated[
        dict[values.TenantName, Tenant] | None, BeforeValidator(values.some("names of tenants"))
    ] = Field(default=None, json_schema_extra={"minProperties": 1, **NO_OTHERS})
    """By name. Without any, every request belongs to one tenant, `anonymous`, for whom `defaults` hold."""
    unknown_tenant: values.UnknownTenant = None
    """What becomes of a request that belongs to no tenant: `reject`, or the name of the tenant it counts for."""
    identity: Identity | None = None
    bypass: values.Count0 = None
    """How often smaller requests may pass one that does not fit yet."""


def read_policy(path: Path) -> Policy:
    """The policy in a file. Raises ConfigError with a line for each thing that is wrong."""
    document = read_yaml(path)
    try:
        policy = Policy.model_validate(document)
    except ValidationError as error:
        raise ConfigError("\n".join(refusal(str(path), dict(e)) for e in error.errors())) from error
    if wrong := contradictions(policy, str(path)):
        raise ConfigError("\n".join(wrong))
    return policy
