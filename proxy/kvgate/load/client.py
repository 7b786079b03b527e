"""The load client: sends a workload over HTTP and writes down when every token came.

It decides nothing about the numbers (`report` does) and never gives up on the run because one stream failed:
every session ends as a `StreamRecord`. Each request has a connection of its own, because a reused idle one
that the server just closed would look like a failure of the server.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import aiohttp

from kvgate.load.events import EventSplitter, Progress, read_event
from kvgate.load.heartbeat import Heartbeat
from kvgate.load.records import StreamEnd, StreamRecord, end_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Sequence

    from kvgate.load.heartbeat import Stall
    from kvgate.load.workload import Session, Workload

_RETRIED = frozenset({429, 503})
_REFUSAL_BYTES_MAX = 2048
"""As much of a refusal's body as is kept as the error text."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long the client waits and how often it tries again."""

    stream_s_max: float = 600.0
    """From the first attempt to the last token; OpenAI's SDKs give up after 600 s too."""
    connect_s_max: float = 10.0
    retries_max: int = 5
    """After 429 or 503. OpenAI's SDKs retry twice; five rides out a queue that is full for a while."""
    retry_after_s_default: float = 1.0
    """When the answer names no time."""
    retry_after_s_max: float = 60.0
    """A longer Retry-After is cut to this: the SDKs ignore what is above a minute."""


