"""One attempt of a granted request at its engine: open, look at the first sign of life, relay to the end.

Nothing goes to the client before the engine has shown that it works on the request: the status and the first
event of a stream, or a whole JSON answer, are looked at first. Until then an attempt may end in `Again`, and the
line queues the request at its old place; afterwards never, for the client has seen bytes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import anyio
import httpx

from kvgate.admission import said
from kvgate.admission.affinity import PrefixAffinity
from kvgate.admission.contract import Answer, Call, Ended, Header, Reply
from kvgate.admission.forwarding import forwarded, priority_of
from kvgate.admission.holding import Holding
from kvgate.admission.pricing import Priced, blocks_left, reprice, served
from kvgate.admission.sharing import Beginning
from kvgate.clock import Clock
from kvgate.config import Settings
from kvgate.engines.base import Engines, Target, Trouble
from kvgate.forecasting import Running
from kvgate.ledger.base import Served
from kvgate.sse import Finish, FirstEvent, SSEMeter, inspect_json, is_busy, is_unknown_model
from kvgate.telemetry.metrics import Telemetry
from kvgate.telemetry.record import RequestRecord
from kvgate.telemetry.traces import Phase
from kvgate_policies.sharing import Chain
from kvgate_policies.types import InferenceRequest, Outcome

ERROR_BODY_BYTES_MAX = 64 * 1024
"""Of an engine's error answer, read to tell "busy" from broken; vLLM's are below 1 KB."""
PEEK_BYTES_MAX = 1024 * 1024
"""Read from a stream while waiting for its first event; larger than any first event."""
GAPS_HELD_MAX = 256
"""Inter-token gaps held before they are handed to the metrics."""


class Late(StrEnum):
    """What came to nothing by kvgate's own doing, before the client saw anything."""

    LEASE = "lease"
    """This process stood still, or was cut off, until its lease may have run out: the room may be another's."""
    REVOKED = "revoked"
    """Its engine was promised twice, and its tenant lets it be sent back."""
    UNSHARED = "unshared"
    """Those that held the beginning of its prompt, for which it was charged less, have ended meanwhile."""


@dataclass(frozen=True, slots=True)
class Again:
    """The attempt came to nothing and the client has seen nothing: queue again, at the old place."""

    trouble: Trouble | Late


@dataclass(slots=True)
class Passage:
    """What travels with a request along the line."""

    request: InferenceRequest
    call: Call
    reply: Reply
    record: RequestRecord
    priced: Priced
    body: bytes
    facts: list[Header] = field(default_factory=list)
    """kvgate's own response headers."""
    granted_s: float = 0.0
    may_resend: bool = True
    """Whether a failure after the request was sent may be answered by sending it once more."""
    may_retry_empty: bool = True
    revocations: int = 0
    """How often it was sent back to the queue."""
    lost_s: float = 0.0
    """How long it ran before that, for nothing: no part of its wait."""
    run: Running = field(init=False)
    """The attempt under way, as forecasts see it."""
    prefixes: tuple[int, ...] = ()
    """Hashes of what its prompt begins with, by which engines are preferred."""
    beginning: Beginning = field(default_factory=dict[int, Chain])
    """What of its prompt may be shared with others that run."""
    lent_blocks: int = 0
    """What its price was lowered by, when it was priced last while it waits."""


