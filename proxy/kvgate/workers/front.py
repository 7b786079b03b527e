"""The admin port of a group of workers: one answer for all of them.

`/metrics` is merged (`telemetry.merge`). `/livez` and `/readyz` ask everyone. `/admin` is passed on: what reads
goes to the first worker that answers, for the ledger is the same for all and each knows all engines; so does a
change of a tenant, which the ledger keeps for all; what becomes of engines is told to all, for it must hold without
the ledger too. The workers check the token there. `/console` is the front's own: it shows what all of them tell, and
what is changed through it goes to `/admin` as well.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from http import HTTPStatus

import anyio
import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from kvgate.admin.bounded import BODY_BYTES_MAX, TOO_LARGE, bounded_body
from kvgate.admin.changes import ASKED_BY
from kvgate.admin.state import JOINING
from kvgate.clock import SystemClock
from kvgate.console import Console
from kvgate.telemetry.formats import OPENMETRICS, encoder_for
from kvgate.telemetry.merge import MergedPages
from kvgate.workers.crew_view import CrewView
from kvgate.workers.drained import DrainedEngines

ASK_S_MAX = 2.0
"""For one worker's answer. It is on the same machine and answers in milliseconds, unless its loop is stuck."""
PROBE_S_MAX = 0.8
"""The same for a probe, whose asker mostly waits a second: a worker that is away must not fail it for the rest."""
NO_STORE = {"cache-control": "no-store"}
PASSED_ON = frozenset({"authorization", "content-type", "accept"})
PASSED_BACK = frozenset({"content-type", "www-authenticate", "cache-control", "allow"})

log = logging.getLogger(__name__)


@asynccontextmanager
async def front_app(
    asked_at: Mapping[str, str], drained: DrainedEngines, token: str | None
) -> AsyncGenerator[Console]:
    """The ASGI app; `asked_at` has the unix socket of each worker by its name, `token` is what they ask for."""
    async with AsyncExitStack() as stack:
        workers: dict[str, httpx.AsyncClient] = {}
        for name, address in asked_at.items():
            client = httpx.AsyncClient(
                base_url="http://worker",
                # No connection is kept: one to a worker that was replaced would be a dead one.
                transport=httpx.AsyncHTTPTransport(
                    uds=address, limits=httpx.Limits(max_keepalive_connections=0)
                ),
                timeout=ASK_S_MAX,
                trust_env=False,
            )
            workers[name] = await stack.enter_async_context(client)
        front = Front(workers, drained)
        yield Console(routes(front), CrewView(front.ask_all, token), token, SystemClock())


def routes(front: Front) -> Starlette:
    """The paths of the admin port."""
    return Starlette(
        routes=[
            Route("/livez", front.livez),
            Route("/readyz", front.readyz),
            Route("/metrics", front.metrics),
            Route("/admin/{path:path}", front.admin, methods=["GET", "POST", "PATCH", "DELETE"]),
            Route("/{path:path}", _nowhere),
        ]
    )


