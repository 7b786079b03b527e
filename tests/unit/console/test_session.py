"""Sessions and attempts: what a cookie proves, for how long, and how often a token may be tried."""

from __future__ import annotations

import pytest

from kvgate.console.attempts import BURST, BURST_ALL, EACH_S, PEERS_MAX, Attempts
from kvgate.console.session import COOKIE_CHARS_MAX, SESSION_S, SESSIONS_MAX, Signer, sessions_in, set_cookie

SIGNER = Signer.of_token("hush")
NOW = 1_900_000_000.0
SESSION = SIGNER.session(NOW, "abc")


def test_a_session_holds_for_its_time() -> None:
    assert SIGNER.expires_at(SESSION, NOW) == NOW + SESSION_S
    assert SIGNER.expires_at(SESSION, NOW + SESSION_S - 1) == NOW + SESSION_S
    assert SIGNER.expires_at(SESSION, NOW + SESSION_S) is None


def test_every_process_with_the_token_knows_it_and_no_other() -> None:
    assert Signer.of_token("hush").expires_at(SESSION, NOW) is not None
    assert Signer.of_token("hush2").expires_at(SESSION, NOW) is None


def test_the_token_is_not_in_it() -> None:
    token = "a-token-of-an-operator"
    signer = Signer.of_token(token)
    assert token not in signer.session(NOW, "abc")
    assert token.encode() not in signer.key


end, nonce, signature = SESSION.split(".")
LATER = str(int(end) + SESSION_S * 100)


@pytest.mark.parametrize(
    "forged",
    [
        "",
        ".",
        "..",
        SESSION[:-1],
        SESSION + "0",
        f"{LATER}.{nonce}.{signature}",
        f"{end}.other.{signature}",
        f"{end}.{nonce}.",
        f".{nonce}.{signature}",
        f"{end}{nonce}{signature}",
        "é" + SESSION,
        "x" * (COOKIE_CHARS_MAX + 1),
        # Signed by us, and still none: no time, one that is too far away.
        f"abc.def.{SIGNER._signature('abc.def')}",
        f"{LATER}.{nonce}.{SIGNER._signature(f'{LATER}.{nonce}')}",
    ],
)
def test_what_is_not_ours_is_none(forged: str) -> None:
    assert SIGNER.expires_at(forged, NOW) is None


def test_the_cookie() -> None:
    header = set_cookie(SESSION, secure=False)
    assert header.startswith(f"kvgate_console={SESSION}; ")
    assert {"Path=/console", "HttpOnly", "SameSite=Strict", f"Max-Age={SESSION_S}"} <= {*header.split("; ")}
    assert "Secure" not in header
    assert set_cookie(SESSION, secure=True).endswith("; Secure")
    assert "kvgate_console=; " in set_cookie("", secure=False)
    assert "Max-Age=0" in set_cookie("", secure=False)


@pytest.mark.parametrize(
    ("header", "session"),
    [
        ("", []),
        ("other=1", []),
        (f"kvgate_console={SESSION}", [SESSION]),
        (f"a=b; kvgate_console={SESSION}; c=d", [SESSION]),
        ("kvgate_console", []),
        ("kvgate_console=", []),
        (";;;===", []),
        # What other servers of the host have set.
        (f'p={{"a":1,"b":"x y"}}; kvgate_console={SESSION}', [SESSION]),
        (f"a[b]=1; x; a=é; path=/; expires=Thu; kvgate_console={SESSION}", [SESSION]),
        (f'kvgate_console="{SESSION}"', [SESSION]),
        # Another kvgate of the host.
        (f"kvgate_console=old; kvgate_console={SESSION}", ["old", SESSION]),
        ("; ".join(["kvgate_console=x"] * 9), ["x"] * SESSIONS_MAX),
    ],
)
def test_reading_it(header: str, session: list[str]) -> None:
    assert sessions_in(header) == session


def test_a_peer_has_five_tries_and_then_one_every_six_seconds() -> None:
    attempts = Attempts()
    for _ in range(BURST):
        assert attempts.retry_after_s("a", 100.0) == 0
        attempts.failed("a", 100.0)
    assert attempts.retry_after_s("a", 100.0) == pytest.approx(EACH_S)
    assert attempts.retry_after_s("b", 100.0) == 0, "another peer is not locked out"
    assert attempts.retry_after_s("a", 100.0 + EACH_S) == pytest.approx(0)
    attempts.failed("a", 100.0 + EACH_S)
    assert attempts.retry_after_s("a", 100.0 + EACH_S) == pytest.approx(EACH_S)
    assert attempts.retry_after_s("a", 100.0 + BURST * EACH_S * 2) == 0


def test_all_together_are_bounded_too_and_peers_do_not_pile_up() -> None:
    attempts = Attempts()
    for number in range(PEERS_MAX * 2):
        attempts.failed(f"peer {number}", 100.0)
    assert len(attempts._peers) == PEERS_MAX
    assert attempts.retry_after_s("somebody else", 100.0) > 0
    few = Attempts()
    for number in range(BURST_ALL - 1):
        few.failed(f"peer {number}", 100.0)
    assert few.retry_after_s("somebody else", 100.0) == 0
