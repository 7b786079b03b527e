"""Who may look at the console, and who may change something through it.

Without an admin token everybody who reaches the port may look, and nobody may change anything. With one, both need
a login, or the token itself as `/admin` takes it. A browser sends its cookie along with whatever a page of ours or
of others asks for; so a change also needs a header, which a page of another origin can't add without being allowed
to, and the browser's own word that the page is of this origin.
"""

from __future__ import annotations

import hmac
import math
import time
from typing import TYPE_CHECKING

from kvgate.console.session import Signer, sessions_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request

HEADER = "x-kvgate-console"
"""Sent by the page with whatever changes something."""
SAFE = frozenset({"GET", "HEAD"})


class Access:
    def __init__(self, token: str | None, now: Callable[[], float] = time.time) -> None:
        """`now` is Unix time: sessions outlive a process."""
        self._token = token
        self._now = now
        self._signer = None if token is None else Signer.of_token(token)

    @property
    def needs_login(self) -> bool:
        return self._token is not None

    def looks_until(self, request: Request) -> float | None:
        """Until when this request's sender may look (Unix time; infinity without an end); None: not at all."""
        if self._signer is None or self._has_token(request):
            return math.inf
        signer, now = self._signer, self._now()
        header = "; ".join(request.headers.getlist("cookie"))
        ends = (signer.expires_at(session, now) for session in sessions_in(header))
        return max((end for end in ends if end is not None), default=None)

    def is_over(self, until: float) -> bool:
        return self._now() >= until

    def may_change(self, request: Request) -> bool:
        """Of somebody who may look: whether this request may change something."""
        if self._signer is None:
            return False
        return self._has_token(request) or is_of_our_page(request)

    def is_token(self, given: str) -> bool:
        """In the same time wherever the first difference is."""
        return self._token is not None and hmac.compare_digest(given.encode(), self._token.encode())

    def session(self, nonce: str) -> str:
        """A new session. Raises RuntimeError where nobody can log in."""
        if self._signer is None:
            raise RuntimeError("there is no token to log in with")
        return self._signer.session(self._now(), nonce)

    def _has_token(self, request: Request) -> bool:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        return self.is_token(given.strip()) and scheme.lower() == "bearer"


def is_of_our_page(request: Request) -> bool:
    """Sent by the console's own script, as far as a browser tells."""
    site = request.headers.get("sec-fetch-site", "same-origin")
    return HEADER in request.headers and site == "same-origin"
