"""A twentieth of a day is replayed in a twentieth of the time that a day may take, with room for busy machines."""

from __future__ import annotations

import time

from kvgate.load.score import Objective
from kvgate.replay import Choice, Hardware, make_plans, open_workload
from kvgate.replay.world import World

DAY_S_MAX = 90.0
"""CPU seconds for 86,400 s at five requests a second; measured are some 60."""
BUSY = 3.0
"""CPU time counts double where two threads share a core, and more where caches are shared too."""


def test_a_twentieth_of_a_day_of_five_requests_a_second():
    made = open_workload("synthetic:mixed?rate=5&hours=1.2&daily=0%25", Choice())
    [plan] = make_plans(["guaranteed"], Hardware(engines=4))
    world = World(plan, Objective(), made.span_s)
    began_s = time.process_time()
    record = world.run(made.offered())
    took_s = time.process_time() - began_s
    assert record.total.offered > 4000 * 4
    assert record.events < 8 * record.total.offered, "comings and goings, not steps"
    assert took_s < DAY_S_MAX / 20 * BUSY
