"""Tenants as an operator writes them: the book of a policy file."""

from __future__ import annotations

import tempfile
import textwrap
from collections.abc import Mapping
from pathlib import Path

from kvgate.config import load
from kvgate.config.tenants import TenantBook

POOL = "tiny"


def book_of(text: str, env: Mapping[str, str] | None = None) -> TenantBook:
    """The book of a policy with the pool `tiny`; `text` has everything but `version` and `pools`."""
    head = f'version: 1\npools: {{{POOL}: {{backends: ["http://127.0.0.1:1"]}}}}\n'
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "policy.yaml"
        path.write_text(head + textwrap.dedent(text))
        return load(path, dict(env or {}), {}).book
