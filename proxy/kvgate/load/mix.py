"""Who sends what: sessions drawn from a distribution for a mix of tenants, each made when it is sent.

Sizes and tenants of session i follow from the seed, so that two ways to the same engines get the same work. What
the prompts say follows from the salt: a run with prompts that the engine has seen before would find them in its
prefix cache, and measure that.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, overload

from kvgate.load.workload import PromptKind, Session, Workload, make_session

if TYPE_CHECKING:
    from kvgate.load.lengths import Sizes

SESSIONS_MAX = 50_000
"""Of one run: with the arrival of every token some hundred MB."""
TENANT_ALLOWED = (
    "NAME:KEY:SHARE, such as chat:sk-chat:3, or NAME:@VARIABLE:SHARE with the key in the environment"
)


@dataclass(frozen=True, slots=True)
class Tenant:
    """One that sends, and how much of all it sends."""

    name: str
    key: str | None = field(default=None, repr=False)
    share: float = 1.0


ALONE = (Tenant(""),)


def read_tenant(text: str, environment: dict[str, str]) -> Tenant:
    """Read `NAME:KEY:SHARE`. Raises ValueError with what is allowed; the key is never in it."""
    name, _, rest = text.partition(":")
    key, _, share = rest.rpartition(":")
    try:
        number = float(share)
    except ValueError:
        number = 0.0
    if not name or not key or not 0 < number < 1e6:
        raise ValueError(TENANT_ALLOWED)
    if key.startswith("@"):
        found = environment.get(key[1:])
        if not found:
            raise ValueError(f"a variable that is set; {key[1:]} is not")
        key = found
    if not (key.isascii() and key.isprintable() and " " not in key):
        raise ValueError("a key of printable ASCII characters without spaces")
    return Tenant(name, key, number)


class DrawnSessions(Sequence[Session]):
    """Sessions that are made when they are asked for, and not kept."""

    def __init__(
        self,
        count: int,
        sizes: Sizes,
        *,
        seed: int,
        kind: PromptKind,
        tenants: Sequence[Tenant] = ALONE,
        salt: int = 0,
    ) -> None:
        self._count = count
        self._sizes = sizes
        self._seed = seed
        self._salt = salt
        self._kind = kind
        self._tenants = tuple(tenants)
        self._shares = [tenant.share for tenant in self._tenants]

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Session: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Session]: ...
    def __getitem__(self, index: int | slice) -> Session | Sequence[Session]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(self._count))]
        if not 0 <= index < self._count:
            raise IndexError(index)
        sizes = random.Random(f"{self._seed} {index}")  # noqa: S311  so that it can be repeated
        [tenant] = sizes.choices(self._tenants, self._shares)
        prompt_tokens, output_tokens = self._sizes.draw(sizes)
        text = random.Random(f"{self._salt} {self._seed} {index}")  # noqa: S311  so that it can be repeated
        session = make_session(text, prompt_tokens, output_tokens, self._kind)
        return replace(session, tenant=tenant.name, key=tenant.key)


def drawn(
    model: str,
    count: int,
    sizes: Sizes,
    *,
    seed: int,
    kind: PromptKind = PromptKind.TOKEN_IDS,
    tenants: Sequence[Tenant] = ALONE,
    salt: int = 0,
    tells_lengths: bool = True,
) -> Workload:
    """`count` sessions, at most SESSIONS_MAX, of these sizes and tenants."""
    sessions = DrawnSessions(count, sizes, seed=seed, kind=kind, tenants=tenants, salt=salt)
    return Workload(model, sessions, tells_lengths)


def fresh_salt() -> int:
    """One that no earlier run had."""
    return time.time_ns()


def poisson(rate: float, seed: int) -> Iterator[float]:
    """Arrival times of requests that know nothing of each other, `rate` a second, from 0 on. Endless."""
    source = random.Random(seed)  # noqa: S311  so that it can be repeated
    return itertools.accumulate(source.expovariate(rate) for _ in itertools.count())
