"""Requests that begin alike go where that beginning was read before, as far as there is room."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from kvgate.admission.affinity import PrefixAffinity
from kvgate.admission.contract import Call
from kvgate.config import Settings
from kvgate.telemetry.record import RequestRecord
from kvgate_policies.types import (
    Endpoint,
    EngineLimits,
    EngineShape,
    InferenceRequest,
    Outcome,
    PriorityClass,
    PromptSize,
    TenantPolicy,
)
from support.virtual_loop import run_virtual
from unit.admission.test_line import DONE, Client, House, OneEngine, token, usage

SHAPE = EngineShape(16, 4096, prefix_caching=True)
ENGINES = ("http://a:1", "http://b:1", "http://c:1")
ANSWER = [1.0, token(), 1.0, token(finish="length"), usage(100, 10), DONE]
SYSTEM = {"role": "system", "content": "You answer briefly. " * 30}


class Engines(OneEngine):
    def __init__(self, *ids: str, shape: EngineShape = SHAPE) -> None:
        super().__init__(*ids)
        self.shape = shape

    def shapes(self) -> frozenset[EngineShape]:
        return frozenset({self.shape})


def request(endpoint: Endpoint = Endpoint.CHAT, model: str | None = "m") -> InferenceRequest:
    return InferenceRequest(
        endpoint, model, stream=True, prompts=(PromptSize(utf8_bytes=100),), max_tokens=10, max_tokens_field="max_tokens"
    )  # fmt: skip


def affinity(engines: Engines | None = None, *, on: bool = True) -> PrefixAffinity:
    return PrefixAffinity(engines or Engines(*ENGINES), on=on, salt=b"salt")


def body(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def chat(*texts: str, **fields: Any) -> bytes:
    turns = [{"role": ("user", "assistant")[place % 2], "content": text} for place, text in enumerate(texts)]
    return body(messages=[SYSTEM, *turns], **fields)


def test_a_conversation_and_an_application_are_known_by_their_beginnings() -> None:
    known, long = affinity(), "x" * 1000
    first = known.hashes(request(), chat(long, stream=True))
    assert len(first) == 2
    later = known.hashes(request(), chat(long, "y" * 3000, "z", temperature=0.5))
    other = known.hashes(request(), chat("an other question" * 100))
    assert later[-2:] == first
    assert len(later) == 3
    assert other[-1:] == first[-1:]
    assert other[0] != first[0]


@pytest.mark.parametrize(
    "changed",
    [{"tools": [{"name": "t"}]}, {"cache_salt": "s"}, {"system": "other"}, {"instructions": "other"}],
    ids=lambda changed: next(iter(changed)),
)
def test_what_a_template_puts_before_makes_another_beginning(changed: dict[str, Any]) -> None:
    known = affinity()
    assert not set(known.hashes(request(), chat("a", **changed))) & set(known.hashes(request(), chat("a")))


def test_an_adapter_has_a_cache_of_its_own() -> None:
    known = affinity()
    assert known.hashes(request(), chat("a")) != known.hashes(request(model="lora"), chat("a"))


@pytest.mark.parametrize("field", ["prompt", "input", "token_ids"])
@pytest.mark.parametrize(
    "value", ["p" * 300, list(range(300)), ["a" * 300, "b"]], ids=["text", "ids", "list"]
)
def test_every_kind_of_prompt_has_a_beginning(field: str, value: Any) -> None:
    assert affinity().hashes(request(), body(**{field: value}))


@pytest.mark.parametrize(
    ("known", "asked", "sent"),
    [
        (affinity(on=False), request(), chat("a")),
        (affinity(Engines("http://a:1")), request(), chat("a")),
        (affinity(Engines(*ENGINES, shape=replace(SHAPE, prefix_caching=False))), request(), chat("a")),
        (affinity(), request(Endpoint.POOLING), chat("a")),
        (affinity(), request(Endpoint.AUDIO), chat("a")),
        (affinity(), request(), b"--boundary\r\n"),
        (affinity(), request(), b"[1]"),
        (affinity(), request(), b"{}"),
    ],
    ids=["off", "one engine", "no cache", "pooling", "audio", "a form", "a list", "nothing"],
)
def test_nobody_is_preferred(known: PrefixAffinity, asked: InferenceRequest, sent: bytes) -> None:
    assert known.hashes(asked, sent) == ()
    assert known.prefer(()) == ()


class Sessions(House):
    """Three engines that cache prefixes; `ask` says who served."""

    def __init__(self, *script: Any, blocks: int = 1000, on: bool = True) -> None:
        super().__init__(*script, blocks=blocks)
        self.engines = Engines(*ENGINES)
        settings = Settings(backends=ENGINES, prefix_affinity=on)
        admission = self.admission
        self.admission = type(admission)(
            engines=self.engines, ledger=self.ledger, pricer=admission._pricer, upstream=admission._attempt._upstream,
            telemetry=self.telemetry, clock=self.clock, settings=settings,
        )  # fmt: skip
        admission._pricer._engines = self.engines

    async def open(self, **_: Any) -> None:
        for engine_id in ENGINES:
            await self.ledger.observe(EngineLimits(engine_id, SHAPE, self.blocks, 64, 100_000))

    async def ask(self, sent: bytes, client: Client | None = None) -> str | None:
        record = RequestRecord("r", "t")
        call = Call(
            "POST", "/v1/chat/completions", [], sent, self.clock.monotonic(), TenantPolicy("t"),
            PriorityClass.STANDARD, None, lambda _: sent,
        )  # fmt: skip
        ended = await self.admission.serve(request(), call, client or Client(), record)
        return record.engine_id if ended.outcome is Outcome.SERVED else None


def served(*script: Any, asked: list[bytes], blocks: int = 1000, on: bool = True) -> list[str | None]:
    """Who served requests that come a second after the first token of the one before."""

    async def main() -> list[str | None]:
        house = Sessions(*script, blocks=blocks, on=on)
        await house.open()
        tasks = []
        for sent in asked:
            tasks.append(asyncio.create_task(house.ask(sent)))
            await asyncio.sleep(1.5)
        return await asyncio.gather(*tasks)

    return run_virtual(main())


def test_those_that_begin_alike_go_to_one_engine_and_others_take_turns() -> None:
    alike = [chat(f"question {number}") for number in range(6)]
    assert len(set(served(ANSWER, asked=alike))) == 1
    assert len(set(served(ANSWER, asked=alike, on=False))) > 1
    different = [body(messages=[{"role": "user", "content": str(number) * 400}]) for number in range(6)]
    assert len(set(served(ANSWER, asked=different))) > 1


def test_an_engine_without_room_is_not_waited_for() -> None:
    """Each takes 7 blocks of 10, for a long while."""
    slow = [1.0, token(), 100.0, token(finish="length"), DONE]
    alike = [chat(f"question {number}") for number in range(3)]
    assert set(served(slow, asked=alike, blocks=10)) == set(ENGINES)


@pytest.mark.parametrize(
    ("answer", "learned"), [(500, 0), (400, 0), (ANSWER, 1)], ids=["500", "400", "tokens"]
)
def test_only_who_has_read_a_prompt_is_remembered(answer: Any, learned: int) -> None:
    async def main() -> int:
        house = Sessions(answer)
        await house.open()
        await house.ask(chat("a"))
        return len(house.admission._affinity._served)

    assert run_virtual(main()) == learned
