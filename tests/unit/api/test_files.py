from __future__ import annotations

import resource

import pytest

from kvgate.api import files


class Limits:
    """The process's limit of open files, without touching it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, soft: int, hard: int) -> None:
        self.now = (soft, hard)
        monkeypatch.setattr(resource, "getrlimit", lambda _: self.now)
        monkeypatch.setattr(resource, "setrlimit", lambda _, pair: setattr(self, "now", pair))


UNBOUNDED = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("soft", "hard", "raised"),
    [
        (1024, 524288, 524288),
        (1024, 1024, 1024),
        (1024, UNBOUNDED, files.FILES_MAX),
        (1024, 1 << 30, files.FILES_MAX),
        (UNBOUNDED, UNBOUNDED, UNBOUNDED),
        (1 << 21, 1 << 30, 1 << 21),
    ],
)
def test_the_soft_limit_is_raised_and_never_lowered(
    soft: int, hard: int, raised: int, monkeypatch: pytest.MonkeyPatch
):
    limits = Limits(monkeypatch, soft, hard)
    files.raise_limit()
    assert limits.now == (raised, hard)


def test_clients_get_less_than_half(monkeypatch: pytest.MonkeyPatch):
    Limits(monkeypatch, 1024, 1024)
    assert 2 * files.client_connections_max() + files.SPARE == 1024
    Limits(monkeypatch, 16, 16)
    assert files.client_connections_max() == 1
