"""The straight line of one request: price, reserve, wait, forward, release. The story is told in `line`."""

from kvgate.admission.contract import Answer, Call, Ended, Header, Reason, Reply

__all__ = ["Answer", "Call", "Ended", "Header", "Reason", "Reply"]