class Attempt:
    """How a granted request is tried at an engine. One object serves all requests; it keeps no state of them."""

    def __init__(
        self,
        engines: Engines,
        upstream: httpx.AsyncBaseTransport,
        telemetry: Telemetry,
        clock: Clock,
        settings: Settings,
        affinity: PrefixAffinity,
    ) -> None:
        self._engines = engines
        self._affinity = affinity
        self._upstream = upstream
        self._telemetry = telemetry
        self._clock = clock
        self._settings = settings
        self._timeouts = settings.timeouts

    async def run(self, held: Holding, passage: Passage) -> Ended | Again:
        """Try once. Raises nothing but cancellation."""
        target = self._engines.target(held.grant.engine_id)
        if target is None:
            return Again(Trouble.CONNECT)
        opened: _Opened | Ended | Again | None = None
        try:
            opened = await self._open_in_time(target, held, passage)
            if isinstance(opened, _Opened):
                if not passage.run.shows():
                    return Again(Late.REVOKED)
                return await self._relay(opened, held, passage)
            return opened or await self._silent(held)
        finally:
            if passage.call.trace is not None:
                passage.call.trace.leave()
            if isinstance(opened, _Opened):
                await opened.close()

    async def _open_in_time(
        self, target: Target, held: Holding, passage: Passage
    ) -> _Opened | Ended | Again | None:
        """As `_open`; None when a stream has shown no sign of life for too long. JSON answers show none."""
        if not passage.request.stream:
            return await self._open(target, held, passage)
        with anyio.move_on_after(self._timeouts.first_byte_s):
            return await self._open(target, held, passage)
        return None

    async def _open(self, target: Target, held: Holding, passage: Passage) -> _Opened | Ended | Again:
        """Send the request and read up to the first sign of life."""
        if not held.sure:
            return Again(Late.LEASE)
        held.sent()
        if not passage.request.stream:  # shows nothing, not even headers, before all of it is there
            held.first_token_after(_prefill_s(passage.priced.count.total, self._settings.prefill_tokens_max))
        if passage.call.trace is not None:
            passage.call.trace.enter(Phase.RELAY, at=target.url)
        try:
            response = await self._upstream.handle_async_request(
                forwarded(
                    passage.call,
                    target,
                    passage.body,
                    connect_s=self._timeouts.connect_s,
                    read_s=self._timeouts.idle_s if passage.request.stream else None,
                    pulse=target.pulse,
                    priority=self._priority(passage.call),
                )
            )
        except (
            httpx.PoolTimeout
        ):  # our own bound on connections: no fault of the engine, but no use to try now
            held.refused()
            return await self._again(held, Trouble.BUSY)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.UnsupportedProtocol):
            held.refused()
            return await self._again(held, Trouble.CONNECT)
        except httpx.TimeoutException:
            return await self._silent(held)
        except httpx.TransportError:
            return await self._broken(held, passage)
        opened = _Opened(response, SSEMeter(passage.request.endpoint))
        held.measured_by(lambda: _taken(opened, passage))
        if opened.is_stream:
            passage.run.follows(opened.meter)
        kept = False
        try:
            result = await self._look(opened, held, passage)
            kept = result is opened
        finally:
            if not kept:
                await opened.close()
        return result

    def _priority(self, call: Call) -> int | None:
        """What the engine is told; None leaves it to the client."""
        return priority_of(call.tenant) if self._settings.priority and call.enforced else None

    async def _look(self, opened: _Opened, held: Holding, passage: Passage) -> _Opened | Ended | Again:
        try:
            if opened.response.status_code >= 500:
                return await self._look_at_failure(opened, held, passage)
            if opened.response.status_code == 404:
                return await self._look_for_the_model(opened, held, passage)
            if opened.response.status_code == 200 and opened.is_stream:
                return await self._look_at_stream(opened, held, passage)
            return await self._look_at_json(opened, held, passage)
        except httpx.TimeoutException:
            return await self._silent(held)
        except httpx.TransportError:
            return await self._broken(held, passage)

    async def _look_at_failure(
        self, opened: _Opened, held: Holding, passage: Passage
    ) -> _Opened | Ended | Again:
        """A 5xx: busy is queued again, anything else is sent once more or passed on as the engine said it."""
        await opened.read_up_to(ERROR_BODY_BYTES_MAX)
        if opened.complete:
            held.refused()
        if is_busy(opened.response.status_code, opened.head):
            return await self._again(held, Trouble.BUSY)
        await self._engines.report(held.grant.engine_id, Trouble.ERROR)
        opened.failed = True
        return Again(Trouble.ERROR) if passage.may_resend else opened

    async def _look_for_the_model(
        self, opened: _Opened, held: Holding, passage: Passage
    ) -> _Opened | Ended | Again:
        """A 404: an engine that came back with another model says so before a probe has noticed."""
        await opened.read_up_to(ERROR_BODY_BYTES_MAX)
        if opened.complete:
            held.refused()
        elsewhere = passage.may_resend and self._engines.serves(passage.request.model)
        return Again(Trouble.ERROR) if elsewhere and is_unknown_model(opened.head) else opened

    async def _look_at_stream(
        self, opened: _Opened, held: Holding, passage: Passage
    ) -> _Opened | Ended | Again:
        await opened.read_first_event()
        first, error = opened.meter.first, opened.meter.error
        if first is FirstEvent.ERROR and error is not None:
            if error.busy:
                held.refused()
                return await self._again(held, Trouble.BUSY)
            if error.code is None or error.code >= 500:
                await self._engines.report(held.grant.engine_id, Trouble.ERROR)
                opened.failed = True
                return Again(Trouble.ERROR) if passage.may_resend else opened
        if first in {FirstEvent.DONE_ONLY, FirstEvent.ABORTED_EMPTY} or opened.complete_without_event:
            held.refused()
            return await self._empty(held, passage)
        if opened.meter.cut_off:
            held.refused()
            return await self._broken(held, passage)
        return opened

    async def _look_at_json(
        self, opened: _Opened, held: Holding, passage: Passage
    ) -> _Opened | Ended | Again:
        """Read a JSON answer whole, if it is not too large, so that an empty one can still be retried."""
        await opened.read_up_to(self._settings.answer_bytes_inspected_max)
        if opened.response.status_code != 200 or not opened.complete or not opened.is_json:
            return opened
        verdict = inspect_json(passage.request.endpoint, opened.head)
        if verdict.empty:
            held.refused()
            return await self._empty(held, passage)
        if verdict.aborted and verdict.error is None:
            held.refused()
            return await self._broken(held, passage)
        opened.failed = verdict.error is not None
        opened.prompt_tokens, opened.completion_tokens = verdict.prompt_tokens, verdict.completion_tokens
        opened.finish = verdict.finish
        return opened

    async def _relay(self, opened: _Opened, held: Holding, passage: Passage) -> Ended:
        """From here on the client sees bytes."""
        now = self._clock.monotonic()
        record, reply = passage.record, passage.reply
        record.engine_ttft_s, record.ttft_s = now - passage.granted_s, now - passage.call.arrived_s
        if opened.complete:
            await held.done()
        else:
            shown = opened.is_stream and opened.meter.first is FirstEvent.TOKEN
            await held.first_token(_blocks_left(opened, held, passage), shown=shown)
        if opened.response.status_code == 200 and not opened.failed:
            self._affinity.learn(passage.prefixes, held.grant.engine_id)
        await reply.start(opened.response.status_code, opened.headers, passage.facts)
        if opened.complete and not opened.is_stream:  # in one piece: it is all there
            return await self._finished(opened, held, passage)
        for chunk in opened.held:
            await reply.send(chunk)
        opened.held.clear()
        try:
            await self._relay_rest(opened, held, passage)
        except httpx.TimeoutException:
            await self._engines.report(held.grant.engine_id, Trouble.TIMEOUT)
            return Ended(Outcome.UPSTREAM_TIMEOUT, said.stream_stalled(self._timeouts.idle_s), opened.meter)
        except httpx.TransportError:
            await self._engines.report(held.grant.engine_id, Trouble.RESET)
            return Ended(Outcome.UPSTREAM_FAILED, said.stream_broken(), opened.meter)
        if opened.meter.cut_off:
            return await self._cut_off(opened, held)
        return await self._finished(opened, held, passage)

    async def _cut_off(self, opened: _Opened, held: Holding) -> Ended:
        """The engine gave up in the middle and ends in good order, as on SIGTERM. That end would pass for a whole
        answer with most clients, so it does not go out: the stream ends as any other that broke.
        """
        held.refused()
        opened.meter.withhold()
        await self._engines.report(held.grant.engine_id, Trouble.RESET)
        return Ended(Outcome.UPSTREAM_FAILED, said.stream_broken(), opened.meter)

    async def _relay_rest(self, opened: _Opened, held: Holding, passage: Passage) -> None:
        """Pass every chunk on as it came, reading beside it; give the room back before the last one goes out.

        Stops before the chunk in which the engine says that it gave up.
        """
        meter, reply, clock = opened.meter, passage.reply, self._clock
        gaps: list[float] = []
        last_s = clock.monotonic()
        corrected = False
        try:
            async for chunk in opened.chunks:
                now = clock.monotonic()
                gaps.append(now - last_s)
                last_s = now
                if opened.is_stream:
                    meter.feed(chunk)
                    if meter.cut_off:
                        return
                    if meter.done:
                        await held.done()
                    elif not corrected and meter.prompt_tokens is not None:
                        corrected = True
                        await self._correct(held, passage, meter.prompt_tokens)
                await reply.send(chunk)
                if len(gaps) >= GAPS_HELD_MAX:
                    self._telemetry.observe_gaps(gaps)
                    gaps.clear()
            opened.ended = True
        finally:
            if opened.is_stream and gaps:
                self._telemetry.observe_gaps(gaps)

    async def _finished(self, opened: _Opened, held: Holding, passage: Passage) -> Ended:
        """The engine ended its answer in an orderly way; was it an answer?"""
        record, meter = passage.record, opened.meter
        if opened.is_stream:
            meter.end()
            opened.prompt_tokens = meter.prompt_tokens
            opened.completion_tokens = meter.completion_tokens or meter.tokens_seen
            opened.finish = meter.finish
        passage.run.ended(opened.finish, opened.completion_tokens)
        record.prompt_tokens_real, record.completion_tokens = opened.prompt_tokens, opened.completion_tokens
        if opened.is_stream and not (meter.done or meter.blind or meter.error):
            await self._engines.report(held.grant.engine_id, Trouble.RESET)
            return Ended(Outcome.UPSTREAM_FAILED, said.stream_broken(), opened.meter)
        await held.done()
        await passage.reply.finish(opened.head)
        return await self._outcome(opened, held)

    async def _outcome(self, opened: _Opened, held: Holding) -> Ended:
        status, meter, engine_id = opened.response.status_code, opened.meter, held.grant.engine_id
        if opened.failed or status >= 500:
            return Ended(Outcome.UPSTREAM_FAILED)
        if meter.error is not None and not (meter.error.code and meter.error.code < 500):
            await self._engines.report(engine_id, Trouble.ERROR)
            return Ended(Outcome.UPSTREAM_FAILED)
        if meter.aborted:
            await self._engines.report(engine_id, Trouble.RESET)
            return Ended(Outcome.UPSTREAM_FAILED)
        if status >= 400 or meter.error is not None:
            return Ended(Outcome.UPSTREAM_REFUSED)
        await self._engines.succeeded(engine_id)
        return Ended(Outcome.SERVED)

    async def _correct(self, held: Holding, passage: Passage, prompt_tokens: int) -> None:
        cost = reprice(passage.request, passage.priced, prompt_tokens, held.grant.shape)
        if cost is not None:
            await held.correct(passage.run.corrected(cost, prompt_tokens))

    async def _again(self, held: Holding, trouble: Trouble) -> Again:
        await self._engines.report(held.grant.engine_id, trouble)
        return Again(trouble)

    async def _broken(self, held: Holding, passage: Passage) -> Ended | Again:
        """The connection broke after the request was sent and before the client saw anything."""
        await self._engines.report(held.grant.engine_id, Trouble.RESET)
        if passage.may_resend:
            return Again(Trouble.RESET)
        return Ended(Outcome.UPSTREAM_FAILED, said.upstream_failed())

    async def _empty(self, held: Holding, passage: Passage) -> Ended | Again:
        """A 200 without a token, as an engine answers that is shutting down."""
        await self._engines.report(held.grant.engine_id, Trouble.EMPTY)
        if passage.may_retry_empty:
            return Again(Trouble.EMPTY)
        return Ended(Outcome.UPSTREAM_FAILED, said.upstream_empty())

    async def _silent(self, held: Holding) -> Ended:
        await self._engines.report(held.grant.engine_id, Trouble.TIMEOUT)
        return Ended(Outcome.UPSTREAM_TIMEOUT, said.upstream_silent(self._timeouts.first_byte_s))


