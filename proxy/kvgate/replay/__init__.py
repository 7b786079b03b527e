"""`kvgate replay`: the same traffic under other policies, in virtual time.

A tool beside the line. Requests of a log, of a public trace or of made-up traffic go through the pricing, the tenancy
and the ledger that serve over HTTP, to engines that decide as vLLM's scheduler does. No request is sent anywhere, no
clock is read: the same input gives the same answer. A day takes about a minute.
"""

from __future__ import annotations

from kvgate.replay.plan import Hardware, Plan, make_plans
from kvgate.replay.run import replay
from kvgate.replay.score import Replayed, Score, replayed_json
from kvgate.replay.workload import Choice, Workload, open_workload

__all__ = [
    "Choice",
    "Hardware",
    "Plan",
    "Replayed",
    "Score",
    "Workload",
    "make_plans",
    "open_workload",
    "replay",
    "replayed_json",
]
