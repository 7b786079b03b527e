"""What a client may ask of its own place in the queue: a lower class, a shorter wait. Never more than it has."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kvgate.admission import Answer, said
from kvgate_policies.types import CLASSES, PriorityClass, TenantPolicy

CLASS_HEADER = b"x-kvgate-class"
DEADLINE_HEADER = b"x-kvgate-deadline-ms"
DIGITS_MAX = 12
"""Of the milliseconds; thirty years."""


@dataclass(frozen=True, slots=True)
class Wishes:
    priority: PriorityClass
    deadline_s: float | None = None
    """The longest wait in the queue, from arrival."""
    priority_asked: PriorityClass | None = None
    """What was said, if anything: `priority` is never above the tenant's."""


def wishes_of(headers: Iterable[tuple[bytes, bytes]], policy: TenantPolicy) -> Wishes | Answer:
    """The class and the deadline of a request; a higher class than the tenant's counts as the tenant's.

    What can't be read is refused, but only where the policy is enforced.
    """
    said_here = {name: value for name, value in headers if name in {CLASS_HEADER, DEADLINE_HEADER}}
    if not said_here:
        return Wishes(policy.priority)
    wishes = _read(said_here.get(CLASS_HEADER), said_here.get(DEADLINE_HEADER), policy)
    return Wishes(policy.priority) if isinstance(wishes, Answer) and policy.mode != "enforce" else wishes


def _read(priority: bytes | None, deadline: bytes | None, policy: TenantPolicy) -> Wishes | Answer:
    asked: PriorityClass | None = None
    if priority is not None:
        name = priority.decode("latin-1").strip().lower()
        if name not in CLASSES:
            return said.unknown_class(", ".join(CLASSES))
        asked = PriorityClass(name)
    digits = None if deadline is None else deadline.strip(b" \t")
    if digits is not None and not (digits.isdigit() and len(digits) <= DIGITS_MAX):
        return said.unreadable_deadline()
    deadline_s = None if digits is None else int(digits) / 1000
    return Wishes(max(asked or policy.priority, policy.priority, key=CLASSES.index), deadline_s, asked)
