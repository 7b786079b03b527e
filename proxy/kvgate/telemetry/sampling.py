"""At most so many lines a second, and an honest count of the rest."""

from __future__ import annotations

from dataclasses import dataclass

WINDOW_S = 1.0


@dataclass(slots=True)
class Sampler:
    """Lets the first `lines_max` of each second through. Given the time; reads no clock."""

    lines_max: int
    _window_end_s: float = 0.0
    _passed: int = 0
    _suppressed: int = 0

    def admits(self, now_s: float) -> bool:
        if now_s >= self._window_end_s:
            self._window_end_s, self._passed = now_s + WINDOW_S, 0
        if self._passed < self.lines_max:
            self._passed += 1
            return True
        self._suppressed += 1
        return False

    def owes_count(self, now_s: float) -> bool:
        """Whether some were not let through in a second that is over: so the count is told once for each."""
        return self._suppressed > 0 and now_s >= self._window_end_s

    def take_suppressed(self) -> int:
        """How many were not let through since this was last asked."""
        count, self._suppressed = self._suppressed, 0
        return count
