"""A generating request from its body to its end: faults, admission, following the engine, the answer.

Whichever way it ends, its sequences leave the engine.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING
from uuid import uuid4

from kvgate.sim.dialect_messages import Message
from kvgate.sim.dialect_openai import Chat, Completion, Embedding
from kvgate.sim.dialect_responses import Response
from kvgate.sim.errors import RequestRefused, bad_request, busy, engine_dead
from kvgate.sim.faults import Fault, Faults, Strike
from kvgate.sim.fields import read_object
from kvgate.sim.generation import Kind, ServedModel, read_generation
from kvgate.sim.jobs import Fate, Job

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kvgate.sim.dialect import Dialect
    from kvgate.sim.engine import SimEngine
    from kvgate.sim.exchange import Exchange

_DIALECTS: dict[Kind, type[Dialect]] = {
    Kind.CHAT: Chat,
    Kind.COMPLETION: Completion,
    Kind.RESPONSE: Response,
    Kind.MESSAGE: Message,
    Kind.EMBEDDING: Embedding,
}
REFUSE_S = 1.0
"""How long new connections are refused when the fault names no time."""


class _End(Enum):
    DONE = auto()
    LEFT = auto()
    CUT = auto()
    STRUCK = auto()


@dataclass(slots=True)
class Generator:
    engine: SimEngine
    faults: Faults
    served: ServedModel
    refuse: Callable[[float], None]
    """Refuse new connections for so many seconds."""

    async def handle(self, exchange: Exchange, kind: Kind, raw: bytes) -> None:
        """Answer one request. Raises `RequestRefused` for what is wrong with it, before anything was sent."""
        strike = self._strike(exchange)
        if strike and await self._struck_at_once(exchange, strike):
            return
        generation = read_generation(kind, read_object(raw), exchange.headers, self.served)
        request_id = exchange.headers.get("x-request-id") or uuid4().hex[:16]
        dialect = _DIALECTS[kind](generation, request_id, int(time.time()))
        await self._generate(exchange, dialect, strike)

    def _strike(self, exchange: Exchange) -> Strike | None:
        try:
            return self.faults.take(exchange.headers)
        except ValueError as error:
            raise bad_request(str(error), "x-sim-fault") from error

    async def _struck_at_once(self, exchange: Exchange, strike: Strike) -> bool:
        if strike.fault is Fault.REFUSE:
            self.refuse(REFUSE_S if strike.amount is None else strike.amount)
        if strike.fault in {Fault.REFUSE, Fault.RESET_BEFORE}:
            await exchange.break_off()
            return True
        return False

    async def _generate(self, exchange: Exchange, dialect: Dialect, strike: Strike | None) -> None:
        fault = strike.fault if strike else None
        if fault is Fault.BUSY or (fault is Fault.BUSY_IN_STREAM and not dialect.generation.stream):
            raise self._busy()
        if fault is Fault.ERROR_500:
            raise engine_dead()
        if not self.engine.model.accepts(dialect.generation.n):
            raise self._busy()
        holds_nothing = fault in {Fault.HANG, Fault.EMPTY, Fault.BUSY_IN_STREAM}
        job = self.engine.attach() if holds_nothing else self._submit(dialect)
        if job is None:
            await self._lost_the_race(exchange, dialect)
            return
        try:
            async with exchange.on_leaving(lambda: job.end(Fate.LEFT)):
                await self._answer(exchange, dialect, job, strike)
        finally:
            self.engine.release(job)

    def _submit(self, dialect: Dialect) -> Job | None:
        generation = dialect.generation
        return self.engine.submit(generation.choices, priority=generation.priority)

    def _busy(self) -> RequestRefused:
        self.engine.stats.rejections += 1
        return busy()

    async def _lost_the_race(self, exchange: Exchange, dialect: Dialect) -> None:
        """Refused after the pre-flight check, which counts `n` but not the prompts of a list."""
        error = self._busy()
        if not dialect.generation.stream:
            raise error
        await exchange.start_stream()
        await exchange.end_stream(dialect.error_frames(error).encode())

    async def _answer(
        self,
        exchange: Exchange,
        dialect: Dialect,
        job: Job,
        strike: Strike | None,
    ) -> None:
        fault = strike.fault if strike else None
        if fault is Fault.HANG:
            await wait_for_end(exchange, job)
        elif fault is Fault.EMPTY:
            dialect.abort()
            await self._finish(exchange, dialect, start=True)
        elif fault is Fault.BUSY_IN_STREAM:
            await self._lost_the_race(exchange, dialect)
        else:
            await self._follow_and_finish(exchange, dialect, job, strike)

    async def _follow_and_finish(
        self,
        exchange: Exchange,
        dialect: Dialect,
        job: Job,
        strike: Strike | None,
    ) -> None:
        emit = exchange.write if dialect.generation.stream else None
        if dialect.generation.stream:
            await exchange.start_stream()
            if preamble := dialect.preamble():
                await exchange.write(preamble.encode())
        limit = strike.after_tokens if strike else None
        match await _follow(job, dialect, emit, limit):
            case _End.DONE:
                await self._finish(exchange, dialect, start=False)
            case _End.LEFT:
                pass
            case _End.CUT:
                await exchange.break_off()
            case _End.STRUCK:
                fault = strike.fault if strike else Fault.ABORT
                await self._struck_midway(exchange, dialect, job, fault)

    async def _struck_midway(self, exchange: Exchange, dialect: Dialect, job: Job, fault: Fault) -> None:
        if fault is Fault.RESET_AFTER:
            await exchange.break_off()
        elif fault is Fault.HANG_AFTER:
            await wait_for_end(exchange, job)
        elif fault is Fault.ERROR_IN_STREAM:
            if not dialect.generation.stream:
                raise engine_dead()
            await exchange.end_stream(dialect.error_frames(engine_dead()).encode())
        else:
            frames = dialect.abort()
            if dialect.generation.stream:
                await exchange.write(frames.encode())
            await self._finish(exchange, dialect, start=False)

    async def _finish(self, exchange: Exchange, dialect: Dialect, *, start: bool) -> None:
        if not dialect.generation.stream:
            await exchange.answer_json(200, dialect.document())
            return
        if start:
            await exchange.start_stream()
        await exchange.end_stream(dialect.closing().encode())


async def _follow(
    job: Job, dialect: Dialect, emit: Callable[[bytes], Awaitable[None]] | None, limit: int | None
) -> _End:
    """Tell of the job's progress until it ends or `limit` tokens were told."""
    while dialect.unfinished:
        if limit is not None and sum(dialect.tokens) >= limit:
            return _End.STRUCK
        news = await job.news()
        if job.fate is Fate.LEFT:
            return _End.LEFT
        if job.fate is Fate.CUT:
            return _End.CUT
        frames: list[str] = []
        for progress in news:
            room = progress.tokens if limit is None else limit - sum(dialect.tokens)
            if room < progress.tokens:
                progress.tokens, progress.finish = room, None
            if progress.tokens:
                frames.append(dialect.feed(progress))
        if not news:
            frames.append(dialect.abort())
        if emit and (data := "".join(frames)):
            await emit(data.encode())
    return _End.DONE


async def wait_for_end(exchange: Exchange, job: Job) -> None:
    """Say nothing until the client leaves or the engine goes."""
    while job.fate is Fate.RUNNING:
        await job.news()
    if job.fate is not Fate.LEFT:
        await exchange.break_off()
