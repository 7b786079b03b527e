"""Which flow is due? Tags, virtual times and ages, kept in order (`kvgate_policies.fairness` has the rules).

A flow is *in the walk*, or out of it: it has nothing that could start on an accepting engine, or it is *suspended*
because its first request would take its tenant above its limit. It enters with `start_tag`, each time.

The order: flows of tenants below their guarantee, by class, then by tag, then by name; then the other flows, class
by class in the order of `levels_in_turn`, in each by tag, then by name.

Costs: one insertion into a sorted list for a flow that enters, leaves, or is charged; a tag that is at or below its
class's virtual time is not kept, so that the memory is that of the flows which wait or are ahead.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING

from kvgate_policies.fairness import LEVELS, levels_in_turn, overtaken_after, start_tag

if TYPE_CHECKING:
    from collections.abc import Collection

FlowKey = tuple[int, str]
"""The level of its class (`fairness.LEVELS`), and the tenant."""

BY_GUARANTEE, BY_CLASS = 0, 1
KEPT_TAGS_MIN = 64
"""Tags of flows out of the walk below which none are looked for to be forgotten."""


class Turns:
    """Not safe for threads; nothing here waits."""

    def __init__(self) -> None:
        self.virtual = [0.0] * len(LEVELS)
        self.overtaken: tuple[int, ...] = (0,) * len(LEVELS)
        self.moved = False
        """Some flow came back or changed its tier: whoever sets this off runs the grant loop, which clears it."""
        self._listed: dict[FlowKey, tuple[int, float]] = {}
        """In the walk: tier and tag."""
        self._order: tuple[list[list[tuple[float, str]]], ...] = ([[] for _ in LEVELS], [[] for _ in LEVELS])
        """By tier and level: tags and tenants, sorted."""
        self._lists = self._in_turn()
        """All of them, with tier and level, in the order in which they are due."""
        self._suspended: set[FlowKey] = set()
        self._below: set[str] = set()
        self._tags: dict[FlowKey, float] = {}
        """Of flows out of the walk, where above the virtual time."""
        self._sweep_at = KEPT_TAGS_MIN

    # the order

    def first(self, done: Collection[FlowKey]) -> FlowKey | None:
        """The flow that is due, apart from those."""
        for _, level, flows in self._lists:
            for _, tenant in flows:
                flow = level, tenant
                if flow not in done:
                    return flow
        return None

    def ahead(self, flow: FlowKey) -> int | None:
        """How many flows come before it; None when it is out of the walk."""
        listed = self._listed.get(flow)
        if listed is None:
            return None
        count = 0
        for tier, level, flows in self._lists:
            if (tier, level) == (listed[0], flow[0]):
                return count + bisect_left(flows, (listed[1], flow[1]))
            count += len(flows)
        raise AssertionError(flow)

    def tag(self, flow: FlowKey) -> float:
        """Its start tag; out of the walk, the one with which it would enter."""
        listed = self._listed.get(flow)
        if listed is not None:
            return listed[1]
        return start_tag(self._tags.get(flow, 0.0), self.virtual[flow[0]])

    def __contains__(self, flow: FlowKey) -> bool:
        return flow in self._listed

    # flows come and go

    def enter(self, flow: FlowKey) -> None:
        """Its first request that could start is here."""
        tag = self.tag(flow)
        self._tags.pop(flow, None)
        self._list(flow, tag)

    def leave(self, flow: FlowKey) -> None:
        """It has nothing any more that could start."""
        if flow in self._suspended:
            self._suspended.discard(flow)
        else:
            self._keep_tag(flow, self._unlist(flow))

    def suspend(self, flow: FlowKey) -> None:
        """Its tenant is at its limit."""
        self._keep_tag(flow, self._unlist(flow))
        self._suspended.add(flow)

    def readmit(self, flow: FlowKey) -> None:
        """Another request is its first, or its tenant has room again; nothing when it was not suspended."""
        if flow in self._suspended:
            self._suspended.discard(flow)
            self.enter(flow)
            self.moved = True

    def readmit_tenant(self, tenant: str) -> None:
        if self._suspended:
            for flow in _flows_of(tenant):
                self.readmit(flow)

    def readmit_all(self) -> None:
        for flow in list(self._suspended):
            self.readmit(flow)

    def set_below(self, tenant: str, *, below: bool) -> None:
        """Whether the tenant holds less than its guarantee."""
        if below == (tenant in self._below):
            return
        if below:
            self._below.add(tenant)
        else:
            self._below.discard(tenant)
        for flow in _flows_of(tenant):
            if flow in self._listed:
                self._list(flow, self._unlist(flow))
                self.moved = True

    # charges

    def grant(self, flow: FlowKey, charged: float) -> None:
        """A request of the flow that is in the walk has its turn."""
        tier, tag = self._listed[flow]
        level = flow[0]
        by_guarantee = tier == BY_GUARANTEE
        if not by_guarantee:
            self.virtual[level] = start_tag(tag, self.virtual[level])
        first, second = self._order
        waiting = [bool(one or other) for one, other in zip(first, second, strict=True)]
        overtaken = overtaken_after(self.overtaken, level, waiting, by_guarantee=by_guarantee)
        if overtaken != self.overtaken:
            self.overtaken = overtaken
            self._lists = self._in_turn()
        self._unlist(flow)
        self._list(flow, tag + charged)

    def correct(self, flow: FlowKey, difference: float) -> None:
        """A request of the flow took more than it was charged (negative: less)."""
        tag = self.tag(flow) + difference
        if flow in self._listed:
            self._unlist(flow)
            self._list(flow, tag)
        else:
            self._keep_tag(flow, tag)

    def _in_turn(self) -> list[tuple[int, int, list[tuple[float, str]]]]:
        levels = range(len(LEVELS))
        by_guarantee = [(BY_GUARANTEE, level, self._order[BY_GUARANTEE][level]) for level in levels]
        aged = levels_in_turn(self.overtaken)
        return by_guarantee + [(BY_CLASS, level, self._order[BY_CLASS][level]) for level in aged]

    def _list(self, flow: FlowKey, tag: float) -> None:
        tier = BY_GUARANTEE if flow[1] in self._below else BY_CLASS
        self._listed[flow] = tier, tag
        insort(self._order[tier][flow[0]], (tag, flow[1]))

    def _unlist(self, flow: FlowKey) -> float:
        tier, tag = self._listed.pop(flow)
        flows = self._order[tier][flow[0]]
        del flows[bisect_left(flows, (tag, flow[1]))]
        return tag

    def _keep_tag(self, flow: FlowKey, tag: float) -> None:
        if tag > self.virtual[flow[0]]:
            self._tags[flow] = tag
        else:
            self._tags.pop(flow, None)
        if len(self._tags) >= self._sweep_at:
            self._tags = {key: tag for key, tag in self._tags.items() if tag > self.virtual[key[0]]}
            self._sweep_at = max(KEPT_TAGS_MIN, 2 * len(self._tags))

    def __repr__(self) -> str:
        return f"<Turns {len(self._listed)} flows in the walk, {len(self._suspended)} at their limit>"


def _flows_of(tenant: str) -> list[FlowKey]:
    return [(level, tenant) for level in range(len(LEVELS))]
