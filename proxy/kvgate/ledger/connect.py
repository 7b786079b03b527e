"""How a process reaches its Redis: the URL, two clients, and what is checked before anything depends on it.

    redis://user:secret@host:6379/0            one server (or whatever stands behind that name)
    rediss://…                                 the same over TLS
    redis+sentinel://host:26379,host/service/0 the master that the sentinels name
    redis+cluster://host:6379,host:6379        a cluster; a pool lives on one of its nodes
    rediss+sentinel://…  rediss+cluster://…    the same over TLS

The query may hold `ssl_ca_certs`, `ssl_certfile`, `ssl_keyfile` (paths), `ssl_check_hostname=false`, and for
sentinels with credentials of their own `sentinel_username`, `sentinel_password`.

Every wait is bounded and nothing is repeated: redis-py's own defaults retry for up to a minute, and a request
cannot wait that long to learn that the ledger is away. Passwords appear in no message and no `repr`.
"""

from __future__ import annotations

import copy
import hashlib
import logging
import re
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import redis.asyncio
from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError, ResponseError

from kvgate.errors import ConfigError
from kvgate.ledger.batching import BatchingCluster, BatchingRedis
from kvgate.ledger.keys import stream_key

SOCKET_S = 0.25
"""For a connection to open and for each answer: ten times what a busy Redis in the same region needs."""
CONNECT_TLS_S = 0.45
"""For a connection with TLS to open: three round trips and a key exchange, still within one call's bound."""
SENTINEL_SOCKET_S = 0.1
"""For each sentinel that is asked in turn: one that is gone must not use up the call's time."""
BLOCK_S = 1.0
"""How long the blocking read waits in the server; after that it asks again, which shows that the line works."""
READ_MARGIN_S = 0.5
"""Beyond `BLOCK_S`, after which a silent line is a dead one."""
REDIS_MIN = (7, 0)
VALKEY_MIN = (8, 0)

Client = redis.asyncio.Redis | RedisCluster
TROUBLE = (RedisError, OSError, TimeoutError)
"""What a call raises when Redis is away or says no."""

_PROBE = "return redis.call('EXISTS', KEYS[1])"

log = logging.getLogger(__name__)


class Kind(StrEnum):
    SINGLE = "single"
    SENTINEL = "sentinel"
    CLUSTER = "cluster"


@dataclass(frozen=True, slots=True)
class Address:
    """A URL, taken apart."""

    kind: Kind
    hosts: tuple[tuple[str, int], ...]
    tls: bool = False
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    db: int = 0
    service: str = ""
    tls_options: tuple[tuple[str, str | bool], ...] = ()
    sentinel_username: str | None = None
    sentinel_password: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        """For logs: no credentials."""
        hosts = ",".join(f"{host}:{port}" for host, port in self.hosts)
        scheme = ("rediss" if self.tls else "redis") + ("" if self.kind is Kind.SINGLE else f"+{self.kind}")
        return f"{scheme}://{hosts}" + (f"/{self.service}" if self.service else "")


_SCHEMES = {
    "redis": (Kind.SINGLE, False),
    "rediss": (Kind.SINGLE, True),
    "redis+sentinel": (Kind.SENTINEL, False),
    "rediss+sentinel": (Kind.SENTINEL, True),
    "redis+cluster": (Kind.CLUSTER, False),
    "rediss+cluster": (Kind.CLUSTER, True),
}
_TLS_PATHS = frozenset({"ssl_ca_certs", "ssl_certfile", "ssl_keyfile"})
_SENTINEL_OPTIONS = frozenset({"sentinel_username", "sentinel_password"})


def parse_url(url: str) -> Address:
    """Raises ConfigError that says what is wrong, without repeating the URL's credentials."""
    split = urlsplit(url)
    if split.scheme not in _SCHEMES:
        raise ConfigError(
            f"the ledger's URL begins with {split.scheme or 'no scheme'!r}; "
            f"allowed are memory and {', '.join(_SCHEMES)}"
        )
    kind, tls = _SCHEMES[split.scheme]
    credentials, _, places = split.netloc.rpartition("@")
    username, _, password = credentials.partition(":")
    hosts = tuple(_host(place, kind) for place in places.split(","))
    if kind is Kind.SINGLE and len(hosts) > 1:
        raise ConfigError(
            "the ledger's URL names several hosts; that needs redis+sentinel:// or redis+cluster://"
        )
    service, db = _path(split.path, kind)
    options = _options(split.query, kind, tls=tls)
    return Address(
        kind,
        hosts,
        tls,
        username=unquote(username) or None,
        password=unquote(password) or None,
        db=db,
        service=service,
        tls_options=tuple((key, value) for key, value in options if key.startswith("ssl_")),
        sentinel_username=_text(options, "sentinel_username"),
        sentinel_password=_text(options, "sentinel_password"),
    )


