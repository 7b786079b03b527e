"""Settings and policy files."""

from kvgate.config.settings import Settings, Timeouts

__all__ = ["Settings", "Timeouts"]
