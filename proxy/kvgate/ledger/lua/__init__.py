"""The text of the scripts: one for each verb, made of the shared parts and the verb's own file.

The bounds of the ledger are written into the text, not sent with every call: all processes of a deployment
have the same, and so share one cached script per verb. A script that a server does not know is sent whole once
(`scripts.LedgerScripts`). `README.md` in this folder maps every key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

_SHARED = (
    "prelude",
    "engines",
    "tenants",
    "budgets",
    "slots",
    "processes",
    "queue",
    "turns",
    "placement",
    "grants",
    "gone",
    "finish",
)
"""Every script begins with these, in this order."""

VERBS = (
    "beat",
    "reserve",
    "release",
    "cancel",
    "missing",
    "reprice",
    "observe",
    "forget",
    "void",
    "settle",
    "leave",
    "pump",
    "reap",
    "view",
    "verify",
    "inspect",
    "ahead",
    "set_tenants",
    "override",
    "overrides",
)


@dataclass(frozen=True, slots=True)
class Script:
    text: str
    sha: str
    """SHA-1 of the text, by which a server knows it."""


def read_scripts(bounds: Mapping[str, int]) -> Mapping[str, Script]:
    """The script of every verb; `bounds` become constants with capital names."""
    constants = "\n".join(f"local {name.upper()} = {value:d}" for name, value in bounds.items())
    shared = "\n".join([constants, *(_read(name) for name in _SHARED)])
    return {verb: _script(f"{shared}\nreturn (function()\n{_read(verb)}\nend)()") for verb in VERBS}


def _read(name: str) -> str:
    return (files(__name__) / f"{name}.lua").read_text(encoding="utf-8")


def _script(text: str) -> Script:
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())