def _host(place: str, kind: Kind) -> tuple[str, int]:
    """`host`, `host:port`, `[v6]:port`."""
    found = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]]+)(?::(\d{1,5}))?", place)
    port = int((found and found[2]) or (26379 if kind is Kind.SENTINEL else 6379))
    if found is None or not 0 < port < 65536:
        raise ConfigError(f"the ledger's URL needs a host as name:port, not {place!r}")
    return found[1].strip("[]"), port


def _path(path: str, kind: Kind) -> tuple[str, int]:
    """The service (sentinels only) and the database."""
    parts = [unquote(part) for part in path.split("/") if part]
    service = parts.pop(0) if kind is Kind.SENTINEL and parts else ""
    if kind is Kind.SENTINEL and not service:
        raise ConfigError("the ledger's URL needs the name of the service: redis+sentinel://host:26379/NAME")
    database = parts.pop(0) if parts else "0"
    if parts or not database.isdecimal():
        raise ConfigError(f"the ledger's URL ends with the number of a database, not {path!r}")
    if kind is Kind.CLUSTER and int(database):
        raise ConfigError("a Redis cluster has database 0 only")
    return service, int(database)


def _options(query: str, kind: Kind, *, tls: bool) -> list[tuple[str, str | bool]]:
    options: list[tuple[str, str | bool]] = []
    for key, value in parse_qsl(query, keep_blank_values=True):
        if key in _TLS_PATHS and tls:
            options.append((key, value))
        elif key == "ssl_check_hostname" and tls and value in {"true", "false"}:
            options.append((key, value == "true"))
        elif key in _SENTINEL_OPTIONS and kind is Kind.SENTINEL:
            options.append((key, value))
        else:
            raise ConfigError(f"the ledger's URL has an option that is not known or not fit there: {key}")
    return options


def _text(options: list[tuple[str, str | bool]], key: str) -> str | None:
    return next((value for name, value in options if name == key and isinstance(value, str)), None)


class Connection:
    """The two clients of one process: `calls` sends together, `reading` blocks for the stream.

    Nothing is connected before the first call.
    """

    def __init__(self, url: str) -> None:
        """Raises ConfigError for a URL that can't be used."""
        self.address = parse_url(url)
        self._sentinels = _sentinels(self.address) if self.address.kind is Kind.SENTINEL else None
        self.calls: Client = _client(self.address, self._sentinels, SOCKET_S, together=True)
        reading_s = BLOCK_S + READ_MARGIN_S
        self.reading: Client = _client(self.address, self._sentinels, reading_s, together=False)

    async def check(self, pool: str) -> str:
        """Whether this Redis can carry a ledger; its name and version.

        Raises ConfigError when it never will as it is set up; whatever is in `TROUBLE` when it can't be asked.
        """
        try:
            name = await self._check_version()
            await self._check_eviction()
            await self._check_scripts(stream_key(pool))
        except (AuthenticationError, NoPermissionError) as error:
            raise ConfigError(
                f"Redis at {self.address} refuses the credentials of its URL: {error}"
            ) from error
        return name

    async def _check_version(self) -> str:
        """PING is left out: an answer to INFO says as much."""
        try:
            info = _first(await self.calls.info("server"))
        except NoPermissionError:
            log.warning("INFO is forbidden at %s: the version of Redis is not checked", self.address)
            return "unknown"
        is_valkey = "valkey_version" in info
        version = str(info["valkey_version" if is_valkey else "redis_version"])
        name = "Valkey" if is_valkey else "Redis"
        least = VALKEY_MIN if is_valkey else REDIS_MIN
        if tuple(int(part) for part in version.split(".")[:2]) < least:
            raise ConfigError(
                f"{name} at {self.address} is version {version}; the ledger needs Redis 7.0 or Valkey 8.0, or newer"
            )
        return f"{name} {version}"

    async def _check_eviction(self) -> None:
        policy = await self._eviction_policy()
        if policy is None:
            log.warning(
                "neither INFO nor CONFIG may be asked at %s: make sure that its maxmemory-policy is noeviction",
                self.address,
            )
        elif policy != "noeviction":
            raise ConfigError(
                f"Redis at {self.address} would drop parts of the ledger when its memory is full: "
                f"set `maxmemory-policy noeviction` there (it is {policy})"
            )

    async def _eviction_policy(self) -> str | None:
        try:
            return str(_first(await self.calls.info("memory"))["maxmemory_policy"])
        except NoPermissionError:
            pass
        try:
            answer = await self.calls.config_get("maxmemory-policy")
        except NoPermissionError:
            return None
        return str(next(iter(_first(answer).values()), None))

    async def _check_scripts(self, stream: str) -> None:
        """Proxies in front of Redis often forbid scripts; then the ledger would be a heap of silent errors."""
        try:
            await self.calls.eval(_PROBE, 1, stream)
            await self.calls.evalsha(
                hashlib.sha1(_PROBE.encode(), usedforsecurity=False).hexdigest(), 1, stream
            )
            await self.calls.xread({stream: "$"}, count=1)
        except (AuthenticationError, NoPermissionError):
            raise
        except ResponseError as error:
            if str(error).startswith(("READONLY", "NOSCRIPT", "LOADING", "MASTERDOWN", "CLUSTERDOWN")):
                raise
            raise ConfigError(
                f"Redis at {self.address} does not run what the ledger needs (EVAL, EVALSHA, XREAD): {error}"
            ) from error

    async def aclose(self) -> None:
        """Close every connection; one that can't be closed in order keeps no other one open."""
        async with AsyncExitStack() as closing:
            if self._sentinels is not None:
                closing.push_async_callback(self._sentinels.aclose)
            closing.push_async_callback(self.reading.aclose)
            closing.push_async_callback(self.calls.aclose)

    def __repr__(self) -> str:
        return f"<Connection {self.address}>"


