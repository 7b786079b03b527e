"""Who counts what a shared ledger does: a hook for the metrics, and for tests."""

from __future__ import annotations

from typing import Protocol


class LedgerWatch(Protocol):
    def called(self, verb: str, took_s: float, *, ok: bool) -> None:
        """A call to Redis for a request or an engine was answered, or was not (`ok` false)."""
        ...

    def happened(self, event: str) -> None:
        """One of `epoch_changed`, `lease_lost`, `unsure`, `stray_grant`, `stream_gap`, `mode_<mode>`, and
        `alone_<mode>` for each request that was started without Redis.
        """
        ...


class NoWatch:
    def called(self, verb: str, took_s: float, *, ok: bool) -> None: ...

    def happened(self, event: str) -> None: ...
