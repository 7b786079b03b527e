"""What the live view shows at one moment: pure values, made from a phase and the time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvgate.load import StreamEnd, StreamRecord
from kvgate.load.report import FREEZE_GAP_S_MIN, FREEZE_STEPS, frozen_now

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvgate.demo.phase import Phase
    from kvgate.demo.plan import DemoPlan


@dataclass(frozen=True, slots=True)
class EngineFrame:
    name: str
    blocks: int
    """Usable ones."""
    used: int
    """By the engine's own gauge."""
    reserved: int | None
    """By kvgate's ledger; None where there is none."""
    running: int
    waiting: int
    preemptions: int


@dataclass(frozen=True, slots=True)
class Streams:
    """The sessions, each in one of five states."""

    waiting: int
    """No token yet."""
    streaming: int
    frozen: int
    """Begun, and silent for longer than a freeze."""
    done: int
    failed: int


@dataclass(frozen=True, slots=True)
class Frame:
    title: str
    elapsed_s: float
    engines: tuple[EngineFrame, ...]
    streams: Streams
    queued: int | None
    """Requests in kvgate's queue; None without kvgate."""


def frame_of(phase: Phase, plan: DemoPlan, now_s: float) -> Frame:
    return Frame(
        title=phase.title,
        elapsed_s=now_s - phase.started_s,
        engines=tuple(_engine(phase, plan, number, url) for number, url in enumerate(phase.engines, 1)),
        streams=streams_of(
            phase.records, plan.offered, now_s, max(FREEZE_STEPS * plan.step_s, FREEZE_GAP_S_MIN)
        ),
        queued=phase.ledger.queued if phase.ledger else None,
    )


def streams_of(records: Sequence[StreamRecord], offered: int, now_s: float, freeze_gap_s: float) -> Streams:
    """Sort the sessions; those without a record were not sent yet and count as waiting."""
    ended = [record for record in records if record.end is not None]
    begun = sum(1 for record in records if record.end is None and record.token_times_s)
    frozen = frozen_now(records, now_s, freeze_gap_s)
    failed = sum(1 for record in ended if record.end is not StreamEnd.COMPLETED)
    return Streams(
        waiting=offered - begun - len(ended),
        streaming=begun - frozen,
        frozen=frozen,
        done=len(ended) - failed,
        failed=failed,
    )


def _engine(phase: Phase, plan: DemoPlan, number: int, url: str) -> EngineFrame:
    blocks = plan.blocks - 1
    reserved = phase.ledger.reserved_blocks.get(url, 0) if phase.ledger else None
    sample = phase.watch.latest.get(url)
    if sample is None:
        return EngineFrame(f"engine {number}", blocks, 0, reserved, 0, 0, 0)
    return EngineFrame(
        name=f"engine {number}",
        blocks=blocks,
        used=round(sample.kv_use * blocks),
        reserved=reserved,
        running=sample.running,
        waiting=sample.waiting,
        preemptions=sample.preemptions,
    )
