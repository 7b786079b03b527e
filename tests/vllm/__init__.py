"""Acceptance against the real engine: vLLM's scheduler, KV cache and HTTP server, on a CPU.

The package is named like the thing it tests, and never imports it: vLLM lives in an environment of its own
(`environment.py`) and runs as a child process (`server.py`). Only `steplog.py` runs inside it, as a copy.
"""
