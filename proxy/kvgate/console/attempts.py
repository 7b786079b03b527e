"""How often the admin token may be tried at the login. Pure: the time is given.

A bucket for each peer, so that one who guesses does not lock out the others, and one for all peers together. Who is
over the bound is refused unread, with a right token too: otherwise there would be no bound.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

BURST, EACH_S = 5, 6.0
"""Of one peer: five slips of the keyboard, then one every six seconds."""
BURST_ALL, EACH_S_ALL = 50, 0.6
"""Of all together: ten people's worth."""
PEERS_MAX = 256
"""Remembered; of more, the one seen longest ago is forgotten, and the bound for all still holds."""


@dataclass(slots=True)
class Attempts:
    _peers: OrderedDict[str, float] = field(default_factory=OrderedDict[str, float])
    """When the bucket of a peer is empty again."""
    _all: float = 0.0

    def retry_after_s(self, peer: str, now_s: float) -> float:
        """How long this peer has to wait before it may try; 0 when it may now."""
        own = self._peers.get(peer, 0.0) - (BURST - 1) * EACH_S - now_s
        every = self._all - (BURST_ALL - 1) * EACH_S_ALL - now_s
        return max(own, every, 0.0)

    def failed(self, peer: str, now_s: float) -> None:
        """Take note of a wrong token."""
        self._peers[peer] = max(self._peers.pop(peer, 0.0), now_s) + EACH_S
        self._all = max(self._all, now_s) + EACH_S_ALL
        if len(self._peers) > PEERS_MAX:
            self._peers.popitem(last=False)
