"""How fast a pool grants, to each tenant and in all, and how large a tenant's requests are on average.

Numbers for answers and for the order in a queue, from what this process saw; the other ones that share the ledger
see about the same. Of tenants those seen last are remembered, `TENANTS_MAX` of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from kvgate_policies.overload import GrantRate

TENANTS_MAX = 1024
"""More than have requests within the time constants below; each takes a hundred bytes."""
MEAN_WEIGHT = 1 / 64
"""Of the newest request in a tenant's mean, once there were that many: the mean of some hundred."""

Value = TypeVar("Value")


class Recent(Generic[Value]):
    """A value for each of the tenants seen last."""

    def __init__(self, start: Value) -> None:
        self._start = start
        self._values: dict[str, Value] = {}

    def __getitem__(self, tenant: str) -> Value:
        return self._values.get(tenant, self._start)

    def __setitem__(self, tenant: str, value: Value) -> None:
        self._values.pop(tenant, None)
        self._values[tenant] = value
        if len(self._values) > TENANTS_MAX:
            del self._values[next(iter(self._values))]


@dataclass(frozen=True, slots=True)
class Mean:
    """An exponentially weighted mean, the plain one while there are few values."""

    value: float = 0.0
    seen: int = 0

    def observe(self, value: float) -> Mean:
        seen = self.seen + 1
        return Mean(self.value + (value - self.value) * max(1 / seen, MEAN_WEIGHT), seen)


class Pace:
    """What this process knows of the pace of its pool."""

    def __init__(self) -> None:
        self._pool = GrantRate()
        self._grants = Recent(GrantRate())
        self._work = Recent(Mean())

    def granted(self, tenant: str, now_s: float) -> None:
        self._pool = self._pool.observe(now_s)
        self._grants[tenant] = self._grants[tenant].observe(now_s)

    def grants_per_s(self, tenant: str, now_s: float) -> float:
        """To the tenant; to all of them, where it had none yet."""
        return self._grants[tenant].per_s(now_s) or self._pool.per_s(now_s)

    def asked(self, tenant: str, work: int) -> float:
        """Count a request in; the mean work of the tenant's requests, this one included."""
        mean = self._work[tenant] = self._work[tenant].observe(work)
        return mean.value
