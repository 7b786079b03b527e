"""`kvgate traffic`: how long requests really are, what was reserved for them in vain, and whom a limit would cut.

A tool beside the line. It reads the request log, a public trace, or the histograms of a running server; `kvgate plan`
and `kvgate load` take their lengths from the same places, `kvgate replay` its requests.
"""

from __future__ import annotations

from kvgate.traffic.formats import Format, Reading, format_of
from kvgate.traffic.histograms import Scraped, scrape
from kvgate.traffic.lengths import Lengths
from kvgate.traffic.log import Tally, read_log
from kvgate.traffic.report import print_traffic, traffic_json
from kvgate.traffic.requests import read_requests
from kvgate.traffic.summary import Traffic, of_log, of_metrics

__all__ = [
    "Format",
    "Lengths",
    "Reading",
    "Scraped",
    "Tally",
    "Traffic",
    "format_of",
    "of_log",
    "of_metrics",
    "print_traffic",
    "read_log",
    "read_requests",
    "scrape",
    "traffic_json",
]
