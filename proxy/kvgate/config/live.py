"""The policy in force, in a place from which everyone takes it.

`current` is one value that is replaced whole, by the one who reloads; a request takes it once and keeps what it got,
so no request sees half of a change.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvgate.config.tenants import TenantBook


@dataclass(slots=True)
class LivePolicy:
    current: TenantBook
