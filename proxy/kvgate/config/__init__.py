"""Settings and policy files."""

from kvgate.config.advice import warnings_of
from kvgate.config.redaction import redacted
from kvgate.config.settings import PoolSpec, Settings, Timeouts
from kvgate.config.sources import load, policy_path

__all__ = ["PoolSpec", "Settings", "Timeouts", "load", "policy_path", "redacted", "warnings_of"]
