"""Models with windows: what only reading a prompt takes is reserved until the first token, and not a token longer."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from kvgate.admission.holding import Holding
from kvgate.admission.pricing import Priced, blocks_left, price_counted, reprice
from kvgate.ledger.base import Ask, Grant
from kvgate.ledger.memory import MemoryLedger
from kvgate_policies.kv_groups import KVGroup
from kvgate_policies.model_shape import Kind
from kvgate_policies.types import (
    Endpoint,
    EngineLimits,
    EngineShape,
    InferenceRequest,
    KVCost,
    Outcome,
    PromptSize,
    TenantPolicy,
    TokenCount,
)
from support.virtual_loop import LoopClock, run_virtual
from unit.admission.test_line import DONE, Client, House, soon, token, usage

WINDOWED = EngineShape(
    16,
    4096,
    groups=(KVGroup(), KVGroup(Kind.SLIDING, window=128, count=2)),
    in_flight_tokens=4096,
)
READING = 3 * 63
"""Blocks of a prompt of 1,000 tokens and the two that follow at once."""
GENERATING = 66 + 2 * 10
"""Of 1,000 + 50 − 1 slots: full attention, and two windows with a block at each end."""


def request(endpoint: Endpoint = Endpoint.COMPLETIONS, n: int = 1) -> InferenceRequest:
    return InferenceRequest(
        endpoint, "m", stream=True, prompts=(PromptSize(utf8_bytes=1),), max_tokens=50, max_tokens_field="max_tokens", n=n
    )  # fmt: skip


def priced(asked: InferenceRequest, *tokens: int, shape: EngineShape = WINDOWED) -> Priced:
    found = price_counted(asked, TokenCount(tokens, exact=True), frozenset({shape}), TenantPolicy())
    assert isinstance(found, Priced)
    return found


def test_what_is_left_after_the_first_token() -> None:
    one = priced(request(), 1000)
    assert one.costs[WINDOWED].blocks == READING
    assert blocks_left(request(), one, WINDOWED) == GENERATING


@pytest.mark.parametrize(
    ("asked", "tokens"),
    [(request(n=2), (1000,)), (request(), (1000, 10))],
    ids=["two sequences", "two prompts"],
)
def test_of_several_sequences_all_is_left(asked: InferenceRequest, tokens: tuple[int, ...]) -> None:
    several = priced(asked, *tokens)
    assert blocks_left(asked, several, WINDOWED) == several.costs[WINDOWED].blocks


def test_pooling_and_plain_models_have_no_less_afterwards() -> None:
    plain = replace(WINDOWED, groups=())
    assert blocks_left(request(), priced(request(), 1000, shape=plain), plain) is None
    pooled = request(Endpoint.POOLING)
    assert blocks_left(pooled, priced(pooled, 1000), WINDOWED) is None


def test_a_longer_prompt_is_known_by_a_token_so_reading_is_not_charged_again() -> None:
    cost = reprice(request(), priced(request(), 1000), 2000, WINDOWED)
    assert cost is not None
    assert cost.blocks == 129 + 2 * 10


def test_the_holding_gives_back_what_is_not_left_and_never_takes_more() -> None:
    async def main() -> None:
        ledger = MemoryLedger(LoopClock())
        await ledger.observe(EngineLimits("e", WINDOWED, blocks=100, seqs=8, prefill_tokens=1000))
        ticket = await ledger.reserve(Ask("r", "t", {WINDOWED: KVCost(10, 1, 100)}, 10))
        grant = await ticket.granted()  # type: ignore[union-attr]
        assert isinstance(grant, Grant)

        def reserved() -> KVCost:
            return ledger.view().engines[0].reserved

        async with Holding(ledger, grant, 0.3) as held:
            await held.first_token(6)
            assert reserved() == KVCost(6, 1, 0)
            await held.first_token(20)
            assert reserved() == KVCost(6, 1, 0)
            await held.done()
            await held.first_token(3)
            assert reserved() == KVCost(0, 0, 0)

    run_virtual(main())


def windowed_house(*script: Any, blocks: int) -> House:
    house = House(*script, blocks=blocks)
    house.engines.shapes = lambda: frozenset({WINDOWED})  # type: ignore[method-assign]
    return house


async def opened(house: House) -> None:
    await house.ledger.observe(EngineLimits("http://e:1", WINDOWED, house.blocks, 64, 100_000))
    await house.ledger.set_tenants({})


def reserved(house: House) -> int:
    return house.ledger.view().engines[0].reserved.blocks


def test_the_next_one_starts_at_the_first_token_of_the_one_before() -> None:
    """Room for one that reads and one that generates, not for two that read."""
    answer = [5.0, token(), 20.0, token(finish="length"), usage(1000, 50), DONE]

    async def main() -> None:
        house = windowed_house(answer, blocks=READING + GENERATING)
        await opened(house)
        first = asyncio.create_task(house.serve("first", prompt=1000))
        await soon()
        second = asyncio.create_task(house.serve("second", prompt=1000))
        await soon()
        assert (reserved(house), house.seen) == (READING, [b"first"])
        await asyncio.sleep(6)
        assert (reserved(house), house.seen) == (GENERATING + READING, [b"first", b"second"])
        ended = await asyncio.gather(first, second)
        assert [one.outcome for one in ended] == [Outcome.SERVED] * 2
        assert reserved(house) == 0

    run_virtual(main())


def test_a_stream_that_shows_no_token_keeps_all() -> None:
    """Bytes that nobody can read do not say that the prompt was read."""
    noise = b"x" * (1024 * 1024 + 1)

    async def main() -> None:
        house = windowed_house([noise, 5.0, DONE], blocks=1000)
        await opened(house)
        client = Client()
        task = asyncio.create_task(house.serve(prompt=1000, client=client))
        await soon()
        assert client.started
        assert house.ledger.view().engines[0].reserved == KVCost(READING, 1, 0)
        await task
        assert reserved(house) == 0

    run_virtual(main())