class Front:
    def __init__(self, workers: Mapping[str, httpx.AsyncClient], drained: DrainedEngines) -> None:
        self._workers = workers
        self._drained = drained
        self._pages = MergedPages(tuple(workers))
        self._scraping = anyio.Lock()

    async def livez(self, _: Request) -> Response:
        """200 while the loop of at least one worker runs; the parent replaces those that end."""
        answers = await self.ask_all("GET", "/livez", within_s=PROBE_S_MAX)
        alive = {name: answer is not None for name, answer in answers.items()}
        return JSONResponse(
            {"alive": any(alive.values()), "workers": alive}, 200 if any(alive.values()) else 503, NO_STORE
        )

    async def readyz(self, _: Request) -> Response:
        """200 when all workers that answer are ready, and at least one is: clients may get to any of them.

        One that is being replaced does not count: the others serve meanwhile.
        """
        answers = await self.ask_all("GET", "/readyz", within_s=PROBE_S_MAX)
        told = [answer for answer in answers.values() if answer is not None and not _joins(answer)]
        ready = bool(told) and all(answer.status_code == HTTPStatus.OK for answer in told)
        workers = {name: _json(answers[name]) for name in answers}
        return JSONResponse({"ready": ready, "workers": workers}, 200 if ready else 503, NO_STORE)

    async def metrics(self, request: Request) -> Response:
        """In the format that is asked for, which the workers are asked for too: only OpenMetrics has exemplars."""
        accept = request.headers.get("accept", "")
        _, content_type = encoder_for(accept)
        async with self._scraping:  # the pages are taken in order: none may replace a later one
            answers = await self.ask_all("GET", "/metrics", {"accept": accept})
            for name, answer in answers.items():
                if answer is not None and answer.status_code == HTTPStatus.OK:
                    self._pages.take(name, answer.text)
                else:
                    self._pages.miss(name)
            body = self._pages.render(openmetrics=content_type.startswith(OPENMETRICS))
        return Response(body, headers={"content-type": content_type})

    async def admin(self, request: Request) -> Response:
        body = await bounded_body(request, BODY_BYTES_MAX)
        if body is None:
            return _problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, TOO_LARGE)
        headers = {name: value for name, value in request.headers.items() if name in PASSED_ON}
        headers[ASKED_BY] = request.client.host if request.client else ""
        path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        if request.method != "POST":
            for name in self._workers:
                answer = await self._ask(name, request.method, path, headers, body)
                if answer is not None:
                    return _passed_back(answer)
            return _problem(HTTPStatus.SERVICE_UNAVAILABLE, "No worker answers.")
        done = _common(await self.ask_all(request.method, path, headers, body))
        if done.status_code == HTTPStatus.OK:
            self._note(request.url.path, body)
        return done

    def _note(self, path: str, body: bytes) -> None:
        """For a worker that is started later."""
        note = {"/admin/engines/drain": self._drained.drain, "/admin/engines/undrain": self._drained.undrain}
        if path in note:
            note[path](json.loads(body)["engine_id"].rstrip("/"))

    async def ask_all(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        within_s: float = ASK_S_MAX,
    ) -> dict[str, httpx.Response | None]:
        """The answer of each worker; None where there was none in time."""
        answers: dict[str, httpx.Response | None] = dict.fromkeys(self._workers)

        async def ask(name: str) -> None:
            with anyio.move_on_after(within_s):
                answers[name] = await self._ask(name, method, path, headers, body)

        async with anyio.create_task_group() as tasks:
            for name in self._workers:
                tasks.start_soon(ask, name)
        return answers

    async def _ask(
        self,
        name: str,
        method: str,
        path: str,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
    ) -> httpx.Response | None:
        with anyio.move_on_after(ASK_S_MAX):
            try:
                return await self._workers[name].request(method, path, headers=headers, content=body)
            except httpx.HTTPError as error:
                log.debug("%s does not answer: %r", name, error)
        return None


def _common(answers: Mapping[str, httpx.Response | None]) -> Response:
    """What all said, or the first that said something else than "done"; whoever was silent did not do it."""
    silent = [name for name, answer in answers.items() if answer is None]
    told = [answer for answer in answers.values() if answer is not None]
    refused = next((answer for answer in told if answer.is_error), None)
    if refused is not None:
        return _passed_back(refused)
    if silent:
        return _problem(
            HTTPStatus.SERVICE_UNAVAILABLE, f"Not done by {', '.join(silent)}: no answer. Try again."
        )
    return _passed_back(told[0])


def _passed_back(answer: httpx.Response) -> Response:
    headers = {name: value for name, value in answer.headers.items() if name in PASSED_BACK}
    return Response(answer.content, answer.status_code, headers)


def _json(answer: httpx.Response | None) -> object:
    try:
        return answer.json() if answer is not None else "no answer"
    except ValueError:
        return "no answer"


def _joins(answer: httpx.Response) -> bool:
    """No client gets to this worker yet, so it can fail none."""
    parts = _json(answer)
    return isinstance(parts, dict) and JOINING in parts


async def _nowhere(_: Request) -> Response:
    return _problem(HTTPStatus.NOT_FOUND, "Not Found")


def _problem(status: HTTPStatus, detail: str) -> Response:
    """An RFC 9457 problem."""
    body = {"title": status.phrase, "status": int(status), "detail": detail}
    return JSONResponse(body, status, {"content-type": "application/problem+json"})