def _client(address: Address, sentinels: Sentinels | None, socket_s: float, *, together: bool) -> Client:
    options: dict[str, Any] = {
        "username": address.username,
        "password": address.password,
        "socket_timeout": socket_s,
        "socket_connect_timeout": CONNECT_TLS_S if address.tls else SOCKET_S,
        "socket_keepalive": True,
        "health_check_interval": 0,  # the heartbeat is one
        "retry": Retry(NoBackoff(), 0),
        **_tls(address),
    }
    if address.kind is Kind.CLUSTER:
        cluster = BatchingCluster if together else RedisCluster
        return cluster(startup_nodes=[ClusterNode(host, port) for host, port in address.hosts], **options)
    options["db"] = address.db
    single = BatchingRedis if together else redis.asyncio.Redis
    if sentinels is not None:
        pool: Any = SentinelConnectionPool(address.service, sentinels, **options)  # type: ignore[no-untyped-call]
        return single.from_pool(pool)
    ((host, port),) = address.hosts
    return single(host=host, port=port, **options)


class Sentinels(Sentinel):
    """The sentinels that both clients of a process ask for the master.

    redis-py moves the one that knew to the front by its place in the list. When two ask at the same time, the list
    has changed before the second one moves: a sentinel would be in it twice, and another one lost with its open
    connection. So each question has a list of its own, and what it found out only changes the order of this one.
    """

    async def discover_master(self, service_name: str) -> tuple[str, int]:
        """Address and port. Raises MasterNotFoundError."""
        asked = copy.copy(self)
        asked.sentinels = list(self.sentinels)
        found: tuple[str, int] = await Sentinel.discover_master(asked, service_name)
        self.sentinels.sort(key=lambda sentinel: sentinel is not asked.sentinels[0])
        return found


def _sentinels(address: Address) -> Sentinels:
    options: dict[str, Any] = {
        "username": address.sentinel_username,
        "password": address.sentinel_password,
        "socket_timeout": SENTINEL_SOCKET_S,
        "socket_connect_timeout": CONNECT_TLS_S if address.tls else SENTINEL_SOCKET_S,
        "retry": Retry(NoBackoff(), 0),
        **_tls(address),
    }
    return Sentinels(list(address.hosts), sentinel_kwargs=options)  # type: ignore[no-untyped-call]


def _tls(address: Address) -> dict[str, Any]:
    return {"ssl": True, **dict(address.tls_options)} if address.tls else {}


def _first(answer: Any) -> dict[str, Any]:
    """A cluster's client answers by node; one of them speaks for all."""
    values = list(answer.values())
    found: dict[str, Any] = values[0] if values and isinstance(values[0], dict) else answer
    return found


__all__ = ["BLOCK_S", "TROUBLE", "Address", "Client", "Connection", "Kind", "parse_url"]
