"""Exceptions of kvgate. Expected ends of a request are values (`kvgate_policies.types.Outcome`), not exceptions."""

from __future__ import annotations


class KvgateError(Exception):
    """Base of all; the message says what, where and what to do."""


class ConfigError(KvgateError):
    """A setting or policy is wrong; the message names the file or option, the path and what is allowed."""


class LedgerCorrupt(KvgateError):
    """A sum went below zero or two answers disagree: a bug of ours. Counted and raised, never clamped."""


class ChangeNotKept(KvgateError):
    """A change at run time that the ledger did not confirm: nothing was changed here. The message says why."""
