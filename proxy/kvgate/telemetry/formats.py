"""In which format a metrics page is written: Prometheus text, or OpenMetrics for those who ask for it.

Both have the same series. OpenMetrics has exemplars beside: the trace of the latest request in a bucket.
"""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

OPENMETRICS = "application/openmetrics-text"
"""How its content type begins."""


def encoder_for(accept: str) -> tuple[Callable[[Collector], bytes], str]:
    """What writes the format that an `Accept` header asks for, and its content type."""
    try:
        return choose_encoder(accept)
    except (ValueError, TypeError):  # a version that is none
        return choose_encoder("")
