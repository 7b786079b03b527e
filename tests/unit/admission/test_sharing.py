"""Requests that begin alike, on a real ledger, in front of a model of the engine: never less is reserved than it holds."""

from __future__ import annotations

import json
import random
from array import array
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvgate.admission.holding import Holding
from kvgate.admission.sharing import Sharing
from kvgate.ledger.base import Ask, Grant, Ticket
from kvgate.ledger.memory import MemoryLedger
from kvgate_policies.engine_model import EngineModel, SimRequest
from kvgate_policies.forecast_request import Outlook, request_occupancy
from kvgate_policies.forecast_survival import never_ends
from kvgate_policies.kv_cost import price
from kvgate_policies.occupancy import SCALE
from kvgate_policies.types import (
    ZERO_COST,
    Endpoint,
    EngineLimits,
    EngineShape,
    InferenceRequest,
    KVCost,
    PromptSize,
    TokenCount,
)
from support.virtual_loop import LoopClock, run_virtual

BLOCK, WINDOW = 4, 400
SHAPE = EngineShape(BLOCK, WINDOW, prefix_caching=True)
ENGINE = "http://e:1"


def request(tokens: int | None, endpoint: Endpoint = Endpoint.COMPLETIONS, **fields: Any) -> InferenceRequest:
    given_fields: dict[str, Any] = {
        "model": "m", "stream": True, "prompts": (PromptSize(tokens=tokens),), "max_tokens": 10,
        "max_tokens_field": "max_tokens", **fields,
    }  # fmt: skip
    return InferenceRequest(endpoint, **given_fields)


def grant(shape: EngineShape = SHAPE) -> Grant:
    return Grant("r", ENGINE, shape, KVCost(10, 1, 40), 0)