class _Opened:
    """An answer that has begun: what was read of it, and the rest to come."""

    def __init__(self, response: httpx.Response, meter: SSEMeter) -> None:
        self.response = response
        self.meter = meter
        self.headers = response.headers.raw
        kind = _content_type(self.headers)
        self.is_stream = kind == b"text/event-stream"
        self.is_json = kind == b"application/json"
        self.chunks: AsyncIterator[bytes] = aiter(_body(response))
        self.held: list[bytes] = []
        """Read, and not passed on yet."""
        self.complete = False
        """It is all in `held`, or has been."""
        self.ended = False
        """Read to its end."""
        self.failed = False
        self.prompt_tokens: int | None = None
        self.completion_tokens: int | None = None
        self.finish: Finish | None = None

    @property
    def head(self) -> bytes:
        return b"".join(self.held)

    @property
    def complete_without_event(self) -> bool:
        return self.complete and self.meter.first is None and not self.meter.blind

    async def close(self) -> None:
        """Close the upstream connection, whatever is going on: that is how the engine learns to stop."""
        if self.ended:
            await self.response.aclose()  # the connection is back in its pool already
            return
        with anyio.CancelScope(shield=True):
            await self.response.aclose()

    async def read_up_to(self, bytes_max: int) -> None:
        size = 0
        async for chunk in self.chunks:
            self.held.append(chunk)
            size += len(chunk)
            if size > bytes_max:
                return
        self.complete = self.ended = True

    async def read_first_event(self) -> None:
        size = 0
        async for chunk in self.chunks:
            self.held.append(chunk)
            self.meter.feed(chunk)
            size += len(chunk)
            if self.meter.first is not None or self.meter.blind or size > PEEK_BYTES_MAX:
                return
        self.complete = self.ended = True
        self.meter.end()


