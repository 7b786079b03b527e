"""kvgate's own endpoints, on a second port: probes, metrics, the ledger and the engines."""

from kvgate.admin.app import admin_app
from kvgate.admin.state import AdminState

__all__ = ["AdminState", "admin_app"]
