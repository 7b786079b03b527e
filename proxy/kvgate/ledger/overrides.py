"""Texts under names that hold for a while: how a change at run time is kept until it is over.

What they mean is for those who put and read them.
"""

from __future__ import annotations

OVERRIDES_MAX = 1_000
"""Names at a time: more than tenants that anyone changes by hand."""
TEXT_MAX = 10_000
"""Characters of one: a page of changes."""


class Overrides:
    """The texts of one process. Not safe for threads; nothing here waits."""

    def __init__(self) -> None:
        self._texts: dict[str, tuple[str, float]] = {}

    def put(self, name: str, text: str | None, ttl_s: float, now_s: float) -> None:
        """Replace the text of a name until `ttl_s` from now; None ends it.

        Raises ValueError for a time that is not ahead, a text that is too long, and for one name too many.
        """
        self._drop_ended(now_s)
        if text is None:
            self._texts.pop(name, None)
            return
        if not 0 < ttl_s < float("inf"):
            raise ValueError(f"an override ends some time ahead, not in {ttl_s} s")
        if len(text) > TEXT_MAX:
            raise ValueError(f"an override has at most {TEXT_MAX} characters, not {len(text)}")
        if name not in self._texts and len(self._texts) >= OVERRIDES_MAX:
            raise ValueError(f"there are {OVERRIDES_MAX} overrides already")
        self._texts[name] = text, now_s + ttl_s

    def current(self, now_s: float) -> dict[str, tuple[str, float]]:
        """Those that hold, with the seconds that are left."""
        self._drop_ended(now_s)
        return {name: (text, ends_s - now_s) for name, (text, ends_s) in self._texts.items()}

    def _drop_ended(self, now_s: float) -> None:
        self._texts = {name: held for name, held in self._texts.items() if held[1] > now_s}