def _prefill_s(prompt_tokens: int, prefill_tokens_max: int) -> float:
    """By when a prompt is computed, for who shows no first token: it and whatever may lie before it in the engine, at
    the rate for which the bound is one second.
    """
    return max(prompt_tokens, prefill_tokens_max) / prefill_tokens_max


def _taken(opened: _Opened, passage: Passage) -> Served | None:
    """What the request took by now, by the engine's word or else by what was counted beside the stream.

    None where neither says anything: a JSON answer that was too large to be looked into. A refusal took nothing.
    """
    meter = opened.meter
    if opened.response.status_code >= 400:
        return served(passage.priced, 0, 0)
    if opened.is_stream:
        return served(passage.priced, meter.prompt_tokens, meter.completion_tokens or meter.tokens_seen)
    if opened.prompt_tokens is None and opened.completion_tokens is None:
        return None
    return served(passage.priced, opened.prompt_tokens, opened.completion_tokens or 0)


def _blocks_left(opened: _Opened, held: Holding, passage: Passage) -> int | None:
    """What the request still needs after its first token; None where a stream has not shown one."""
    if opened.is_stream and opened.meter.first is not FirstEvent.TOKEN:
        return None
    return blocks_left(passage.request, passage.priced, held.grant.shape)


def _content_type(headers: Sequence[Header]) -> bytes:
    """Without its parameters; by hand, as `httpx.Headers.get` decodes all headers to find one."""
    for name, value in headers:
        if name.lower() == b"content-type":
            return value.partition(b";")[0].strip().lower()
    return b""


def _body(response: httpx.Response) -> AsyncIterator[bytes]:
    stream = response.stream
    if not isinstance(stream, httpx.AsyncByteStream):  # a transport of ours never does this
        raise TypeError("the upstream transport answered with a synchronous stream")
    return aiter(stream)


__all__ = ["Again", "Answer", "Attempt", "Late", "Passage"]
