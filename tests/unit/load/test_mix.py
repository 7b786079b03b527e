"""Sessions that are made when they are sent: by seed, by salt, by tenant; and when they are sent."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import pytest

from kvgate.load.lengths import Fixed, Independent, Uniform
from kvgate.load.mix import Tenant, drawn, fresh_salt, poisson, read_tenant
from kvgate.load.workload import PromptKind

SIZES = Independent(Uniform(1, 60), Uniform(1, 40))


def test_the_seed_decides_sizes_and_the_salt_what_prompts_say() -> None:
    one, same, salted = (drawn("m", 20, SIZES, seed=1, salt=salt) for salt in (1, 1, 2))
    assert list(one.sessions) == list(same.sessions)
    assert [s.prompt_tokens for s in one.sessions] == [s.prompt_tokens for s in salted.sessions]
    assert all(
        a.prompt != b.prompt
        for a, b in zip(one.sessions, salted.sessions, strict=True)
        if a.prompt_tokens > 3
    )
    other = drawn("m", 20, SIZES, seed=2, salt=1)
    assert [s.prompt_tokens for s in one.sessions] != [s.prompt_tokens for s in other.sessions]


def test_it_is_a_sequence() -> None:
    sessions = drawn("m", 5, SIZES, seed=1, kind=PromptKind.CHAT).sessions
    assert len(sessions) == 5
    assert list(sessions[1:3]) == [sessions[1], sessions[2]]
    assert sessions[0].chat
    for index in (5, -1):
        with pytest.raises(IndexError):
            sessions[index]


def test_tenants_send_their_share_with_their_key() -> None:
    tenants = (Tenant("a", "key-a", 3.0), Tenant("b", "key-b", 1.0))
    sessions = drawn("m", 2000, Independent(Fixed(1), Fixed(1)), seed=1, tenants=tenants).sessions
    counts = Counter((session.tenant, session.key) for session in sessions)
    assert set(counts) == {("a", "key-a"), ("b", "key-b")}
    assert counts["a", "key-a"] == pytest.approx(1500, rel=0.05)


def test_a_tenant_as_it_is_written() -> None:
    assert read_tenant("chat:sk:with:colons:2.5", {}) == Tenant("chat", "sk:with:colons", 2.5)
    assert read_tenant("chat:@KEY:1", {"KEY": "sk-secret"}).key == "sk-secret"
    assert "sk-secret" not in repr(Tenant("chat", "sk-secret"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "chat",
        "chat:1",
        ":k:1",
        "chat::1",
        "chat:k:0",
        "chat:k:-1",
        "chat:k:x",
        "chat:k:nan",
        "chat:k:inf",
    ],
)
def test_a_tenant_that_is_none(text: str) -> None:
    with pytest.raises(ValueError, match="NAME:KEY:SHARE"):
        read_tenant(text, {})


@pytest.mark.parametrize(
    ("text", "said"), [("a:@NO:1", "NO is not"), ("a:k ey:1", "printable ASCII"), ("a:ké:1", "ASCII")]
)
def test_a_key_that_is_none(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read_tenant(text, {})


def test_arrivals_come_at_the_rate() -> None:
    times = list(islice(poisson(20.0, 1), 4000))
    assert times == sorted(times)
    assert times[-1] == pytest.approx(200, rel=0.1)
    assert times == list(islice(poisson(20.0, 1), 4000))


def test_salts_differ() -> None:
    assert fresh_salt() < fresh_salt()
