"""A request may make itself less urgent than its tenant is, and give up earlier; never the other way round."""

from __future__ import annotations

from typing import Any

import pytest

from kvgate.admission import Answer, Reason
from kvgate.api.wishes import Wishes, wishes_of
from kvgate_policies.types import Mode, PriorityClass, TenantPolicy

INTERACTIVE, STANDARD, BATCH = PriorityClass.INTERACTIVE, PriorityClass.STANDARD, PriorityClass.BATCH


def wishes(priority: PriorityClass = STANDARD, mode: Mode = "enforce", **headers: bytes) -> Wishes | Answer:
    names = {"cls": b"x-kvgate-class", "deadline": b"x-kvgate-deadline-ms"}
    return wishes_of([(names[n], v) for n, v in headers.items()], TenantPolicy(priority=priority, mode=mode))


@pytest.mark.parametrize(
    ("tenants", "asked", "got"),
    [
        (INTERACTIVE, b"batch", BATCH),
        (INTERACTIVE, b"standard", STANDARD),
        (INTERACTIVE, b"interactive", INTERACTIVE),
        (STANDARD, b"interactive", STANDARD),
        (BATCH, b"interactive", BATCH),
        (BATCH, b" Standard ", BATCH),
    ],
)
def test_a_class_is_lowered_and_never_raised(tenants: PriorityClass, asked: bytes, got: PriorityClass):
    found = wishes(tenants, cls=asked)
    assert isinstance(found, Wishes)
    assert found.priority is got
    assert found.priority_asked == asked.decode().strip().lower()


def test_nothing_asked_is_the_tenants_own():
    assert wishes(BATCH) == Wishes(BATCH)


@pytest.mark.parametrize(
    ("asked", "seconds"), [(b"1500", 1.5), (b"0", 0.0), (b"999999999999", 999999999.999)]
)
def test_a_deadline_is_in_milliseconds(asked: bytes, seconds: float):
    assert wishes(deadline=asked) == Wishes(STANDARD, seconds)


@pytest.mark.parametrize(
    "headers",
    [
        {"cls": b"urgent"},
        {"cls": b""},
        *({"deadline": d} for d in (b"", b"-1", b"1.5", b"1e3", b"soon", b"1" * 13)),
    ],
)
def test_what_cannot_be_read_is_refused_only_where_the_policy_is_enforced(headers: dict[str, Any]):
    answer = wishes(**headers)
    assert isinstance(answer, Answer)
    assert answer.reason is Reason.BAD_REQUEST
    assert answer.param in {"x-kvgate-class", "x-kvgate-deadline-ms"}
    assert wishes(mode="observe", **headers) == Wishes(STANDARD)
    assert wishes(mode="off", **headers) == Wishes(STANDARD)
