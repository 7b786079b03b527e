"""`kvgate traffic`: how long requests really are, what was reserved for them in vain, and whom a limit would cut.

A tool beside the line. It reads the request log, or the histograms of a running server; `kvgate plan` and
`kvgate load` take their lengths from the same places.
"""

from __future__ import annotations

from kvgate.traffic.histograms import Scraped, scrape
from kvgate.traffic.lengths import Lengths
from kvgate.traffic.log import Tally, read_log
from kvgate.traffic.report import print_traffic, traffic_json
from kvgate.traffic.summary import Traffic, of_log, of_metrics

__all__ = [
    "Lengths",
    "Scraped",
    "Tally",
    "Traffic",
    "of_log",
    "of_metrics",
    "print_traffic",
    "read_log",
    "scrape",
    "traffic_json",
]
