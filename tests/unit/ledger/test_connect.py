"""The URL of a shared ledger: what it may say, and that its secrets stay in it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kvgate.errors import ConfigError
from kvgate.ledger.connect import Address, Connection, Kind, Sentinels, parse_url


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("redis://cache", Address(Kind.SINGLE, (("cache", 6379),))),
        ("redis://cache:7000/3", Address(Kind.SINGLE, (("cache", 7000),), db=3)),
        ("redis://[::1]:7000", Address(Kind.SINGLE, (("::1", 7000),))),
        (
            "rediss://ann:p%40ss@cache",
            Address(Kind.SINGLE, (("cache", 6379),), tls=True, username="ann", password="p@ss"),
        ),
        ("redis://:secret@cache", Address(Kind.SINGLE, (("cache", 6379),), password="secret")),
        (
            "redis+sentinel://s1,s2:5000/main/1?sentinel_password=x",
            Address(
                Kind.SENTINEL,
                (("s1", 26379), ("s2", 5000)),
                db=1,
                service="main",
                sentinel_password="x",
            ),
        ),
        (
            "rediss+cluster://n1:1,n2:2?ssl_ca_certs=/ca.pem&ssl_check_hostname=false",
            Address(
                Kind.CLUSTER,
                (("n1", 1), ("n2", 2)),
                tls=True,
                tls_options=(("ssl_ca_certs", "/ca.pem"), ("ssl_check_hostname", False)),
            ),
        ),
    ],
)
def test_urls(url, address):
    assert parse_url(url) == address


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://cache", "http"),
        ("cache:6379", "allowed are"),
        ("redis://", "host"),
        ("redis://cache:99999", "host"),
        ("redis://a,b", "redis\\+sentinel"),
        ("redis://cache/one", "number"),
        ("redis://cache/1/2", "number"),
        ("redis+sentinel://s1", "service"),
        ("redis+cluster://n1/1", "database 0"),
        ("redis://cache?ssl_ca_certs=x", "ssl_ca_certs"),
        ("rediss://cache?ssl_check_hostname=no", "ssl_check_hostname"),
        ("redis://cache?sentinel_password=x", "sentinel_password"),
        ("redis://cache?timeout=9", "timeout"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused_with_the_part_that_is_wrong(url, says):
    with pytest.raises(ConfigError, match=says):
        parse_url(url)


@pytest.mark.parametrize(
    "url",
    [
        "redis://ann:SECRET@cache:1/x",
        "redis://ann:SECRET@a,b",
        "ftp://ann:SECRET@cache",
        "redis+cluster://:SECRET@n1/7",
        "redis+sentinel://:SECRET@s1?sentinel_password=SECRET",
    ],
)
def test_no_message_repeats_a_password(url):
    with pytest.raises(ConfigError) as caught:
        parse_url(url)
    assert "SECRET" not in str(caught.value)


def test_an_address_shows_no_password():
    address = parse_url("rediss+sentinel://ann:SECRET@s1,s2/main?sentinel_password=SECRET")
    assert "SECRET" not in f"{address} {address!r}"
    assert str(address) == "rediss+sentinel://s1:26379,s2:26379/main"


class Sentinel:
    """Answers after a turn of the loop, whether it takes the master for alive."""

    def __init__(self, *, knows: bool) -> None:
        self.knows = knows

    async def sentinel_masters(self) -> dict[str, Any]:
        await asyncio.sleep(0)
        state = {"is_sdown": not self.knows, "is_odown": False, "num-other-sentinels": 2}
        return {"main": {"is_master": True, "ip": "10.0.0.1", "port": 6379, **state}}


async def test_no_sentinel_is_lost_when_both_clients_ask_at_the_same_time():
    """While a master fails, some sentinels know it and others don't yet."""
    sentinels: Any = Sentinels([], sentinel_kwargs={})
    first, second, third = Sentinel(knows=False), Sentinel(knows=True), Sentinel(knows=True)
    sentinels.sentinels = [first, second, third]
    found = await asyncio.gather(*(sentinels.discover_master("main") for _ in range(2)))
    assert found == [("10.0.0.1", 6379)] * 2
    assert sentinels.sentinels == [second, first, third], "the one that knew is asked first from now on"


async def test_what_cannot_be_closed_in_order_keeps_nothing_else_open():
    connection = Connection("redis+sentinel://s1,s2/main")
    closed: list[str] = []

    async def fails() -> None:
        raise ConnectionError("reset while closing")

    def closes(name: str) -> Any:
        async def close() -> None:
            closed.append(name)

        return close

    connection.calls.aclose = fails  # type: ignore[method-assign]
    connection.reading.aclose = closes("reading")  # type: ignore[method-assign]
    connection._sentinels.aclose = closes("sentinels")  # type: ignore[union-attr, method-assign]
    with pytest.raises(ConnectionError):
        await connection.aclose()
    assert closed == ["reading", "sentinels"]
