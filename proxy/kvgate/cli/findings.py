"""What `kvgate check` found, as a table for people and as JSON. Pure but for the printing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TextIO

from rich.console import Console
from rich.table import Table

from kvgate_policies.kv_cost import price

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvgate.engines.status import BackendReport, EngineStatus
    from kvgate_policies.types import EngineLimits


WIDTH_WITHOUT_TERMINAL = 200
"""So that a row stays a line for whoever reads it from a pipe."""


@dataclass(frozen=True, slots=True)
class Findings:
    backends: tuple[BackendReport, ...]
    settings_warnings: tuple[str, ...] = ()
    ledger: str = ""
    """Which Redis a shared ledger is on; empty for one in the process's memory."""
    ledger_error: str = ""
    pools: Mapping[str, str] = field(default_factory=dict[str, str])
    """Pool of each backend's URL, where there are several pools."""
    reservations: str = ""
    """What requests reserve, and for whom it differs; in the words of the start."""
    state_error: str = ""
    """Why nothing can be kept in the state directory; empty if it can, or if none was given."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """Those of the settings, and of what the pools serve beside each other."""
        owners: dict[str, dict[str, None]] = {}
        for backend in self.backends if self.pools else ():
            for model in backend.models:
                owners.setdefault(model, {})[self.pools[backend.url]] = None
        twice = {model: tuple(pools) for model, pools in owners.items() if len(pools) > 1}
        return (
            *self.settings_warnings,
            *(
                f"the model {name} is in the pools {', '.join(of)}: the first has it"
                for name, of in twice.items()
            ),
        )

    @property
    def ok(self) -> bool:
        """Every backend is of use, and so are the ledger and the state directory."""
        return not self.errors and all(not backend.errors for backend in self.backends)

    @property
    def errors(self) -> tuple[str, ...]:
        """Those that are of no backend."""
        return tuple(error for error in (self.ledger_error, self.state_error) if error)


def full_sessions(limits: EngineLimits) -> int:
    """How many sequences of the whole window an engine runs at once without preemption."""
    return min(limits.seqs, limits.blocks // _full_blocks(limits))


def warnings_of_backend(backend: BackendReport) -> tuple[str, ...]:
    """Those of discovery, and one for an engine that is smaller than the window."""
    small = [e.limits for e in backend.engines if e.limits is not None and not full_sessions(e.limits)]
    return (
        *backend.warnings,
        *(
            f"{limits.engine_id}: a request of the whole window needs {_full_blocks(limits):,} KV blocks, "
            f"there are {limits.blocks:,}: where peaks are reserved such requests are refused"
            for limits in small
        ),
    )


def _full_blocks(limits: EngineLimits) -> int:
    return price(limits.shape, [1], max(limits.shape.max_model_len - 1, 1), 1).blocks


def findings_json(findings: Findings) -> dict[str, object]:
    return {
        "ok": findings.ok,
        "backends": [_backend_json(backend, findings.pools) for backend in findings.backends],
        "reservation": findings.reservations,
        "ledger": {"shared_over": findings.ledger or None, "error": findings.ledger_error or None},
        "state_dir": {"error": findings.state_error or None},
        "warnings": list(findings.warnings),
    }


def _backend_json(backend: BackendReport, pools: Mapping[str, str]) -> dict[str, object]:
    return {
        "url": backend.url,
        **({"pool": pools[backend.url]} if pools else {}),
        "ok": not backend.errors,
        "models": list(backend.models),
        "engines": [_engine_json(engine) for engine in backend.engines],
        "sources": dict(backend.sources),
        "warnings": list(warnings_of_backend(backend)),
        "errors": list(backend.errors),
    }


def _engine_json(engine: EngineStatus) -> dict[str, object]:
    base: dict[str, object] = {"engine_id": engine.id, "state": str(engine.state)}
    if engine.limits is None:
        return base
    limits = engine.limits
    return base | {
        "blocks": limits.blocks,
        "block_size": limits.shape.block_size,
        "max_model_len": limits.shape.max_model_len,
        "prefix_caching": limits.shape.prefix_caching,
        "max_num_seqs": limits.seqs,
        "full_sessions": full_sessions(limits),
    }


def print_findings(findings: Findings, file: TextIO) -> None:
    """A table of the engines, then where the numbers come from, then what is doubtful or wrong."""
    width = None if file.isatty() else WIDTH_WITHOUT_TERMINAL
    console = Console(file=file, highlight=False, soft_wrap=True, width=width)
    console.print(_table(findings))
    for backend in findings.backends:
        of_pool = f" (pool {findings.pools[backend.url]})" if findings.pools else ""
        console.print(f"\n{backend.url}{of_pool}", style="bold", markup=False)
        if backend.models:
            console.print(f"  serves {', '.join(backend.models)}", markup=False)
        for name, source in backend.sources.items():
            console.print(f"  {name}: {source}", markup=False)
        _say(console, warnings_of_backend(backend), backend.errors)
    console.print()
    if findings.reservations:
        console.print(f"reservation: {findings.reservations}", markup=False)
    if findings.ledger:
        console.print(f"ledger: shared over {findings.ledger}", markup=False)
    _say(console, findings.warnings, findings.errors)
    console.print(_verdict(findings), style="green" if findings.ok else "red", markup=False)


def _say(console: Console, warnings: tuple[str, ...], errors: tuple[str, ...]) -> None:
    for text in warnings:
        console.print(f"  warning: {text}", style="yellow", markup=False)
    for text in errors:
        console.print(f"  error: {text}", style="red", markup=False)


def _table(findings: Findings) -> Table:
    table = Table(title=None, box=None, pad_edge=False)
    table.add_column("engine", overflow="fold")
    if findings.pools:
        table.add_column("pool", overflow="fold")
    for heading in ("state", "KV blocks", "block size", "window", "max seqs", "full sessions"):
        table.add_column(heading, justify="left" if heading == "state" else "right")
    for backend in findings.backends:
        for engine in backend.engines:
            of_pool = (findings.pools[backend.url],) if findings.pools else ()
            table.add_row(engine.id, *of_pool, str(engine.state), *_numbers(engine.limits))
    return table


def _numbers(limits: EngineLimits | None) -> tuple[str, ...]:
    if limits is None:
        return ("–",) * 5
    shape = limits.shape
    numbers = (limits.blocks, shape.block_size, shape.max_model_len, limits.seqs, full_sessions(limits))
    return tuple(f"{number:,}" for number in numbers)


def _verdict(findings: Findings) -> str:
    of_use = [backend for backend in findings.backends if not backend.errors]
    limits = [e.limits for backend in of_use for e in backend.engines if e.limits is not None]
    total = sum(full_sessions(one) for one in limits)
    if findings.ok:
        return f"OK: {total:,} sessions of the whole window fit at once; shorter ones more."
    if len(of_use) == len(findings.backends):
        return f"The {'ledger' if findings.ledger_error else 'state directory'} cannot be used."
    return f"{len(findings.backends) - len(of_use)} of {len(findings.backends)} backends cannot be used."
