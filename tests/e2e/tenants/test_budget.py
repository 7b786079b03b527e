"""A budget of tokens, spent through all replicas together: when to come back is exact, and who obeys gets through."""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
from openai import AsyncOpenAI, RateLimitError

from e2e.tenants.clients import Answered, Client
from e2e.tenants.rig import METERED, TENANTS, Deployment, key_of
from support.replicas import MODEL

PER_MINUTE = TENANTS["metered"]["rate"]["tokens_per_minute"]
TOKENS = METERED.prompt_tokens + METERED.output_tokens
BURST = PER_MINUTE // TOKENS
SPELL_S = 60 * TOKENS / PER_MINUTE
"""In which the budget refills by one request."""
TIMES = 3
HAMMERED = 40
ROUNDED_S = 0.002
"""Times are said in whole milliseconds, of two clocks."""

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]


class Due(NamedTuple):
    """When a refusal says that the same request is covered: it was said between the sending and the answer."""

    early_s: float
    late_s: float


def due(refusal: Answered) -> Due:
    assert (refusal.status, refusal.reason) == (429, "tenant_rate")
    assert refusal.retry_after_ms is not None
    return Due(*(at_s + refusal.retry_after_ms / 1000 for at_s in (refusal.sent_s, refusal.ended_s)))


async def until_s(at_s: float) -> None:
    await asyncio.sleep(at_s - time.monotonic())


async def next_refusal(client: Client) -> Answered:
    """Ask until it is refused: the budget refills while requests run."""
    while (answer := await client.ask(METERED)).served:
        pass
    return answer


async def spend(client: Client) -> None:
    """All that is there, however much a test before has left."""
    left = True
    while left:
        answers = await asyncio.gather(*(client.ask(METERED) for _ in range(BURST // 2)))
        left = all(one.served for one in answers)


async def test_a_minutes_worth_at_once_and_then_exactly_the_rate(deployed: Deployment, measured):
    """It needs a full budget: this is the first test of the file, and no other file has this tenant."""
    async with deployed.client("metered") as client:
        start_s = time.monotonic()
        burst = await asyncio.gather(*(client.ask(METERED) for _ in range(BURST)))
        assert [one.status for one in burst] == [200] * BURST
        refusal = await next_refusal(client)
        served_s = []
        for _ in range(TIMES):
            await until_s(due(refusal).early_s - SPELL_S / 2)
            early = await client.ask(METERED)
            assert not early.served, "half a spell too early"
            await until_s(due(early).late_s)
            obeyed = await client.ask(METERED)
            assert obeyed.served, "it came when it was told to"
            served_s.append(obeyed.sent_s)
            refusal = await next_refusal(client)
        passed = len([one for one in client.answers if one.served])
        covered = BURST + (time.monotonic() - start_s) / SPELL_S
    measured(
        {
            "at once": BURST,
            "obeyed, and served": TIMES,
            "spells between them": ", ".join(f"{(b - a) / SPELL_S:.2f}" for a, b in pairwise(served_s)),
            "served, and covered at most": f"{passed}, {covered:.1f}",
        }
    )
    assert passed <= covered


async def test_what_is_refused_spends_nothing_and_every_replica_says_the_same(deployed: Deployment, measured):
    async with deployed.client("metered") as client:
        await spend(client)
        refusals = [await next_refusal(client)]
        while len(refusals) < HAMMERED:
            one = await client.ask(METERED)
            if one.served:  # it was due by now
                refusals = []
            else:
                refusals.append(one)
        dues = [due(one) for one in refusals]
        begin_s, end_s = max(one.early_s for one in dues), min(one.late_s for one in dues)
        await until_s(max(begin_s, end_s) + ROUNDED_S)
        obeyed = await client.ask(METERED)
    measured({"refused": HAMMERED, "their times agree, with this to spare (ms)": (end_s - begin_s) * 1000})
    assert begin_s <= end_s + ROUNDED_S, "all named the same time"
    assert obeyed.served


async def test_the_openai_sdk_comes_back_by_itself(deployed: Deployment):
    async with deployed.client("metered") as client:
        await spend(client)
    body: dict[str, Any] = {
        "model": MODEL,
        "prompt": list(METERED.prompt),
        "max_tokens": METERED.output_tokens,
        "extra_body": {"ignore_eos": True},
    }
    url = f"{deployed.fleet.urls[0]}/v1"
    async with AsyncOpenAI(base_url=url, api_key=key_of("metered"), max_retries=0) as impatient:
        with pytest.raises(RateLimitError):
            for _ in range(BURST):
                await impatient.completions.create(**body)
        answer = await impatient.with_options(max_retries=1).completions.create(**body)
    assert answer.usage is not None
    assert answer.usage.total_tokens == TOKENS
