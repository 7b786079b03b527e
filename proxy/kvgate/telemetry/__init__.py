"""What kvgate says about itself: metrics, and one log line for each request."""

from kvgate.telemetry.logs import RequestLog, configure_logs
from kvgate.telemetry.metrics import Telemetry
from kvgate.telemetry.record import RequestRecord

__all__ = ["RequestLog", "RequestRecord", "Telemetry", "configure_logs"]
