"""The command line. Modules that take long to import are imported by the commands that need them."""

from kvgate.cli.main import app, main

__all__ = ["app", "main"]
