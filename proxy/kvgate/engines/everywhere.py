"""The engines of all pools as one: for what names no model and only one engine can know."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvgate.engines.base import Target, Trouble
    from kvgate.engines.pool import EnginePool


class Everywhere:
    """Implements `engines.base.Reachable`, in the order of the pools."""

    def __init__(self, pools: Sequence[EnginePool]) -> None:
        self._pools = pools

    def any_target(self) -> Target | None:
        return next(filter(None, (pool.any_target() for pool in self._pools)), None)

    def targets(self) -> tuple[Target, ...]:
        return tuple(target for pool in self._pools for target in pool.targets())

    async def report(self, engine_id: str, trouble: Trouble) -> None:
        """To the pools that know the engine; the others have nothing to be told."""
        for pool in self._pools:
            await pool.report(engine_id, trouble)
