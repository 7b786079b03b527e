"""Requests that cost nothing and wait for nothing: tokenize, count tokens, stored responses.

They go to an engine that is up, in turn; where only one engine can know the answer (a stored response), the
engines are asked one after the other until one does. Each is tried once: the loop is bounded by the pool.
"""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import httpx

from kvgate.admission import said
from kvgate.admission.contract import Call, Ended, Reply
from kvgate.admission.forwarding import forwarded
from kvgate.config import Settings
from kvgate.engines.base import Reachable, Target, Trouble
from kvgate.telemetry.traces import Phase
from kvgate_policies.types import Outcome


class Passing:
    def __init__(self, engines: Reachable, upstream: httpx.AsyncBaseTransport, settings: Settings) -> None:
        self._engines = engines
        self._upstream = upstream
        self._timeouts = settings.timeouts

    async def serve(self, call: Call, reply: Reply, *, ask_all: bool) -> Ended:
        """Relay to one engine; with `ask_all`, to each until one does not answer 404."""
        targets = self._engines.targets() if ask_all else self._in_turn()
        for index, target in enumerate(targets):
            last = index == len(targets) - 1
            with anyio.move_on_after(self._timeouts.first_byte_s):
                ended = await self._try(target, call, reply, pass_404=last)
                if ended is not None:
                    return ended
                continue
            return Ended(Outcome.UPSTREAM_TIMEOUT, said.upstream_silent(self._timeouts.first_byte_s))
        return Ended(Outcome.REJECTED_NO_BACKEND, said.no_backend())

    def _in_turn(self) -> Sequence[Target]:
        first = self._engines.any_target()
        if first is None:
            return ()
        return (first, *(target for target in self._engines.targets() if target != first))

    async def _try(self, target: Target, call: Call, reply: Reply, *, pass_404: bool) -> Ended | None:
        """None when another engine should be asked and the client has seen nothing."""
        timeouts, trace = self._timeouts, call.trace
        if trace is not None:
            trace.enter(Phase.RELAY, at=target.url)
        request = forwarded(call, target, call.body, connect_s=timeouts.connect_s, read_s=timeouts.idle_s)
        try:
            response = await self._upstream.handle_async_request(request)
        except (httpx.ConnectError, httpx.ConnectTimeout):
            if trace is not None:
                trace.leave(Trouble.CONNECT.value)
            await self._engines.report(target.engine_id, Trouble.CONNECT)
            return None
        except httpx.TransportError:
            if trace is not None:
                trace.leave(Trouble.RESET.value)
            return None
        try:
            if response.status_code == 404 and not pass_404:
                return None
            return await self._relay(response, reply)
        except httpx.TransportError:
            return Ended(Outcome.UPSTREAM_FAILED, said.upstream_failed())
        finally:
            with anyio.CancelScope(shield=True):
                await response.aclose()

    async def _relay(self, response: httpx.Response, reply: Reply) -> Ended:
        await reply.start(response.status_code, response.headers.raw, ())
        stream = response.stream
        if isinstance(stream, httpx.AsyncByteStream):
            async for chunk in stream:
                await reply.send(chunk)
        await reply.finish()
        if response.status_code >= 500:
            return Ended(Outcome.UPSTREAM_FAILED)
        return Ended(Outcome.UPSTREAM_REFUSED if response.status_code >= 400 else Outcome.SERVED)
