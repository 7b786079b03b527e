"""Numbers and engines in words, as the console's sentences have them. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvgate.console.snapshot import EngineShown

LISTED_MAX = 4
"""Names in a sentence; of more it says how many."""
WHY_CHARS_MAX = 100
"""Of what an engine said about itself, in a sentence; the page has all of it."""
UNREACHABLE = frozenset({"a connection was refused", "connection refused", "no answer to a probe", ""})
"""Why an engine is down, where nobody is there to answer."""

STATES = {
    "draining": "drains",
    "drained": "is drained",
    "unknown": "has not answered yet",
    "busy": "is busy by its own word",
    "suspended": "answers without tokens",
    "stalled": "has requests and makes no tokens",
    "error": "cannot be used",
    "up": "waits for the ledger",
    "trial": "waits for the ledger",
}
"""What an engine in each state does, where nothing more is to be said."""


def requests(count: int) -> str:
    return "1 request" if count == 1 else f"{count:,} requests"


def time(seconds: float) -> str:
    """To the second below two minutes, to the minute above."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds / 60), 60)
    return f"{minutes} h {rest} min" if minutes else f"{rest} min"


def percent(part: float, whole: float) -> str:
    """Rounded, but never to 0 or 100 where it is not quite so."""
    if whole <= 0:
        return "0 %"
    number = 100 * part / whole
    if 0 < number < 1:
        return "under 1 %"
    if 99 < number < 100:
        return "over 99 %"
    return f"{number:.0f} %"


def share(number: float) -> str:
    """As it is written in a policy."""
    return f"{100 * number:.4g} %"


def amount(count: int | None) -> str:
    """12,500 → 12.5k."""
    if count is None:
        return "–"
    for size, unit in ((1_000_000, "M"), (1_000, "k")):
        if count >= size:
            return f"{count / size:.4g}{unit}"
    return str(count)


def engine_name(engine_id: str) -> str:
    """Without the scheme, which is the same for all."""
    return engine_id.partition("://")[2] or engine_id


def engine_word(engine: EngineShown) -> str:
    """What an engine that takes no work does instead, to follow its name."""
    if engine.state == "down":
        return "is unreachable" if engine.why in UNREACHABLE else f"is down ({_short(engine.why)})"
    if engine.state == "error" and engine.why:
        return f"cannot be used ({_short(engine.why)})"
    return STATES.get(engine.state, f"is {_short(engine.state)}")


def listed(names: list[str]) -> str:
    """`a, b`, and of many the first ones and how many more."""
    more = len(names) - LISTED_MAX
    return ", ".join(names[:LISTED_MAX]) + (f" and {more} more" if more > 0 else "")


def _short(text: str) -> str:
    return text if len(text) <= WHY_CHARS_MAX else text[: WHY_CHARS_MAX - 1] + "…"