class LoadRun:
    """One run of a workload. `records` can be read while it goes on.

    A closed loop by default: `concurrency` clients, each of which sends the next session when its last one has
    ended; all at once without a number. With `arrivals_s` an open loop: a session is sent at each of these times
    from the beginning, whatever became of the others; one that would exceed `concurrency` is left out and counted
    in `left_out`.
    """

    def __init__(
        self,
        urls: str | Sequence[str],
        workload: Workload,
        *,
        concurrency: int | None = None,
        arrivals_s: Iterable[float] | None = None,
        patience: Patience | None = None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._urls = [urls] if isinstance(urls, str) else list(urls)
        self._workload = workload
        self._concurrency = len(workload.sessions) if concurrency is None else concurrency
        if not self._urls or self._concurrency < 1:
            msg = "a load run needs at least one URL, one session and one client"
            raise ValueError(msg)
        self._arrivals_s = arrivals_s
        self._patience = patience or Patience()
        self._clock_s = clock_s
        self._heartbeat = Heartbeat(clock_s)
        self._closed = False
        self._todo = iter(range(len(workload.sessions)))
        self._streams: set[asyncio.Task[None]] = set()
        self._sending: asyncio.Task[None] | None = None
        self.in_flight = 0
        self.left_out = 0
        """Sessions of an open loop that were not sent, because too many were in flight."""
        self.records: list[StreamRecord] = []

    @property
    def stalls(self) -> list[Stall]:
        """When this process itself stood still so far."""
        return self._heartbeat.stalls

    async def run(self) -> list[StreamRecord]:
        """Send everything and return the records in the workload's order, when the last stream has ended."""
        beating = asyncio.create_task(self._heartbeat.beat())
        try:
            await self._send_all()
        finally:
            beating.cancel()
        return sorted(self.records, key=lambda record: record.index)

    def close(self) -> None:
        """Send nothing more; what runs may end."""
        self._closed = True
        if self._sending is not None:
            self._sending.cancel()

    def break_off(self) -> None:
        """Send nothing more, and end what runs as `INTERRUPTED`; `run` then returns."""
        self.close()
        for stream in self._streams:
            stream.cancel()

    async def _send_all(self) -> None:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._patience.connect_s_max)
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        async with (
            aiohttp.ClientSession(timeout=timeout, connector=connector) as http,
            asyncio.TaskGroup() as clients,
        ):
            if self._arrivals_s is not None:
                self._sending = clients.create_task(self._at_times(http, clients, self._arrivals_s))
                return
            for _ in range(min(self._concurrency, len(self._workload.sessions))):
                self._start(clients, self._client(http))

    def _start(self, clients: asyncio.TaskGroup, work: Coroutine[Any, Any, None]) -> None:
        task = clients.create_task(work)
        self._streams.add(task)
        task.add_done_callback(self._streams.discard)

    async def _at_times(
        self, http: aiohttp.ClientSession, clients: asyncio.TaskGroup, arrivals_s: Iterable[float]
    ) -> None:
        start_s = self._clock_s()
        for at_s, index in zip(arrivals_s, self._todo, strict=False):
            await asyncio.sleep(start_s + at_s - self._clock_s())
            if len(self._streams) >= self._concurrency:
                self.left_out += 1
            else:
                self._start(clients, self._stream(http, index))

    async def _client(self, http: aiohttp.ClientSession) -> None:
        for index in self._todo:
            if self._closed:
                return
            await self._stream(http, index)

    async def _stream(self, http: aiohttp.ClientSession, index: int) -> None:
        session = self._workload.sessions[index]
        url = self._urls[index % len(self._urls)]
        wanted = session.output_tokens if self._workload.tells_lengths else None
        record = StreamRecord(index, url, wanted, self._clock_s(), tenant=session.tenant)
        self.records.append(record)
        self.in_flight += 1
        try:
            async with asyncio.timeout(self._patience.stream_s_max):
                record.end = await self._attempts(http, record, session, url + session.path)
        except TimeoutError:
            record.end, record.error = (
                StreamEnd.TIMED_OUT,
                f"not over after {self._patience.stream_s_max:g} s",
            )
        except (aiohttp.ClientError, OSError, ValueError) as trouble:
            record.end, record.error = StreamEnd.FAILED, f"{type(trouble).__name__}: {trouble}"
        except asyncio.CancelledError:
            record.end = StreamEnd.INTERRUPTED
            raise
        finally:
            record.ended_s = self._clock_s()
            self.in_flight -= 1

    async def _attempts(
        self, http: aiohttp.ClientSession, record: StreamRecord, session: Session, url: str
    ) -> StreamEnd:
        body = self._workload.body_of(session)
        headers = self._workload.headers_of(session)
        while True:
            async with http.post(url, data=body, headers=headers) as response:
                record.status = response.status
                if response.status == 200:
                    return await self._read(response, record)
                refusal = await response.content.read(_REFUSAL_BYTES_MAX)
            wait_s = self._retry_wait_s(response, record.retries)
            if wait_s is None:
                record.error = refusal.decode(errors="replace")
                record.reason = response.headers.get("x-kvgate-reason")
                return StreamEnd.REFUSED
            record.retries += 1
            await asyncio.sleep(wait_s)

    def _retry_wait_s(self, response: aiohttp.ClientResponse, retries: int) -> float | None:
        """None when this answer is final."""
        headers = response.headers
        if response.status not in _RETRIED or headers.get("x-should-retry") == "false":
            return None
        if retries >= self._patience.retries_max:
            return None
        return retry_after_s(headers.get("retry-after"), self._patience)

    async def _read(self, response: aiohttp.ClientResponse, record: StreamRecord) -> StreamEnd:
        splitter, saw_done = EventSplitter(), False
        async for received in response.content.iter_any():
            now_s = self._clock_s()
            record.bytes_received += len(received)
            for data in splitter.feed(received):
                progress = read_event(data, len(record.token_times_s))
                if progress.error is not None:
                    record.error = progress.error
                    return StreamEnd.FAILED
                saw_done |= progress.done
                _note(record, progress, now_s)
        return end_of(record, saw_done=saw_done)


def retry_after_s(header: str | None, patience: Patience) -> float:
    """Seconds to wait by a Retry-After header; an HTTP date or nonsense counts as no header."""
    try:
        asked_s = float(header) if header is not None else patience.retry_after_s_default
    except ValueError:
        asked_s = patience.retry_after_s_default
    return min(max(asked_s, 0.0), patience.retry_after_s_max)


def _note(record: StreamRecord, progress: Progress, now_s: float) -> None:
    record.token_times_s.extend([now_s] * progress.tokens)
    record.finish_reason = progress.finish_reason or record.finish_reason
    if progress.completion_tokens is not None:
        record.prompt_tokens, record.completion_tokens = progress.prompt_tokens, progress.completion_tokens


async def offer(
    urls: str | Sequence[str],
    workload: Workload,
    concurrency: int | None = None,
    patience: Patience | None = None,
) -> list[StreamRecord]:
    """Send a workload: everything at once, or by `concurrency` clients.

    Each client sends the next session when its last one has ended. Several URLs are used in turn. The
    records come in the order of the workload, one for each session.
    """
    return await LoadRun(urls, workload, concurrency=concurrency, patience=patience).run()