def body(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


# Which requests take part.

IDS = list(range(1, 42))
SHARING = Sharing(on=True, salt=b"salt")
ASKED = request(len(IDS))


def keys(
    asked: InferenceRequest, sent: bytes, sharing: Sharing = SHARING, ids: bytes | None = None
) -> tuple[int, ...]:
    tokens = tuple(41 if prompt.tokens is None else prompt.tokens for prompt in asked.prompts)
    beginning = sharing.beginning(asked, sent, TokenCount(tokens, exact=True, ids=ids), [SHAPE])
    share = sharing.share_of(beginning, grant())
    return () if share is None else tuple(link.key for link in share.chain)


def test_token_ids_are_known_by_their_blocks_wherever_they_stand() -> None:
    plain = keys(ASKED, body(prompt=IDS))
    assert len(plain) == 10
    assert plain == keys(ASKED, body(prompt=[IDS], echo=False, prompt_logprobs=None, temperature=1))
    assert plain == keys(
        request(41, Endpoint.GENERATE), body(token_ids=IDS, sampling_params={"max_tokens": 3})
    )
    assert plain[:9] == keys(request(38), body(prompt=IDS[:38]))
    assert plain != keys(replace(ASKED, model="adapter"), body(prompt=IDS))
    assert plain != keys(ASKED, body(prompt=IDS, cache_salt="s"))


def test_texts_are_known_by_the_ids_that_a_tokenizer_found() -> None:
    ids = array("I", IDS).tobytes()
    for asked, sent in (
        (request(None), body(prompt="text")),
        (request(None, Endpoint.CHAT), body(messages=[{"role": "user", "content": "text"}])),
    ):
        assert keys(asked, sent, ids=ids) == keys(ASKED, body(prompt=IDS))
        assert keys(asked, sent) == ()
        assert keys(asked, sent, ids=ids[:-4]) == ()
    assert keys(request(None), body(prompt="text", prompt_logprobs=1), ids=ids) == ()


@pytest.mark.parametrize(
    ("asked", "sent"),
    [
        (ASKED, body(prompt=IDS, prompt_logprobs=1)),
        (ASKED, body(prompt=IDS, prompt_logprobs=0)),
        (ASKED, body(prompt=IDS, echo=True)),
        (ASKED, body(prompt=IDS, kv_transfer_params={})),
        (ASKED, body(prompt=IDS, use_beam_search=True)),
        (request(41, Endpoint.GENERATE), body(token_ids=IDS, sampling_params={"prompt_logprobs": 1})),
        (request(41, Endpoint.GENERATE), body(token_ids=IDS, features={})),
        (request(41, n=2), body(prompt=IDS)),
        (request(41, prompt_tokens_max=20), body(prompt=IDS)),
        (request(41, prompts=(PromptSize(tokens=41), PromptSize(tokens=41))), body(prompt=[IDS, IDS])),
        (request(41, Endpoint.POOLING), body(prompt=IDS)),
        (request(None), body(prompt="text")),
        (request(41), body(prompt="text")),
        (request(41), body(prompt=[IDS, IDS])),
        (request(40), body(prompt=IDS)),
        (request(41), body(prompt=[-1, *IDS[1:]])),
        (request(41), body(prompt=[2**40, *IDS[1:]])),
        (request(41), b"no JSON"),
        (request(41), b"{}"),
        (request(4), body(prompt=IDS[:4])),
    ],
)  # fmt: skip
def test_what_is_not_known_for_certain_takes_no_part(asked: InferenceRequest, sent: bytes) -> None:
    assert keys(asked, sent) == ()


def test_off_and_engines_without_a_cache_of_prefixes() -> None:
    assert keys(ASKED, body(prompt=IDS), Sharing(on=False)) == ()
    blind, count = replace(SHAPE, prefix_caching=False), TokenCount((41,), exact=True)
    assert SHARING.beginning(ASKED, body(prompt=IDS), count, [blind]) == {}
    known = SHARING.beginning(ASKED, body(prompt=IDS), count, [SHAPE, blind, replace(SHAPE, block_size=8)])
    assert {size: len(chain) for size, chain in known.items()} == {4: 10, 8: 5}
    assert SHARING.share_of(known, grant(blind)) is None
    assert SHARING.share_of(known, grant(replace(SHAPE, block_size=16))) is None


def test_what_would_be_lent_is_the_least_of_all_engines() -> None:
    sharing = Sharing(on=True)
    beginning = sharing.beginning(ASKED, body(prompt=IDS), TokenCount((41,), exact=True), [SHAPE])
    for engine_id, blocks in (("a", 5), ("b", 10), ("c", 10)):
        begins = {BLOCK: beginning[BLOCK][:blocks]}
        share = sharing.share_of(begins, replace(grant(), engine_id=engine_id))
        assert share is not None
        share.joins(Holding(MemoryLedger(LoopClock()), grant(), 0.3))
        if engine_id != "c":
            share.shows()
    assert sharing.lent_blocks(beginning, SHAPE, ["a", "b"]) == 5
    assert sharing.lent_blocks(beginning, SHAPE, ["b"]) == 10
    for others in (["c"], ["a", "b", "unknown"], []):
        assert sharing.lent_blocks(beginning, SHAPE, others) == 0
    assert sharing.lent_blocks(beginning, replace(SHAPE, prefix_caching=False), ["b"]) == 0
    assert sharing.lent_blocks({}, SHAPE, ["b"]) == 0


# A house with an engine that tells the truth.


@dataclass(eq=False)
class Running:
    held: Holding
    outlook: Outlook


class House:
    """Requests are granted by a ledger, read and answered by a model of vLLM's scheduler, and end by every door."""

    def __init__(self, *, blocks: int, forecast: bool = False, on: bool = True, budget: int = 2048) -> None:
        self.ledger = MemoryLedger(LoopClock())
        self.sharing = Sharing(on=on)
        self.forecast, self.blocks = forecast, blocks
        self.engine = EngineModel(
            num_gpu_blocks=blocks + 1, block_size=BLOCK, max_model_len=WINDOW, max_num_seqs=256,
            max_num_batched_tokens=budget,
        )  # fmt: skip
        self.waiting: dict[str, tuple[Ticket, tuple[int, ...], int, bool]] = {}
        self.running: dict[str, Running] = {}
        self.streams: set[str] = set()
        self.most = self.asked = 0

    async def open(self) -> None:
        await self.ledger.observe(EngineLimits(ENGINE, SHAPE, self.blocks, 256, 10**6))

    def cost(self, outlook: Outlook) -> KVCost:
        peak = price(SHAPE, outlook.prompts, outlook.max_tokens, 1)
        if not self.forecast:
            return peak
        return replace(peak, expected=request_occupancy(never_ends(), outlook, SHAPE))

    async def ask(self, ids: tuple[int, ...], output: int, *, stream: bool = True) -> None:
        self.asked += 1
        name = f"r{self.asked}"
        outlook = Outlook((len(ids),), output, ignore_eos=True)
        ticket = await self.ledger.reserve(Ask(name, "t", {SHAPE: self.cost(outlook)}, 1000))
        assert not isinstance(ticket, str)
        self.waiting[name] = (ticket, ids, output, stream)  # type: ignore[assignment]
        await self.start()

    async def start(self) -> None:
        """All that were granted."""
        granted = [name for name, (ticket, *_) in self.waiting.items() if ticket.decision is not None]
        for name in granted:
            ticket, ids, output, stream = self.waiting.pop(name)
            decision = ticket.decision
            assert isinstance(decision, Grant)
            held = Holding(self.ledger, decision, 0.3)
            await held.__aenter__()
            self.running[name] = Running(held, Outlook((len(ids),), output, ignore_eos=True))
            count = TokenCount((len(ids),), exact=True)
            beginning = self.sharing.beginning(request(len(ids)), body(prompt=ids), count, [SHAPE])
            await held.shares(self.sharing.share_of(beginning, decision))
            held.sent()
            self.engine.add(SimRequest(name, len(ids), output, token_ids=ids))
            if stream:
                self.streams.add(name)
        self.check()
        if granted:
            await self.start()

    async def step(self) -> None:
        result = self.engine.step()
        assert result.preempted == ()
        self.most = max(self.most, result.running)
        self.check(result.kv_used)
        finished = {name for name, _ in result.finished}
        for name in result.tokens:
            run = self.running[name]
            if name in finished:
                await self.running.pop(name).held.done()
            elif name in self.streams and self.engine.generated(name) == 1:
                await run.held.first_token(shown=True)
            self.check()
        await self.refresh()
        await self.start()

    async def refresh(self) -> None:
        if not self.forecast:
            return
        for name, run in self.running.items():
            generated = self.engine.generated(name)
            if generated and generated % 8 == 0:
                run.held.expect(
                    request_occupancy(never_ends(), run.outlook, SHAPE, generated, run.held.blocks_apart)
                )
        await self.ledger.renew_many({name: run.held.cost for name, run in self.running.items()})

    async def abort(self, name: str) -> None:
        self.engine.abort(name)
        held = self.running.pop(name).held
        held.refused()
        await held.__aexit__(None, None, None)
        await self.start()

    def check(self, used: int | None = None) -> None:
        [use] = self.ledger.view().engines
        used = self.engine.kv_used if used is None else used
        assert use.reserved.occupancy.means[0] >= used * SCALE
        if not self.forecast:
            assert use.reserved.blocks <= self.blocks

    async def finish(self) -> None:
        steps = 0
        while self.running or self.waiting:
            await self.step()
            steps += 1
            assert steps < 10_000
        [use] = self.ledger.view().engines
        assert use.reserved == ZERO_COST
        assert self.engine.kv_used == 0
        assert self.sharing._at == {}


def prompts(rng: random.Random) -> tuple[int, ...]:
    """Of a few blocks, so that many begin alike, to many depths."""
    blocks = [(rng.randrange(2),) * BLOCK for _ in range(rng.randint(0, 8))]
    tail = tuple(rng.randrange(1000) for _ in range(rng.randint(1, 10)))
    return (
        *(token for block in blocks for token in block),
        *tail[: rng.choice([0, len(tail)]) if blocks else None],
    )


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), forecast=st.booleans(), budget=st.sampled_from([8, 30, 2048]))
def test_never_less_is_reserved_than_the_engine_holds(seed: int, forecast: bool, budget: int) -> None:
    async def main() -> None:
        rng = random.Random(seed)
        house = House(blocks=110, forecast=forecast, budget=budget)
        await house.open()
        for _ in range(120):
            what = rng.random()
            if what < 0.35:
                await house.ask(prompts(rng), rng.randint(1, 60), stream=rng.random() < 0.8)
            elif what < 0.40 and house.running:
                await house.abort(rng.choice(list(house.running)))
            else:
                await house.step()
        await house.finish()

    run_virtual(main())


def alike(count: int) -> list[tuple[int, ...]]:
    """20 of 24 tokens are the same: 5 of 6 blocks, and 4 more are generated into."""
    rng = random.Random(1)
    beginning = tuple(rng.randrange(1000) for _ in range(20))
    return [(*beginning, *(rng.randrange(1000) for _ in range(4))) for _ in range(count)]


@pytest.mark.parametrize("forecast", [False, True], ids=["guaranteed", "forecast"])
@pytest.mark.parametrize(("on", "most"), [(False, 12), (True, 22)])
def test_nearly_twice_as_many_run_where_half_of_each_is_shared(forecast: bool, on: bool, most: int) -> None:
    """Ten blocks each, of which five are shared: `5 + 5 * n` and room for a tenth at its full price in 120."""

    async def main() -> None:
        house = House(blocks=120, forecast=forecast, on=on)
        await house.open()
        for ids in alike(48):
            await house.ask(ids, 17)
        await house.finish()
        assert house.most == most if not forecast else house.most >= most

    run_virtual(main())
