"""Ways to get a policy wrong: each is refused with the file, the place, what is there and what is allowed."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvgate.config import load
from kvgate.config.identity import key_digest
from kvgate.errors import ConfigError

POOL = "version: 1\npools: {m: {backends: [http://a]}}\n"
SIZED = "version: 1\npools: {m: {backends: [http://a], num_gpu_blocks: 101, block_size: 16}}\n"
SHA = key_digest(b"a key").hex()
KEY = f"keys: [{{sha256: {SHA}}}]"
OTHER = f"keys: [{{sha256: {key_digest(b'another').hex()}}}]"
HEADER = "identity: {from: header, name: x-tenant, trusted_proxies: [10.0.0.0/8]}"
ENV = {"CHAT_KEY": "chat-secret", "SAME": "chat-secret", "SPACED": "chat secret"}


def tenant(inside: str) -> str:
    return POOL + f"tenants: {{chat: {{{KEY}, {inside}}}}}\n"


MISTAKES = {
    "a key nobody knows": (
        tenant("wieght: 2"),
        ("tenants.chat.wieght: unknown key; allowed here: weight, class, guarantee, limit, borrow, queue, max_tokens, "
        "rate, reservation, risk, revocable, on_overload, mode, keys, pools"),
    ),
    "a key of a later version": (
        POOL.replace("[http://a]", "[http://a], allow: [a]"),
        "pools.m.allow: is not in this version",
    ),
    "a model's configuration that is not there": (
        POOL.replace("[http://a]", "[http://a], model_config: x.json"),
        ("pools.m.model_config: 'x.json' is not allowed; allowed: the path of the model's config.json or of its folder, "
        "or what is in it; FOLDER/x.json cannot be read: No such file or directory"),
    ),
    "a model's configuration without layers": (
        POOL.replace("[http://a]", "[http://a], model_config: {hidden_size: 8}"),
        ("pools.m.model_config: '…' is not allowed; allowed: the path of the model's config.json or of its folder, or what "
        "is in it; num_hidden_layers: is missing (and so is n_layer, n_layers, num_layers, decoder_layers); allowed: a whole number from 1"),
    ),
    "a model's configuration that is a number": (
        POOL.replace("[http://a]", "[http://a], model_config: 3"),
        ("pools.m.model_config: 3 is not allowed; allowed: the path of the model's config.json or of its folder, or what "
        "is in it"),
    ),
    "forecasts": (
        POOL.replace("[http://a]", "[http://a], reservation: forecasts"),
        "pools.m.reservation: 'forecasts' is not allowed; allowed: guaranteed or forecast",
    ),
    "a risk of more than a half": (
        tenant("risk: 51%"),
        "tenants.chat.risk: '51%' is not allowed; allowed: a percentage above 0% and up to 50%, such as 1%, or a number such as 0.01",
    ),
    "a weight of nothing": (
        tenant("weight: 0"),
        "tenants.chat.weight: 0 is not allowed; allowed: a number from 0.01 to 1000",
    ),
    "a weight that is no number": (
        tenant("weight: heavy"),
        "tenants.chat.weight: 'heavy' is not allowed; allowed: a number from 0.01 to 1000",
    ),
    "a class of one's own": (
        tenant("class: urgent"),
        "tenants.chat.class: 'urgent' is not allowed; allowed: interactive, standard, batch",
    ),
    "an order": (
        tenant("queue: {order: lifo}"),
        "tenants.chat.queue.order: 'lifo' is not allowed; allowed: fifo, deadline or shortest",
    ),
    "a mode": (
        tenant("mode: on"),
        "tenants.chat.mode: True is not allowed; allowed: enforce, observe or off",
    ),
    "a switch": (
        tenant("borrow: sometimes"),
        "tenants.chat.borrow: 'sometimes' is not allowed; allowed: on or off",
    ),
    "a guarantee of more than all": (
        tenant("guarantee: 110%"),
        ("tenants.chat.guarantee: '110%' is not allowed; allowed: a percentage from 0% to 100%, such as 30%, or a "
        "number such as 0.3"),
    ),
    "a limit of nothing": (
        tenant("limit: 0%"),
        ("tenants.chat.limit: '0%' is not allowed; allowed: a percentage above 0% and up to 100%, such as 60%, or KV "
        "tokens, such as 200k tokens"),
    ),
    "a limit in a unit nobody knows": (
        tenant("limit: 20 GB"),
        ("tenants.chat.limit: '20 GB' is not allowed; allowed: a percentage above 0% and up to 100%, such as 60%, or "
        "KV tokens, such as 200k tokens"),
    ),
    "a wait without a unit": (
        tenant("queue: {wait: 30}"),
        ("tenants.chat.queue.wait: 30 is not allowed; allowed: a duration above 0 with its unit, such as 500ms, 30s, "
        "15m or 1h"),
    ),
    "a rate of nothing": (
        tenant("rate: {tokens_per_minute: 0}"),
        "tenants.chat.rate.tokens_per_minute: 0 is not allowed; allowed: a whole number from 1, or none",
    ),
    "an empty value": (
        tenant("weight: "),
        "tenants.chat.weight: None is not allowed; allowed: a number from 0.01 to 1000",
    ),
    "a status": (
        tenant("on_overload: 500"),
        "tenants.chat.on_overload: 500 is not allowed; allowed: 429, 503 or 529",
    ),
    "a tenant's name": (
        POOL + f"tenants: {{a/b: {{{KEY}}}}}",
        ("tenants.a/b: 'a/b' is not allowed; allowed: a name of at most 128 letters, digits and . _ - @ : +, a letter "
        "or digit first"),
    ),
    "a tenant called reject": (
        POOL + f"tenants: {{reject: {{{KEY}}}}}",
        ("tenants.reject: 'reject' is not allowed; allowed: a name other than `reject`, which `unknown_tenant` takes "
        "for none"),
    ),
    "a tenant called as a label of the metrics": (
        POOL + f"tenants: {{other: {{{KEY}}}}}",
        ("tenants.other: 'other' is not allowed; allowed: another name: `other`, `unknown` and `all` have a meaning in "
        "the metrics"),
    ),
    "no tenant": (POOL + "tenants: {}", "tenants: allowed: a mapping with names of tenants, one or more"),
    "a list of tenants": (
        POOL + f"tenants: [{{name: chat, {KEY}}}]",
        "tenants: allowed: a mapping with names of tenants, one or more",
    ),
    "a tenant that nobody can be": (
        POOL + "tenants: {chat: {weight: 2}}",
        "tenants.chat.keys: is missing: no request could belong to it; allowed: a key, or unknown_tenant: chat",
    ),
    "a key in the file itself": (
        POOL + "tenants: {chat: {keys: [sk-1234]}}",
        "tenants.chat.keys.0: allowed: {sha256: DIGEST}, {env: NAME} or {file: PATH}, never the key itself",
    ),
    "a digest that is none": (
        POOL + "tenants: {chat: {keys: [{sha256: sk-1234}]}}",
        "tenants.chat.keys.0.sha256: allowed: the SHA-256 digest of the key, 64 hex digits: printf %s KEY | sha256sum",
    ),
    "the digest of nothing": (
        POOL + f"tenants: {{chat: {{keys: [{{sha256: {key_digest(b'').hex()}}}]}}}}",
        "tenants.chat.keys.0.sha256: allowed: the digest of a key; this is that of an empty text",
    ),
    "two places for one key": (
        POOL + "tenants: {chat: {keys: [{env: A, file: b}]}}",
        "tenants.chat.keys.0: allowed: one of {sha256: DIGEST}, {env: NAME} or {file: PATH}, never the key itself",
    ),
    "a variable that is not set": (
        POOL + "tenants: {chat: {keys: [{env: NOT_SET}]}}",
        "tenants.chat.keys.0: the environment variable NOT_SET is empty or not set",
    ),
    "a key that no header can carry": (
        POOL + "tenants: {chat: {keys: [{env: SPACED}]}}",
        "tenants.chat.keys.0: what is kept there is no key; allowed: ASCII text without spaces",
    ),
    "one key, written twice": (
        POOL + f"tenants: {{chat: {{{KEY}}}, batch: {{{KEY}}}}}",
        "tenants.batch.keys.0: is the key of tenants.chat.keys.0 too; allowed: each key once",
    ),
    "one key in two places": (
        POOL + "tenants: {chat: {keys: [{env: CHAT_KEY}]}, batch: {keys: [{env: SAME}]}}",
        "tenants.batch.keys.0: is the key of FILE: tenants.chat.keys.0 too; allowed: each key once",
    ),
    "an unknown tenant that is unknown": (
        tenant("weight: 1") + "unknown_tenant: guest",
        "unknown_tenant: 'guest' is not allowed; allowed: reject, or one of chat",
    ),
    "who is who without tenants": (
        POOL + "identity: {from: api_key}",
        "identity: needs tenants; without them every request belongs to one tenant",
    ),
    "a source nobody knows": (
        tenant("weight: 1") + "identity: {from: cookie}",
        "identity.from: 'cookie' is not allowed; allowed: api_key, header or jwt",
    ),
    "a header that anyone may set": (
        POOL + "tenants: {chat: {}}\nidentity: {from: header, name: x-tenant}",
        "identity.trusted_proxies: is missing; `from: header` needs it",
    ),
    "a network that is none": (
        POOL + "tenants: {chat: {}}\nidentity: {from: header, name: x-tenant, trusted_proxies: [10.0.0.1/8]}",
        ("identity.trusted_proxies: ['10.0.0.1/8'] is not allowed; allowed: networks such as 10.0.0.0/8 or fd00::/8 "
        "(10.0.0.1/8 has host bits set)"),
    ),
    "a key of another source": (
        tenant("weight: 1") + "identity: {from: api_key, claim: sub}",
        "identity.claim: belongs to another source than `from: api_key`",
    ),
    "tokens without the keys to check them": (
        POOL + "tenants: {chat: {}}\nidentity: {from: jwt, claim: sub}",
        "identity.jwks_file: either it or jwks_url is needed, one of them",
    ),
    "keys over a plain connection": (
        POOL + "tenants: {chat: {}}\nidentity: {from: jwt, claim: sub, jwks_url: 'http://idp/keys'}",
        ("identity.jwks_url: 'http://idp/keys' is not allowed; allowed: a URL such as https://idp.example/keys.json "
        "(http:// on this machine only)"),
    ),
    "a signature that anyone can make": (
        POOL + "tenants: {chat: {}}\nidentity: {from: jwt, claim: sub, jwks_file: k, algorithms: [HS256]}",
        ("identity.algorithms: ['HS256'] is not allowed; allowed: a list of RS256, RS384, RS512, ES256, ES384, ES512, "
        "PS256, PS384, PS512, EdDSA"),
    ),
    "keys that nobody asks for": (
        tenant("weight: 1") + HEADER,
        "tenants.chat.keys: nobody asks for them; allowed: keys with identity: {from: api_key}",
    ),
    "no pool": ("version: 1\npools: {}", "pools: allowed: a mapping with names of pools, one or more"),
    "a pool's name": (
        "version: 1\npools: {llama-*: {backends: [http://a]}}",
        ("pools.llama-*: 'llama-*' is not allowed; allowed: a name, in quotes if it looks like a number, without * and "
        "without spaces around it"),
    ),
    "a name for two pools": (
        "version: 1\npools: {a: {backends: [http://a], aliases: [b]}, b: {backends: [http://b]}}",
        "pools.a.aliases: 'b' is not allowed; allowed: each name for one pool; this is the name of a pool",
    ),
    "an alias for two pools": (
        "version: 1\npools: {a: {backends: [http://a], aliases: [x]}, b: {backends: [http://b], aliases: [x]}}",
        "pools.b.aliases: 'x' is not allowed; allowed: each name for one pool; this is an alias of a",
    ),
    "an alias twice": (
        POOL.replace("[http://a]", "[http://a], aliases: [x, x]"),
        "pools.m.aliases: ['x', 'x'] is not allowed; allowed: each name once; x is there twice",
    ),
    "an alias for everything": (
        POOL.replace("[http://a]", "[http://a], aliases: ['*']"),
        "pools.m.aliases: ['*'] is not allowed; allowed: names in quotes, or patterns with more than *",
    ),
    "a backend in two pools": (
        "version: 1\npools: {a: {backends: [http://a]}, b: {backends: [http://a/]}}",
        ("pools.b.backends: 'http://a' is not allowed; allowed: each URL in one pool; it is in a as well, and its "
        "memory would be counted twice"),
    ),
    "a pool that is not there": (
        tenant("pools: {n: {weight: 2}}"),
        "tenants.chat.pools: 'n' is not allowed; allowed: a pool or a pattern that means one: m",
    ),
    "more guaranteed than there is": (
        POOL + f"tenants: {{chat: {{{KEY}, guarantee: 70%}}, batch: {{{OTHER}, guarantee: 40%}}}}",
        ("tenants.chat.guarantee: 110% guaranteed in pool m (chat 70%, batch 40%) is not allowed; allowed: 100% for "
        "all tenants together"),
    ),
    "more guaranteed than there is, by partitions": (
        POOL
        + f"defaults: {{borrow: off, guarantee: 60%}}\ntenants: {{chat: {{{KEY}}}, batch: {{{OTHER}}}}}",
        ("defaults.guarantee: 120% guaranteed in pool m (chat 60%, batch 60%) is not allowed; allowed: 100% for all "
        "tenants together"),
    ),
    "a guarantee above the limit": (
        tenant("guarantee: 50%, limit: 30%"),
        "tenants.chat.guarantee: 50% is not allowed; allowed: at most the limit of 30%",
    ),
    "a partition of nothing": (
        tenant("borrow: off"),
        "tenants.chat.borrow: off is not allowed; allowed: off with a guarantee above 0%: it is all that the tenant has",
    ),
    "a default above the cap": (
        tenant("max_tokens: {default: 500, cap: 400}"),
        "tenants.chat.max_tokens.default: 500 for tenant chat is not allowed; allowed: at most the cap, 400",
    ),
    "a default above the cap of all": (
        POOL + f"defaults: {{max_tokens: {{cap: 400}}}}\ntenants: {{chat: {{{KEY}, max_tokens: {{default: 500}}}}}}",
        "tenants.chat.max_tokens.default: 500 for tenant chat is not allowed; allowed: at most the cap, 400",
    ),
    "a limit below one request": (
        tenant("reservation: guaranteed, limit: 1k tokens, max_tokens: {cap: 4k}"),
        ("tenants.chat.limit: a limit of 1000 tokens for tenant chat is not allowed; allowed: 4000 tokens or more, one "
        "request of max_tokens 4000, which else could never pass"),
    ),
    "a share below one request": (
        SIZED + f"tenants: {{chat: {{{KEY}, reservation: guaranteed, limit: 10%}}}}",
        ("tenants.chat.limit: a limit of 160 tokens for tenant chat is not allowed; allowed: 2048 tokens or more, one "
        "request of max_tokens 2048, which else could never pass"),
    ),
    "a partition below one request": (
        SIZED + f"tenants: {{chat: {{{KEY}, reservation: guaranteed, guarantee: 50%, borrow: off}}}}",
        ("tenants.chat.guarantee: a limit of 800 tokens for tenant chat is not allowed; allowed: 2048 tokens or more, "
        "one request of max_tokens 2048, which else could never pass"),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("text", "said"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_has_one_line(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(file, ENV, {})
    assert str(caught.value) == f"{file}: {said.replace('FILE', str(file)).replace('FOLDER', str(tmp_path))}"


def test_several_mistakes_are_all_said(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(tenant("weight: 0, class: x, queue: {wait: 1, depth: 0}") + "mode: on\nbypass: -1\n")
    with pytest.raises(ConfigError) as caught:
        load(file, {}, {})
    assert len(str(caught.value).splitlines()) == 6


PLACES = (
    "tenants: SECRET",
    "tenants: [SECRET]",
    "tenants: {chat: SECRET}",
    "tenants: {chat: [SECRET]}",
    "tenants: {chat: [{sha256: SECRET}]}",
    "tenants: {chat: {keys: SECRET}}",
    "tenants: {chat: {keys: {sha256: SECRET}}}",
    "tenants: {chat: {keys: [SECRET]}}",
    "tenants: {chat: {keys: [[SECRET]]}}",
    "tenants: {chat: {keys: [{key: SECRET}]}}",
    "tenants: {chat: {keys: [{sha256: SECRET, env: A}]}}",
    "tenants: {chat: {keys: [{sha256: SECRET, x: A}]}}",
    "tenants: {chat: {keys: [{sha256: SECRET}], weight: x}}",
    "tenants: {chat: {keys: [{env: SECRET}]}}",
    "tenants: {chat: {keys: [{env: [SECRET]}]}}",
    "tenants: {chat: {keys: [{file: [SECRET]}]}}",
    "tenants: {chat: {keys: [{sha256: SECRET}], pools: [SECRET]}}",
    "tenants: {chat: {keys: [{sha256: SECRET}]}, batch: {keys: [{sha256: SECRET}]}}",
    "tenants: {chat: {keys: [{sha256: SECRET}], borrow: off}}",
)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("secret", ["sk-live-4711", SHA, '"sk live 4711"'])
def test_no_key_and_no_digest_is_in_a_message(tmp_path: Path, place: str, secret: str) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(POOL + place.replace("SECRET", secret))
    with pytest.raises(ConfigError) as caught:
        load(file, {}, {})
    assert secret.strip('"') not in str(caught.value)
