"""`kvgate serve`."""

from __future__ import annotations

import os

from kvgate.cli.options import settings_from, takes_settings


@takes_settings
def serve(options: dict[str, object]) -> int:
    """Run the proxy in front of one pool of vLLM servers."""
    settings = settings_from(options)
    import logging  # noqa: PLC0415

    from kvgate.app import run  # noqa: PLC0415  the web stack takes most of a second
    from kvgate.config import warnings_of  # noqa: PLC0415
    from kvgate.telemetry.logs import configure_logs  # noqa: PLC0415

    log = configure_logs(settings.log_level, settings.log_format)
    for warning in warnings_of(settings, os.environ):
        logging.getLogger("kvgate.config").warning(warning)
    try:
        return run(settings, lambda: settings_from(options))
    finally:
        log.close()
