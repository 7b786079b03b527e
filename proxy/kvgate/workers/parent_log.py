"""The log of the parent: written directly, because it may not have a thread, and without ever waiting."""

from __future__ import annotations

import logging
import os
import select
import sys
from typing import Literal

from kvgate.telemetry.logs import JSONFormatter, TextFormatter

LINE_BYTES_MAX = 2048
"""Of a line; a pipe that can be written to at all takes this much without waiting (PIPE_BUF is 4096)."""


class DirectHandler(logging.Handler):
    """Writes to stderr; what a reader that is stuck does not take is left out, for the workers need their parent."""

    def emit(self, record: logging.LogRecord) -> None:
        line = self.format(record).encode(errors="replace")[:LINE_BYTES_MAX]
        if select.select([], [sys.stderr], [], 0)[1]:
            os.write(sys.stderr.fileno(), line + b"\n")


def log_without_waiting(level: str, log_format: Literal["json", "text"]) -> None:
    """Send all logging of this process there. A forked child has to configure its own. Raises ValueError."""
    handler = DirectHandler()
    handler.setFormatter(JSONFormatter() if log_format == "json" else TextFormatter())
    root = logging.getLogger()
    root.setLevel(level.upper())
    root.handlers[:] = [handler]
