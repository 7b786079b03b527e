"""The pools that this kvgate serves, and which of them a model name means.

A model is a pool's own name, one of its aliases, or a name that its engines serve, adapters included. What the
operator wrote comes before what an engine says, and an exact name before a pattern (`qwen-*`), so that nobody
who loads an adapter can take another pool's traffic. Among equals the first pool of the file has it.

With a single pool that has no aliases the names are the engines' own, and nothing is ever rewritten.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kvgate.config.patterns import is_pattern, matches

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kvgate.admission.line import Admission
    from kvgate.admission.passing import Passing
    from kvgate.config.settings import PoolSpec
    from kvgate.engines.pool import EnginePool
    from kvgate.forecasting import Forecaster
    from kvgate.ledger.base import Ledger
    from kvgate.telemetry.metrics import Telemetry


@dataclass(frozen=True, slots=True)
class PoolLine:
    """One pool with everything that serves it."""

    spec: PoolSpec
    admission: Admission
    passing: Passing
    telemetry: Telemetry
    engine_pool: EnginePool
    ledger: Ledger
    forecaster: Forecaster
    named: bool = False
    """Clients may ask for it by its own name and aliases."""

    @property
    def name(self) -> str:
        return self.spec.name

    def declared(self) -> tuple[str, ...]:
        """Its own name and aliases without patterns; () for a single pool without aliases."""
        return tuple(name for name in self._names() if not is_pattern(name))

    def patterns(self) -> tuple[str, ...]:
        return tuple(name for name in self._names() if is_pattern(name))

    def served_name(self, model: str | None) -> str | None:
        """What to write into the body in place of `model`; None when the body stays as it is.

        That is the engines' base model, for a name that is the operator's and no engine's.
        """
        if model is None or not self.named or self.engine_pool.knows(model):
            return None
        mine = any(matches(name, model) for name in self._names())
        return self.engine_pool.base_name() if mine else None

    def _names(self) -> tuple[str, ...]:
        return (self.spec.name, *self.spec.aliases) if self.named else ()


class Pools:
    """All pools, in the order of the policy file; never empty."""

    def __init__(self, lines: Sequence[PoolLine], everywhere: Passing) -> None:
        """`everywhere` relays to the engines of all pools, one after the other."""
        self.everywhere = everywhere
        """For what names no model and only one engine can know: a stored response."""
        self._lines: tuple[PoolLine, ...] = ()
        self._declared: Mapping[str, PoolLine] = {}
        self._patterns: tuple[tuple[str, PoolLine], ...] = ()
        self._set(lines)

    @property
    def lines(self) -> tuple[PoolLine, ...]:
        return self._lines

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(line.spec.name for line in self._lines)

    def of_model(self, model: str | None) -> PoolLine | None:
        """The pool that a request with this model belongs to.

        None when there are several and the name means none of them, or there is none. A single pool gets every
        request: whether it serves the name is then for its own line to say, which knows why an engine may not.
        """
        if len(self._lines) == 1:
            return self._lines[0]
        if model is None:
            return None
        declared = self._declared.get(model)
        if declared is not None:
            return declared
        for line in self._lines:
            if line.engine_pool.knows(model):
                return line
        return next((line for pattern, line in self._patterns if matches(pattern, model)), None)

    def models(self) -> list[dict[str, Any]]:
        """One card for each name that can be asked for: those of the engines as they print them, and one for each
        name of the operator's, whose `root` is the served name behind it.
        """
        cards: dict[str, dict[str, Any]] = {}
        for line in self._lines:
            for card in line.engine_pool.models():
                cards.setdefault(card["id"], card)
        for line in self._lines:
            base = cards.get(line.engine_pool.base_name() or "")
            if base is not None:
                for name in line.declared():
                    cards.setdefault(name, {**base, "id": name, "root": base["id"], "parent": None})
        return list(cards.values())

    def twice(self) -> dict[str, tuple[str, ...]]:
        """Names that the engines of several pools serve, or that one serves and another one has by the operator's
        word, each with the pools; the first of them gets the requests.
        """
        owners: dict[str, list[str]] = {}
        for line in self._lines:
            for name in line.declared():
                owners.setdefault(name, []).append(line.name)
        for line in self._lines:
            for name in line.engine_pool.model_names():
                if line.name not in owners.setdefault(name, []):
                    owners[name].append(line.name)
        return {name: tuple(pools) for name, pools in owners.items() if len(pools) > 1}

    def rename(self, specs: Iterable[PoolSpec]) -> None:
        """Take over the aliases of a changed file; everything else of a pool stays as it is."""
        aliases = {spec.name: spec.aliases for spec in specs}
        self._set([_with_aliases(line, aliases.get(line.name, line.spec.aliases)) for line in self._lines])

    def _set(self, lines: Sequence[PoolLine]) -> None:
        several = len(lines) > 1
        self._lines = tuple(replace(line, named=several or bool(line.spec.aliases)) for line in lines)
        declared: dict[str, PoolLine] = {}
        for line in self._lines:
            for name in line.declared():
                declared.setdefault(name, line)
        self._declared = declared
        self._patterns = tuple((pattern, line) for line in self._lines for pattern in line.patterns())


def _with_aliases(line: PoolLine, aliases: tuple[str, ...]) -> PoolLine:
    return replace(line, spec=line.spec.model_copy(update={"aliases": aliases}))
