"""A tenant that offers ten times the capacity hardly changes what another one waits that asks for little."""

from __future__ import annotations

import os

import pytest

from e2e.tenants.noisy import FLOOD, noise, table
from e2e.tenants.rig import Deployment

LONG = os.environ.get("KVGATE_SOAK") == "1"
TURN_S, TURNS = (30.0, 4) if LONG else (4.0, 2)

pytestmark = [pytest.mark.e2e, pytest.mark.soak, pytest.mark.alone, pytest.mark.timeout(900 if LONG else 120)]


async def test_a_victim_waits_hardly_longer_beside_a_flood(deployed: Deployment, measured):
    found = await noise(deployed, TURN_S, TURNS)
    measured({"": "\n" + "\n".join(table(found))})
    alone, flooded, unfair = (found.waits[name] for name in ("full", "flooded", "unfair"))
    assert found.offered("flooded") > 0.8 * FLOOD
    assert flooded.others_served < flooded.others_sent / 2, "it was a flood"
    assert flooded.refused_share == alone.refused_share == 0
    assert found.ratio <= 2
    assert found.done("flooded") > 0.8, "nor is the pool left idle for it"
    assert flooded.within(found.bound_ms) >= 0.99
    assert unfair.within(found.bound_ms) < 0.5, "without tenants of their own the victim drowns"
