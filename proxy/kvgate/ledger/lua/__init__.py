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

from kvgate_policies.forecast_fit import Z_DEFAULT
from kvgate_policies.occupancy import SCALE
from kvgate_policies.placement import PREFER_MARGIN

_FIRST = ("prelude", "forecasts", "engines")
_THEN = (
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
"""Every script begins with these, in this order. The first ones stand around a function that has the rest: what they
name is bound to it once, and not again to each function in it, which is a seventh of the time of a small call. It may
use 60 of those names, so no more than these three fit outside.
"""

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
    """The script of every verb; `bounds` become constants with capital names, as does what the policies say."""
    constants = [f"local {name.upper()} = {value:d}" for name, value in bounds.items()]
    first = "\n".join([*constants, _policies(), *map(_read, _FIRST)])
    then = "\n".join(map(_read, _THEN))
    return {verb: _script(_around(first, _around(then, _read(verb)))) for verb in VERBS}


def _around(text: str, inner: str) -> str:
    """The inner text as a function at the end of another, called at once: what it names is its own."""
    return f"{text}\nreturn (function()\n{inner}\nend)()"


def _policies() -> str:
    """What all ledgers decide by, from where it is told; the same doubles, digit by digit."""
    deviations = ", ".join(f"{each:.17g}" for each in Z_DEFAULT)
    return (
        f"local POLICIES = {{ scale = {SCALE:d}, prefer_margin = {PREFER_MARGIN:.17g}, "
        f"deviations = {{ {deviations} }} }}"
    )


def _read(name: str) -> str:
    return (files(__name__) / f"{name}.lua").read_text(encoding="utf-8")


def _script(text: str) -> Script:
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())
