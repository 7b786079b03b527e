"""The console: one page on the admin port that says whether anyone waits, who, why, and what would help."""

from kvgate.console.app import Console
from kvgate.console.look import LocalView
from kvgate.console.merge import merged
from kvgate.console.rejections import Rejections
from kvgate.console.snapshot import Snapshot, decode

__all__ = ["Console", "LocalView", "Rejections", "Snapshot", "decode", "merged"]
