"""The routes of the simulator: vLLM's own, and `/sim/*` to look inside and to make things go wrong."""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from kvgate.sim import metrics, prompts, tokenizer
from kvgate.sim.errors import RequestRefused, bad_request, scale_out_disabled, wrong_content_type
from kvgate.sim.exchange import BodyTooLargeError, ClientLeftError, Exchange, Receive, Scope, Send
from kvgate.sim.faults import Fault, Faults, Strike, parse_strike
from kvgate.sim.fields import Body, listing, read_object
from kvgate.sim.generate import Generator, wait_for_end
from kvgate.sim.generation import Kind, ServedModel, check_model
from kvgate.sim.jobs import Fate

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kvgate.sim.engine import SimEngine

VERSION = "0.32.0"
"""The vLLM whose wire this is."""
METRICS_SLOW_S = 5.0
TRACEPARENTS_MAX = 256
"""Kept of the latest requests; a vLLM would make spans of them."""

_GENERATING = {
    "/v1/chat/completions": Kind.CHAT,
    "/v1/completions": Kind.COMPLETION,
    "/v1/responses": Kind.RESPONSE,
    "/v1/messages": Kind.MESSAGE,
    "/v1/embeddings": Kind.EMBEDDING,
}
_STANDS_STILL = frozenset((Fault.METRICS_STALE, Fault.FREEZE))
"""Faults under which `/metrics` repeats itself; a frozen vLLM writes no gauges."""
_SCALE_OUT = (
    "/v1/chat/completions/render",
    "/v1/completions/render",
    "/v1/messages/render",
    "/v1/responses/render",
    "/inference/v1/generate",
)


