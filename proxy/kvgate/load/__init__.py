"""A load client for any OpenAI-compatible URL, and the report of what it saw.

`offer` sends a `Workload` and returns a `StreamRecord` for each session; `EngineWatch` looks at the engines
meanwhile; `report` computes the numbers from both. `Trial` does all of that within bounds of time, and
`CeilingSearch` repeats it with ever more sessions.
"""

from __future__ import annotations

from kvgate.load.ceiling import Ceiling, CeilingSearch, Probe
from kvgate.load.client import LoadRun, Patience, offer
from kvgate.load.heartbeat import Stall
from kvgate.load.records import StreamEnd, StreamRecord
from kvgate.load.report import EngineReport, Report, report
from kvgate.load.result import Result, result_json
from kvgate.load.score import Objective, Score, score
from kvgate.load.trial import Bounds, Outcome, Stop, Trial
from kvgate.load.watch import EngineSample, EngineWatch
from kvgate.load.workload import PromptKind, Session, Workload, mixed, uniform

__all__ = [
    "Bounds",
    "Ceiling",
    "CeilingSearch",
    "EngineReport",
    "EngineSample",
    "EngineWatch",
    "LoadRun",
    "Objective",
    "Outcome",
    "Patience",
    "Probe",
    "PromptKind",
    "Report",
    "Result",
    "Score",
    "Session",
    "Stall",
    "Stop",
    "StreamEnd",
    "StreamRecord",
    "Trial",
    "Workload",
    "mixed",
    "offer",
    "report",
    "result_json",
    "score",
    "uniform",
]
