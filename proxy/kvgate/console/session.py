"""A login of the console: a cookie that proves that somebody had the admin token, and is not the token.

It holds when it ends, a random part, and a signature over both with a key that is derived from the token. So every
process with the token knows it, no list is kept, and another token ends all of them. The derivation is slow on
purpose (scrypt, RFC 7914): who steals a cookie can't try short tokens against it by the million. Pure but for the
random part, which is given.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass

COOKIE = "kvgate_console"
SESSION_S = 8 * 3600
"""A working day: then the token is asked for again."""
COOKIE_CHARS_MAX = 256
"""Of a cookie that is looked at; ours have 120."""
SESSIONS_MAX = 4
"""Of a request that are looked at: two consoles on one host, on different ports or paths, can give a browser two."""
_SALT = b"kvgate console session 1"


@dataclass(frozen=True, slots=True)
class Signer:
    """Signs sessions, and knows its own again."""

    key: bytes

    @classmethod
    def of_token(cls, token: str) -> Signer:
        """Takes some 50 ms and 16 MB: once, before anyone is served."""
        return cls(hashlib.scrypt(token.encode(), salt=_SALT, n=2**14, r=8, p=1, dklen=32))

    def session(self, now: float, nonce: str) -> str:
        """A session from now on (Unix time, seconds). `nonce` is random and has no dot."""
        claim = f"{int(now) + SESSION_S}.{nonce}"
        return f"{claim}.{self._signature(claim)}"

    def expires_at(self, session: str, now: float) -> float | None:
        """When a session ends (Unix time); None for one that is over, or none of ours."""
        if len(session) > COOKIE_CHARS_MAX or not session.isascii():
            return None
        claim, _, signature = session.rpartition(".")
        ours = hmac.compare_digest(signature, self._signature(claim))
        end = claim.partition(".")[0]
        if not ours or not end.isdecimal():
            return None
        return float(end) if now < float(end) <= now + SESSION_S + 1 else None

    def _signature(self, claim: str) -> str:
        return hmac.new(self.key, claim.encode(), hashlib.sha256).hexdigest()


def sessions_in(header: str) -> list[str]:
    """The sessions in a `Cookie` header. Whatever else is in it is passed over: browsers send along what any other
    server of the same host has set, on whichever port, in forms that no grammar has (RFC 6265, section 8.5).
    """
    pairs = (pair.strip().partition("=") for pair in header.split(";"))
    return [value.strip('"') for name, _, value in pairs if name == COOKIE and value][:SESSIONS_MAX]


def set_cookie(session: str, *, secure: bool) -> str:
    """The header that begins a session; with an empty one, ends it."""
    age_s = SESSION_S if session else 0
    end = "; Secure" if secure else ""
    return f"{COOKIE}={session}; Path=/console; Max-Age={age_s}; HttpOnly; SameSite=Strict{end}"