@dataclass(slots=True)
class SimApp:
    """The ASGI application. It waits and sends; what an answer contains is decided elsewhere."""

    engine: SimEngine
    served: ServedModel
    refuse: Callable[[float], None]
    """Refuse new connections for so many seconds."""
    faults: Faults = field(default_factory=Faults)
    created_at: int = field(default_factory=lambda: int(time.time()))
    traceparents: deque[str] = field(default_factory=lambda: deque(maxlen=TRACEPARENTS_MAX))
    """Which span each request to generate came from, as it said; empty for those that did not."""
    _stale_page: str = ""

    def _routes(self) -> dict[str, dict[str, Callable[[Exchange], Awaitable[None]]]]:
        return {
            "/health": {"GET": self._health},
            "/ping": {"GET": self._health, "POST": self._health},
            "/version": {"GET": self._version},
            "/load": {"GET": self._load},
            "/v1/models": {"GET": self._models},
            "/metrics": {"GET": self._metrics},
            "/kv_event_sources": {"GET": self._kv_event_sources},
            "/tokenize": {"POST": self._tokenize},
            "/detokenize": {"POST": self._detokenize},
            "/v1/messages/count_tokens": {"POST": self._count_tokens},
            "/sim/state": {"GET": self._state},
            "/sim/faults": {"POST": self._add_fault, "DELETE": self._clear_faults},
            "/sim/preempt": {"POST": self._preempt},
            "/sim/restart": {"POST": self._restart},
            **{path: {"POST": self._generate} for path in _GENERATING},
            **{path: {"POST": self._scale_out} for path in _SCALE_OUT},
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        exchange = Exchange(scope, receive, send)
        methods = self._routes().get(exchange.path)
        if methods is None:
            await exchange.answer_json(404, {"detail": "Not Found"})
        elif exchange.method not in methods:
            await exchange.answer_json(405, {"detail": "Method Not Allowed"}, allow=", ".join(methods))
        else:
            await self._run(exchange, methods[exchange.method])

    async def _run(self, exchange: Exchange, handler: Callable[[Exchange], Awaitable[None]]) -> None:
        try:
            await handler(exchange)
        except RequestRefused as error:
            anthropic = _GENERATING.get(exchange.path) is Kind.MESSAGE
            await exchange.answer_json(error.status, error.anthropic_body if anthropic else error.body)
        except BodyTooLargeError:
            await exchange.answer_json(413, {"detail": "Request Entity Too Large"}, connection="close")
        except ClientLeftError:
            pass

    # Generating

    async def _generate(self, exchange: Exchange) -> None:
        raw = await self._raw_json(exchange)
        self.traceparents.append(exchange.headers.get("traceparent", ""))
        generator = Generator(self.engine, self.faults, self.served, self.refuse)
        await generator.handle(exchange, _GENERATING[exchange.path], raw)

    async def _scale_out(self, exchange: Exchange) -> None:
        await self._raw_json(exchange)
        raise scale_out_disabled()

    async def _raw_json(self, exchange: Exchange) -> bytes:
        raw = await exchange.body()
        kind = exchange.headers.get("content-type", "").partition(";")[0].strip().lower()
        if raw and kind != "application/json":
            raise wrong_content_type()
        return raw

    # Telling

    async def _health(self, exchange: Exchange) -> None:
        await exchange.answer(503 if Fault.HEALTH_503 in self.faults.server else 200, b"")

    async def _version(self, exchange: Exchange) -> None:
        await exchange.answer_json(200, {"version": VERSION})

    async def _load(self, exchange: Exchange) -> None:
        await exchange.answer_json(200, {"server_load": self.engine.jobs})

    async def _kv_event_sources(self, exchange: Exchange) -> None:
        await exchange.answer_json(200, {})

    async def _models(self, exchange: Exchange) -> None:
        permission = {
            "id": f"modelperm-{uuid4().hex[:16]}",
            "object": "model_permission",
            "created": self.created_at,
            "allow_create_engine": False,
            "allow_sampling": True,
            "allow_logprobs": True,
            "allow_search_indices": False,
            "allow_view": True,
            "allow_fine_tuning": False,
            "organization": "*",
            "group": None,
            "is_blocking": False,
        }
        card = {
            "id": self.served.name,
            "object": "model",
            "created": self.created_at,
            "owned_by": "vllm",
            "root": self.served.name,
            "parent": None,
            "max_model_len": self.served.max_model_len,
            "permission": [permission],
        }
        await exchange.answer_json(200, {"object": "list", "data": [card]})

    async def _metrics(self, exchange: Exchange) -> None:
        faults = self.faults.server
        slow = faults.get(Fault.METRICS_SLOW)
        if slow and not await self._still_there_after(exchange, slow):
            return
        page = self._stale_page if faults.keys() & _STANDS_STILL else self._page()
        if Fault.METRICS_MISSING in faults:
            page = "".join(line for line in page.splitlines(keepends=True) if "vllm:" not in line)
        content_type = "text/plain; version=0.0.4; charset=utf-8"
        await exchange.answer(200, page.encode(), content_type)

    async def _still_there_after(self, exchange: Exchange, slow: Strike) -> bool:
        """Wait as long as the fault says. False: the client left, or the engine went and its connections."""
        job = self.engine.attach()
        try:
            async with exchange.on_leaving(lambda: job.end(Fate.LEFT)):
                async with asyncio.timeout(METRICS_SLOW_S if slow.amount is None else slow.amount):
                    await wait_for_end(exchange, job)
        except TimeoutError:
            return True
        finally:
            self.engine.release(job)
        return False

    def _page(self) -> str:
        return metrics.render(self.engine, self.served.name)

    # Counting tokens

    async def _tokenize(self, exchange: Exchange) -> None:
        body = read_object(await self._raw_json(exchange))
        check_model(body, self.served)
        tokens = self._tokens(body)
        texts = [tokenizer.decode((token,)) for token in tokens] if body.get("return_token_strs") else None
        answer = {
            "count": len(tokens),
            "max_model_len": self.served.max_model_len,
            "tokens": tokens,
            "token_strs": texts,
        }
        await exchange.answer_json(200, answer)

    def _tokens(self, body: Body) -> tuple[int, ...]:
        if "messages" in body:
            return prompts.chat_prompt(body, None)
        prompt = body.get("prompt")
        if not isinstance(prompt, str):
            raise bad_request("Either prompt or messages must be provided.", "prompt")
        special = body.get("add_special_tokens") is not False
        return tokenizer.encode_prompt(prompt, add_special_tokens=special)

    async def _detokenize(self, exchange: Exchange) -> None:
        body = read_object(await self._raw_json(exchange))
        check_model(body, self.served)
        try:
            text = tokenizer.decode(int(token) for token in listing(body, "tokens"))
        except (TypeError, ValueError) as error:
            raise bad_request(str(error), "tokens") from error
        await exchange.answer_json(200, {"prompt": text})

    async def _count_tokens(self, exchange: Exchange) -> None:
        body = read_object(await self._raw_json(exchange))
        check_model(body, self.served)
        count = len(prompts.chat_prompt(body, None))
        context = {"original_input_tokens": count}
        await exchange.answer_json(200, {"input_tokens": count, "context_management": context})

    # The simulator's own

    async def _state(self, exchange: Exchange) -> None:
        await exchange.answer_json(200, self.state())

    def state(self) -> dict[str, Any]:
        """What a test or a demo wants to see of the inside."""
        model, counters = self.engine.model, self.engine.model.counters
        return {
            "blocks_usable": model.usable_blocks,
            "blocks_used": model.kv_used,
            "running": model.running,
            "running_max": self.engine.stats.running_max,
            "waiting": model.waiting,
            "requests_open": self.engine.jobs,
            "steps": counters.steps,
            "preemptions": counters.preemptions,
            "prompt_tokens": counters.prompt_tokens,
            "generation_tokens": counters.generation_tokens,
            "computed_tokens": counters.computed_tokens,
            "recomputed_tokens": counters.recomputed_tokens,
            "prefix_queries": counters.prefix_queries,
            "prefix_hits": counters.prefix_hits,
            "rejections": self.engine.stats.rejections,
            "faults_waiting": self.faults.waiting,
            "faults_of_server": sorted(self.faults.server),
            "started_at": self.engine.stats.started_at,
            "traceparents": list(self.traceparents),
        }

    async def _add_fault(self, exchange: Exchange) -> None:
        """`{"fault": "name" or "name=N", "count": how many requests (1)}`."""
        body = await self._control_body(exchange)
        try:
            self.add_fault(str(body.get("fault")), int(body.get("count", 1)))
        except (TypeError, ValueError) as error:
            raise bad_request(str(error), "fault") from error
        await exchange.answer_json(200, self.state())

    def add_fault(self, text: str, count: int = 1) -> None:
        """As `POST /sim/faults`. Raises `ValueError` for a fault there is not."""
        strike = parse_strike(text)
        self.faults.add(strike, count)
        if strike.fault in _STANDS_STILL:
            self._stale_page = self._page()
        if strike.fault is Fault.FREEZE:
            self.engine.freeze()

    async def _clear_faults(self, exchange: Exchange) -> None:
        self.clear_faults()
        await exchange.answer_json(200, self.state())

    def clear_faults(self) -> None:
        self.faults.clear()
        self.engine.thaw()

    async def _preempt(self, exchange: Exchange) -> None:
        await exchange.answer_json(200, {"preempted": self.engine.model.preempt()})

    async def _restart(self, exchange: Exchange) -> None:
        """`{"down_s": seconds}`: how long connections are refused before the new engine answers (0)."""
        body = await self._control_body(exchange)
        down_s = body.get("down_s", 0)
        if not isinstance(down_s, int | float) or down_s < 0:
            raise bad_request("down_s is a number of seconds, 0 or more.", "down_s")
        self.engine.restart()
        if down_s:
            self.refuse(down_s)
        await exchange.answer_json(200, self.state())

    async def _control_body(self, exchange: Exchange) -> dict[str, Any]:
        raw = await exchange.body()
        try:
            body = json.loads(raw) if raw else {}
        except ValueError as error:
            raise bad_request(f"not JSON: {error}") from error
        if not isinstance(body, dict):
            raise bad_request("a JSON object is expected")
        return body
