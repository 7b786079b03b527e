"""`kvgate load`, `calibrate` and `traffic` against the real vLLM."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import pytest

from kvgate.load import Bounds, CeilingSearch, Objective, Patience, PromptKind, Stop
from kvgate.load.calibration import measure, plan, room_of
from kvgate.load.calibration_report import ROUGH, print_fit
from kvgate.load.fit import Fit, fit
from kvgate.traffic import of_metrics, scrape
from vllm import server

if TYPE_CHECKING:
    from kvgate.load import Ceiling

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

STEP_S = 0.02
"""As a model in use: then it takes longer to generate than to send, and all sessions run together."""


async def _search(engine: server.Engine) -> Ceiling:
    search = CeilingSearch(
        engine.url,
        server.MODEL,
        engines=[engine.url],
        prompt_tokens=192,
        output_tokens=129,
        sessions_max=32,
        kind=PromptKind.TOKEN_IDS,
        seed=1,
        key=None,
        patience=Patience(retries_max=0),
        bounds=Bounds(400.0),
        objective=Objective(),
    )
    return await search.run(Stop(), lambda _: None)


def test_the_search_finds_the_planners_ceiling(engine: server.Engine) -> None:
    """120 usable blocks hold 12 sessions of 192 + 129 tokens; the search may be a session off."""
    with engine.paced(STEP_S):
        found = asyncio.run(_search(engine))
    assert found.planned == 12
    assert found.sessions is not None, found
    assert abs(found.sessions - found.planned) <= 1
    over = next(probe for probe in found.probes if probe.sessions == found.sessions + 1)
    held = next(probe for probe in found.probes if probe.sessions == found.sessions)
    assert held.outcome.preemptions == 0
    assert (over.outcome.preemptions or 0) + over.waited > 0
    most = found.probes[-1].outcome
    assert most.preemptions
    assert most.report is not None
    assert held.outcome.report is not None
    assert (most.report.longest_gap_max_s or 0) > 5 * (held.outcome.score.itl_p50_s or 0)


def test_a_profile_is_fitted_with_small_residuals(engine: server.Engine) -> None:
    async def measured() -> Fit:
        room = await room_of(engine.url, None)
        return fit(await measure(room, plan(room, 8), lambda: None))

    found = asyncio.run(measured())
    print_fit(found, sys.stdout)  # for whoever runs this with -s
    assert found.off_median < 2 * ROUGH, "roughly, on a machine that may be busy"
    assert found.predicted_s(found.observations[0]) > 0


def test_its_histograms_are_read(engine: server.Engine) -> None:
    found = of_metrics(scrape(engine.url), windows=[256])
    assert found.requests > 0
    assert found.prompt.mean > 0
    assert found.output.percentile(50) > 0
    assert found.concurrency.mean is not None
