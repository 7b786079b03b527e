"""A load client for any OpenAI-compatible URL, and the report of what it saw.

`offer` sends a `Workload` and returns a `StreamRecord` for each session; `EngineWatch` looks at the engines
meanwhile; `report` computes the numbers from both.
"""

from __future__ import annotations

from kvgate.load.client import LoadRun, Patience, offer
from kvgate.load.heartbeat import Stall
from kvgate.load.records import StreamEnd, StreamRecord
from kvgate.load.report import EngineReport, Report, report
from kvgate.load.watch import EngineSample, EngineWatch
from kvgate.load.workload import PromptKind, Session, Workload, mixed, uniform

__all__ = [
    "EngineReport",
    "EngineSample",
    "EngineWatch",
    "LoadRun",
    "Patience",
    "PromptKind",
    "Report",
    "Session",
    "Stall",
    "StreamEnd",
    "StreamRecord",
    "Workload",
    "mixed",
    "offer",
    "report",
    "uniform",
]
