"""Whose request is it: every way to show it, and every way to get it wrong, with nothing secret in the answers."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvgate.admission import Answer, Reason
from kvgate.api.credentials import CREDENTIAL_BYTES_MAX, KeyIndex, Unusable, key_of
from kvgate.api.identity import Identity, claim_of, is_trusted
from kvgate.api.jwks import KEYS_MAX, KeySet, KeysUnavailable, keys_of
from kvgate.clock import SystemClock
from kvgate.config.tenants import IdentityRules, TenantBook, key_digest

KEYS = {b"sk-chat-1": "chat", b"sk-chat-2": "chat", b"sk-batch": "batch"}
Headers = list[tuple[bytes, bytes]]


def a_book(rules: IdentityRules, keys: Mapping[bytes, str] | None = None) -> TenantBook:
    digests = {key_digest(key): tenant for key, tenant in (KEYS if keys is None else keys).items()}
    return TenantBook(rules, digests, ("chat", "batch", "guest"))


def a_scope(headers: Headers, client: tuple[str, int] | None = ("10.0.0.7", 5)) -> dict[str, Any]:
    return {"headers": headers, "client": client}


async def found(headers: Headers, rules: IdentityRules, **scope: Any) -> str | Answer:
    return await Identity(SystemClock()).of(a_scope(headers, **scope), a_book(rules))


def refused(answer: str | Answer) -> bool:
    return isinstance(answer, Answer) and answer.reason is Reason.UNAUTHORIZED


BY_KEY = IdentityRules("api_key")
BY_KEY_OR_GUEST = IdentityRules("api_key", unknown="guest")


class TestKeys:
    @pytest.mark.parametrize(
        ("headers", "tenant"),
        [
            ([(b"authorization", b"Bearer sk-chat-1")], "chat"),
            ([(b"authorization", b"bearer  sk-chat-2 ")], "chat"),
            ([(b"x-api-key", b"sk-batch")], "batch"),
            ([(b"x-api-key", b"sk-batch \t")], "batch"),
            ([(b"x-api-key", b"sk-batch"), (b"authorization", b"Bearer sk-chat-1")], "chat"),
        ],
    )
    async def test_a_key_finds_its_tenant(self, headers: Headers, tenant: str) -> None:
        assert await found(headers, BY_KEY) == tenant

    @pytest.mark.parametrize(
        "headers",
        [
            [],
            [(b"authorization", b"Bearer sk-other")],
            [(b"x-api-key", b"sk-other")],
            [(b"x-api-key", b"sk-chat-1x")],
            [(b"cookie", b"sk-chat-1")],
        ],
    )
    async def test_no_key_or_an_unknown_one_is_refused_or_the_guest(self, headers: Headers) -> None:
        assert refused(await found(headers, BY_KEY))
        assert await found(headers, BY_KEY_OR_GUEST) == "guest"

    @pytest.mark.parametrize(
        "headers",
        [
            [(b"authorization", b"Basic sk-chat-1")],
            [(b"authorization", b"sk-chat-1")],
            [(b"authorization", b"Bearer")],
            [(b"authorization", b"Bearer sk chat")],
            [(b"authorization", b"Bearer sk-\xffchat")],
            [(b"authorization", b"Bearer sk-chat-1"), (b"authorization", b"Bearer sk-chat-1")],
            [(b"x-api-key", b"")],
            [(b"x-api-key", b"sk-chat-1"), (b"x-api-key", b"sk-chat-1")],
            [(b"x-api-key", b"a" * (CREDENTIAL_BYTES_MAX + 1))],
        ],
    )
    async def test_what_cannot_be_read_is_refused_even_where_guests_are_welcome(
        self, headers: Headers
    ) -> None:
        assert key_of(headers) is Unusable.MALFORMED
        assert refused(await found(headers, BY_KEY_OR_GUEST))

    async def test_a_revoked_key_ends_with_the_book_that_had_it(self) -> None:
        identity, scope = Identity(SystemClock()), a_scope([(b"x-api-key", b"sk-batch")])
        assert await identity.of(scope, a_book(BY_KEY)) == "batch"
        assert refused(await identity.of(scope, a_book(BY_KEY, {b"sk-chat-1": "chat"})))
        assert await identity.of(scope, a_book(BY_KEY)) == "batch"

    async def test_no_refusal_repeats_what_was_sent(self) -> None:
        for key in (b"sk-very-secret", b"\xff"):
            answer = await found([(b"authorization", b"Bearer " + key)], BY_KEY)
            assert isinstance(answer, Answer)
            assert key.decode("latin-1") not in repr(answer)
            assert key_digest(key).hex() not in repr(answer)

    def test_the_index_knows_exactly_its_keys(self) -> None:
        index = KeyIndex({key_digest(b"k%d" % n): f"t{n}" for n in range(500)})
        assert [index.tenant_of(b"k%d" % n) for n in range(500)] == [f"t{n}" for n in range(500)]
        assert index.tenant_of(b"k500") is None
        assert KeyIndex({}).tenant_of(b"") is None

    async def test_without_tenants_everyone_is_the_one_there_is(self) -> None:
        book = TenantBook(IdentityRules(), {}, ("anonymous",))
        assert await Identity(SystemClock()).of(a_scope([(b"authorization", b"?")]), book) == "anonymous"


PROXIES = (ip_network("10.0.0.0/8"), ip_network("fd00::/8"))
BY_HEADER = IdentityRules("header", header="x-tenant", trusted_proxies=PROXIES)


class TestHeader:
    @pytest.mark.parametrize("host", ["10.9.8.7", "::ffff:10.9.8.7", "fd00::1"])
    async def test_a_trusted_proxy_tells_the_tenant(self, host: str) -> None:
        assert await found([(b"x-tenant", b"batch")], BY_HEADER, client=(host, 1)) == "batch"
        assert await found([(b"x-tenant", b"batch \t")], BY_HEADER, client=(host, 1)) == "batch"

    @pytest.mark.parametrize(
        "client", [("11.0.0.1", 1), ("::ffff:11.0.0.1", 1), ("fe80::1", 1), ("", 0), None]
    )
    async def test_nobody_else_is_believed(self, client: tuple[str, int] | None) -> None:
        headers = [(b"x-tenant", b"batch"), (b"x-forwarded-for", b"10.0.0.1")]
        assert not is_trusted(client, BY_HEADER)
        assert refused(await found(headers, BY_HEADER, client=client))
        guests = IdentityRules("header", header="x-tenant", trusted_proxies=PROXIES, unknown="guest")
        assert await found(headers, guests, client=client) == "guest"

    @pytest.mark.parametrize(
        "headers", [[], [(b"x-tenant", b"nobody")], [(b"x-tenant", b"chat"), (b"x-tenant", b"batch")]]
    )
    async def test_none_an_unknown_one_or_two_names_are_no_identity(self, headers: Headers) -> None:
        assert refused(await found(headers, BY_HEADER))


RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER_RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
WEAK_RSA = rsa.generate_private_key(public_exponent=65537, key_size=1024)  # noqa: S505
EC = ec.generate_private_key(ec.SECP256R1())


def public(key: Any, kid: str | None, **more: str) -> dict[str, Any]:
    algorithm = jwt.get_algorithm_by_name("RS256" if isinstance(key, rsa.RSAPrivateKey) else "ES256")
    card: dict[str, Any] = algorithm.to_jwk(key.public_key(), as_dict=True)
    return {**card, **({} if kid is None else {"kid": kid}), **more}


def write_set(path: Path, *cards: dict[str, Any]) -> None:
    path.write_bytes(json.dumps({"keys": list(cards)}).encode())


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "jwks.json"
    write_set(path, public(RSA, "rsa"), public(EC, "ec", alg="ES256"), public(WEAK_RSA, "weak"))
    return path


def by_token(path: Path, **changes: Any) -> IdentityRules:
    rules = {"jwt_claim": "org.team", "jwt_issuer": "https://id.example", "jwt_audience": "kvgate"}
    return IdentityRules("jwt", **{**rules, "jwks_file": path, **changes})


def a_token(key: Any = RSA, kid: str | None = "rsa", algorithm: str = "RS256", **claims: Any) -> Headers:
    now = int(time.time())
    told = {"iss": "https://id.example", "aud": "kvgate", "exp": now + 60, "org": {"team": "chat"}, **claims}
    told = {name: value for name, value in told.items() if value is not None}
    token = jwt.encode(told, key, algorithm, headers={} if kid is None else {"kid": kid})
    return [(b"authorization", b"Bearer " + token.encode())]


GOOD_TOKEN = a_token()[0][1].removeprefix(b"Bearer ")


class TestTokens:
    @pytest.mark.parametrize(
        "headers",
        [
            a_token(),
            a_token(EC, "ec", "ES256"),
            a_token(nbf=int(time.time()) - 5),
            a_token(aud=["x", "kvgate"]),
        ],
    )
    async def test_a_token_that_holds_names_the_tenant(self, headers: Headers, key_file: Path) -> None:
        assert await found(headers, by_token(key_file)) == "chat"

    @pytest.mark.parametrize(
        ("headers", "word"),
        [
            (a_token(exp=int(time.time()) - 600), "expired"),
            (a_token(exp=None), "not valid"),
            (a_token(nbf=int(time.time()) + 600), "not valid"),
            (a_token(iss="https://evil.example"), "not valid"),
            (a_token(iss=None), "not valid"),
            (a_token(aud="other"), "not valid"),
            (a_token(aud=None), "not valid"),
            (a_token(OTHER_RSA), "not valid"),
            (a_token(kid="no-such-key"), "not valid"),
            (a_token(kid=None), "not valid"),
            (a_token(algorithm="RS512"), "not valid"),
            (a_token(EC, "rsa", "ES256"), "not valid"),
            ([(b"authorization", b"Bearer a.b.c")], "not valid"),
            ([(b"authorization", b"Bearer abc")], "not valid"),
            ([(b"authorization", b"Basic abc")], "can't be read"),
            ([], "missing"),
        ],
    )
    async def test_one_that_does_not_hold_is_refused(
        self, headers: Headers, word: str, key_file: Path
    ) -> None:
        answer = await found(headers, by_token(key_file))
        assert isinstance(answer, Answer)
        assert (answer.reason, answer.status) == (Reason.UNAUTHORIZED, None)
        assert word in answer.message
        guest = await found(headers, by_token(key_file, unknown="guest"))
        assert guest == "guest" if word == "missing" else refused(guest)

    @pytest.mark.filterwarnings("ignore::jwt.warnings.InsecureKeyLengthWarning")
    async def test_a_weak_key_signs_nothing(self, key_file: Path) -> None:
        assert refused(await found(a_token(WEAK_RSA, "weak"), by_token(key_file)))

    @pytest.mark.filterwarnings("ignore::jwt.warnings.InsecureKeyLengthWarning")
    async def test_the_classic_forgeries_fail(self, key_file: Path) -> None:
        """No algorithm; and the public key, which everyone has, taken for a shared secret."""
        claims = {
            "iss": "https://id.example",
            "aud": "kvgate",
            "exp": time.time() + 60,
            "org": {"team": "chat"},
        }
        none = jwt.encode(claims, None, "none", headers={"kid": "rsa"})  # type: ignore[arg-type]
        shared = jwt.encode(claims, str(public(RSA, "rsa")["n"]), "HS256", headers={"kid": "rsa"})
        rules = by_token(key_file, jwt_algorithms=("RS256", "ES256", "none", "HS256"))
        for token in (none, shared):
            assert refused(await found([(b"authorization", b"Bearer " + token.encode())], rules))

    async def test_a_token_nested_beyond_reading_is_just_not_valid(self, key_file: Path) -> None:
        deep = jwt.utils.base64url_encode(b"[" * 8000).replace(b"=", b"")
        assert refused(
            await found([(b"authorization", b"Bearer " + deep + b".e30.c2ln")], by_token(key_file))
        )

    @pytest.mark.parametrize("org", [{"team": "nobody"}, {"team": 7}, {"team": ["chat"]}, "chat", {}, None])
    async def test_a_claim_of_no_tenant_is_refused_or_the_guest(self, org: Any, key_file: Path) -> None:
        assert refused(await found(a_token(org=org), by_token(key_file)))
        assert await found(a_token(org=org), by_token(key_file, unknown="guest")) == "guest"

    async def test_without_an_audience_in_the_policy_any_will_do(self, key_file: Path) -> None:
        assert await found(a_token(aud="other"), by_token(key_file, jwt_audience=None)) == "chat"

    async def test_no_keys_at_all_is_our_trouble_and_not_the_clients(self, tmp_path: Path) -> None:
        answer = await found(a_token(), by_token(tmp_path / "missing.json"))
        assert isinstance(answer, Answer)
        assert (answer.status, answer.reason) == (503, Reason.UNAUTHORIZED)
        assert answer.retry_after_s

    @given(st.data())
    @settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    def test_whatever_a_token_is_made_of_it_is_only_refused(
        self, key_file: Path, data: st.DataObject
    ) -> None:
        token = bytearray(GOOD_TOKEN)
        for _ in range(data.draw(st.integers(1, 3))):
            at = data.draw(st.integers(0, len(token) - 1))
            if data.draw(st.booleans()):
                token[at] = data.draw(st.integers(0x21, 0x7E))
            else:
                del token[at]
        headers = [(b"authorization", b"Bearer " + bytes(token))]
        answer = asyncio.run(found(headers, by_token(key_file)))
        assert answer == "chat" or refused(answer)

    @given(
        st.lists(st.binary(max_size=40), max_size=3), st.sampled_from([BY_KEY, BY_KEY_OR_GUEST, BY_HEADER])
    )
    def test_whatever_headers_there_are_strangers_stay_strangers(
        self, values: list[bytes], rules: IdentityRules
    ) -> None:
        names = (b"authorization", b"x-api-key", b"x-tenant")
        headers = list(zip(names, values, strict=False))
        answer = asyncio.run(found(headers, rules, client=("8.8.8.8", 1)))
        assert answer == rules.unknown or refused(answer)

    def test_a_claim_with_dots_in_its_name_comes_before_a_path(self) -> None:
        claims = {"https://x.example/team": "a", "org": {"team": "b"}}
        assert claim_of(claims, "https://x.example/team") == "a"
        assert claim_of(claims, "org.team") == "b"
        assert claim_of(claims, "org.team.more") is None


class Hand:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


class TestKeySet:
    async def test_a_new_key_is_found_at_once_and_then_at_most_each_ten_seconds(self, key_file: Path) -> None:
        clock = Hand()
        keys = KeySet(key_file, clock)
        assert await keys.key("new", "RS256") is None
        write_set(key_file, public(RSA, "new"))
        clock.now_s += 9
        assert await keys.key("new", "RS256") is None  # asked for too soon
        clock.now_s += 2
        assert await keys.key("new", "RS256") is not None
        assert await keys.key("rsa", "RS256") is None  # gone from the set

    async def test_keys_live_on_for_a_day_when_they_cannot_be_read_again(self, key_file: Path) -> None:
        clock = Hand()
        keys = KeySet(key_file, clock)
        assert await keys.key("rsa", "RS256") is not None
        key_file.unlink()
        clock.now_s += 3600
        assert await keys.key("rsa", "RS256") is not None
        clock.now_s += 24 * 3600
        with pytest.raises(KeysUnavailable):
            await keys.key("rsa", "RS256")

    async def test_a_set_of_one_needs_no_name(self, key_file: Path) -> None:
        write_set(key_file, public(RSA, None))
        assert await KeySet(key_file, Hand()).key(None, "RS256") is not None

    @pytest.mark.parametrize(
        "body", [b"", b"[]", b'{"keys": 1}', b'{"keys": [1]}', b'{"keys": []' + b" " * 300_000 + b"}"]
    )
    def test_what_is_no_set_is_an_error(self, body: bytes) -> None:
        with pytest.raises(ValueError):
            keys_of(body)

    def test_only_public_keys_for_signatures_count(self) -> None:
        cards = [
            {"kty": "oct", "kid": "shared", "k": "c2VjcmV0"},
            public(RSA, "enc", use="enc"),
            public(RSA, "sig", use="sig"),
        ]
        assert set(keys_of(json.dumps({"keys": cards}).encode())) == {"sig"}
        odd = [public(RSA, "a") | {"kty": ["RSA"]}, public(RSA, "b") | {"kid": ["b"]}, public(RSA, "good")]
        assert set(keys_of(json.dumps({"keys": odd}).encode())) == {"good"}
        many = [public(EC, f"k{n}") for n in range(KEYS_MAX + 1)]
        with pytest.raises(ValueError, match="more than"):
            keys_of(json.dumps({"keys": many}).encode())
