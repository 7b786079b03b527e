"""What happens when, in virtual time: a heap of happenings, and a clock that jumps from one to the next.

Equal times keep the order in which they were put there, so that a replay is the same each time.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count

Happening = Callable[..., None]


class Agenda:
    def __init__(self) -> None:
        self.now_s = 0.0
        self.happened = 0
        self._order = count()
        self._heap: list[tuple[float, int, Happening, tuple[object, ...]]] = []

    def at(self, time_s: float, happen: Happening, *arguments: object) -> None:
        """Have it happen then; what is over already happens next."""
        heappush(self._heap, (time_s, next(self._order), happen, arguments))

    def play(self, until_s: float) -> None:
        """Let happen what happens until then; then it is then."""
        heap = self._heap
        while heap and heap[0][0] <= until_s:
            self.now_s, _, happen, arguments = heappop(heap)
            self.happened += 1
            happen(*arguments)
        self.now_s = until_s

    def play_while(self, going: Callable[[], object]) -> None:
        """Go on as long as that is true and something happens."""
        while self._heap and going():
            self.play(self._heap[0][0])
