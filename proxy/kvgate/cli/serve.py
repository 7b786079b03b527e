"""`kvgate serve`."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

from kvgate.cli.options import policy_source, takes_settings

if TYPE_CHECKING:
    from kvgate.assembly.file import PolicySource
    from kvgate.config import Settings


@takes_settings
def serve(options: dict[str, object]) -> int:
    """Run the proxy in front of vLLM servers: one pool, or those of a policy file."""
    # A reload that comes before there is someone to do it waits; it would end the process.
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGHUP,))
    source = policy_source(options)
    settings = source.read()
    if settings.workers > 1:
        return _serve_together(settings, source)
    from kvgate.app import run  # noqa: PLC0415  the web stack takes most of a second
    from kvgate.telemetry.logs import configure_logs  # noqa: PLC0415

    log = configure_logs(settings.log_level, settings.log_format)
    _warn(settings)
    try:
        return run(settings, source)
    finally:
        log.close()


def _serve_together(settings: Settings, source: PolicySource) -> int:
    """With several processes. They have a log each, and their parent its own: forked, it can't have a thread."""
    from kvgate.workers import log_without_waiting, run  # noqa: PLC0415

    log_without_waiting(settings.log_level, settings.log_format)
    _warn(settings)
    return run(settings, source)


def _warn(settings: Settings) -> None:
    import logging  # noqa: PLC0415

    from kvgate.config import warnings_of  # noqa: PLC0415

    for warning in warnings_of(settings, os.environ):
        logging.getLogger("kvgate.config").warning(warning)
