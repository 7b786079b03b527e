"""What the children do: a worker serves clients, the front answers operators."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable
from functools import partial

import anyio

from kvgate.app import Worker, run
from kvgate.assembly.file import PolicySource, taken_over
from kvgate.config import Settings
from kvgate.ports import Server
from kvgate.telemetry.logs import FIELDS, configure_logs
from kvgate.workers.child import is_orphan
from kvgate.workers.drained import DrainedEngines
from kvgate.workers.front import front_app
from kvgate.workers.places import Place, Places


class Named(logging.Filter):
    """Puts the name of the process into each of its log lines."""

    def filter(self, record: logging.LogRecord) -> bool:
        setattr(record, FIELDS, {"process": self.name, **(getattr(record, FIELDS, None) or {})})
        return True


def do_worker(
    settings: Settings, source: PolicySource | None, sockets: Places, place: Place, drained: DrainedEngines
) -> Callable[[], int]:
    """The work of one worker: a whole kvgate, on the sockets of its place."""
    parent = os.getpid()

    def work() -> int:
        sockets.keep(place)
        logs = configure_logs(settings.log_level, settings.log_format)
        logs.addFilter(Named(place.name))
        orphan = partial(is_orphan, parent)
        try:
            now = settings if source is None else as_by_now(settings, source)
            return run(now, source, Worker(place.listening, orphan, drained.read()))
        finally:
            logs.close()

    return work


def as_by_now(settings: Settings, source: PolicySource) -> Settings:
    """What the others have taken over meanwhile; with a bad file, what was good last."""
    try:
        return taken_over(settings, source.read_again())
    except Exception:  # noqa: BLE001  what is wrong with it, is said by those who watch it
        return settings


def do_front(settings: Settings, sockets: Places, drained: DrainedEngines) -> Callable[[], int]:
    """The work of the front. It holds nothing, so it ends at the first signal, whatever that is."""
    asked_at = {place.name: place.asked_at for place in sockets.workers}

    def work() -> int:
        sockets.keep(None)
        logs = configure_logs(settings.log_level, settings.log_format)
        logs.addFilter(Named("front"))
        try:
            anyio.run(_serve_front, asked_at, sockets, drained, settings.admin_token)
        finally:
            logs.close()
        return 0

    return work


async def _serve_front(
    asked_at: dict[str, str], sockets: Places, drained: DrainedEngines, token: str | None
) -> None:
    async with front_app(asked_at, drained, token) as app:
        server = Server(app)
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as received:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(server.serve, [sockets.front])
                async for _ in received:
                    app.close()
                    server.should_exit = server.force_exit = True
                    return
