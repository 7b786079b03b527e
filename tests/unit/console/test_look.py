"""From the process to the snapshot: engines, tenants, rejections, and several processes as one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import httpx

from kvgate.admin.state import AdminState, PoolState
from kvgate.admin.tenants import queue_view
from kvgate.assembly.file import FileState
from kvgate.config import load
from kvgate.config.overrides import Override
from kvgate.config.standing import Standing
from kvgate.console import LocalView, Rejections, Snapshot, decode, merged
from kvgate.console.engines import engines_shown
from kvgate.console.rejections import CHARS_MAX, KINDS_MAX
from kvgate.console.snapshot import ENGINES_SHOWN_MAX, PolicyShown, encode
from kvgate.console.tenants import Modes, tenants_shown
from kvgate.engines.health import State
from kvgate.engines.metrics import Gauges
from kvgate.engines.status import EngineStatus
from kvgate.ledger.base import Ask
from kvgate.ledger.memory import MemoryLedger
from kvgate.telemetry import Telemetry
from kvgate.telemetry.record import RequestRecord
from kvgate.workers.crew_view import CrewView
from kvgate_policies.forecast_fit import Z_DEFAULT
from kvgate_policies.occupancy import GRID, SCALE, Occupancy
from kvgate_policies.types import (
    Endpoint,
    EngineLimits,
    EngineShape,
    EngineUse,
    KVCost,
    LedgerView,
    Outcome,
    TenantRules,
    TenantUse,
)
from unit.ledger.pool import HandClock

LIMITS = EngineLimits("http://a:1", EngineShape(16, 4096), blocks=100, seqs=8, prefill_tokens=8192)
FULL = EngineUse(LIMITS, KVCost(90, 3, 512), reservations=3, pinned_by="r9")
CAPPED = TenantRules(limit=0.4)
POLICY = PolicyShown(None, None, "", None, "api_key", 0, "local")


@dataclass
class Hand:
    now_s: float = 50.0

    def monotonic(self) -> float:
        return self.now_s


STATUS = EngineStatus(
    "http://a:1",
    "http://a:1",
    State.UP,
    "probe good",
    LIMITS,
    Gauges(kv_usage=0.5, running=3.0, waiting=0.0),
    0.25,
)
UNKNOWN = EngineStatus("http://a:1", "http://a:1", State.UNKNOWN)


class Tenants:
    def __init__(self, book: Any) -> None:
        self.book = book

    def standing(self) -> list[Standing]:
        return [Standing("chat", None, Override.of_json({"weight": 6, "priority": "batch"}), 59.96)]

    async def change(
        self, tenant: str, pool: str | None, fields: Mapping[str, object], for_s: float, who: str
    ) -> None:
        raise AssertionError("who looks changes nothing")

    async def end(self, tenant: str, pool: str | None, who: str) -> bool:
        raise AssertionError("who looks changes nothing")


def state(view: LedgerView, statuses: list[EngineStatus], names: tuple[str, ...] = ("chat",)) -> AdminState:
    settings = load(None, {}, {"backends": ["http://a:1"]})
    book = replace(settings.book, names=names)
    file = FileState("p.yaml", "abc", "2030-01-31T12:00:00+00:00", "line 3: no")
    return AdminState(
        settings=settings,
        telemetry=Telemetry("default"),
        pools=lambda: [PoolState("default", ("alias",), lambda: view, lambda: statuses, lambda: ("m",))],
        ready=lambda: (True, {"draining": "yes"}),
        drain=_never,
        undrain=_never,
        tenants=Tenants(book),
        policy_file=lambda: file,
    )


async def _never(_: str, __: str) -> bool:
    raise AssertionError("nobody looks at a pool by draining it")


async def test_all_of_it() -> None:
    view = LedgerView(
        (FULL,),
        queued=2,
        oldest_wait_s=1.5,
        tenants=(TenantUse("chat", TenantRules(), blocks=90, blocks_limit=100, queued=2, oldest_wait_s=1.5),),
    )
    shown = await LocalView(state(view, [STATUS]), Rejections(Hand())).look()
    assert (shown.draining, shown.policy.refused, shown.policy.tenants) == (True, "line 3: no", 1)
    [pool] = shown.pools
    assert (pool.name, pool.aliases, pool.models, pool.enforced) == ("default", ("alias",), ("m",), 1)
    assert pool.headline.text.startswith("2 requests of tenant chat wait: the engine is full, 90 %")
    [engine] = pool.engines
    assert (engine.blocks, engine.blocks_reserved, engine.blocks_in_use) == (100, 90, 50)
    assert (engine.seqs, engine.seqs_reserved, engine.kept_for, engine.preemptions) == (8, 3, "r9", None)
    [change] = shown.changes
    assert (change.tenant, change.fields) == ("chat", {"weight": "6.0", "class": "batch"})
    assert decode(encode(shown)) == shown


def test_an_engine_that_nobody_knows_yet() -> None:
    [engine], more = engines_shown([UNKNOWN], LedgerView())
    assert (engine.accepting, engine.blocks, engine.blocks_in_use, more) == (False, 0, None, 0)


def test_a_forecast_has_two_parts_and_what_is_not_trusted_is_closed() -> None:
    wide = Occupancy((40 * SCALE,) * len(GRID), (25 * SCALE,) * len(GRID))
    limits = replace(LIMITS, blocks_usable=80)
    use = EngineUse(limits, KVCost(95, 3, 0, wide), reservations=3)
    [engine], _ = engines_shown([STATUS], LedgerView((use,)))
    expected, at_risk = engine.parts
    assert (expected.kind, expected.blocks, at_risk.kind) == ("expected", 40, "at_risk")
    assert 5 * min(Z_DEFAULT) < at_risk.blocks <= 5 * max(Z_DEFAULT) + 1, (
        "some deviations of five blocks each"
    )
    assert (engine.blocks, engine.blocks_open) == (100, 80)
    assert (engine.blocks_reserved, engine.blocks_taken) == (40, 40 + at_risk.blocks)


def test_only_clearly_more_than_ours_is_foreign() -> None:
    def foreign(running: float, waiting: float) -> bool:
        status = replace(STATUS, gauges=Gauges(running=running, waiting=waiting))
        [engine], _ = engines_shown([status], LedgerView((replace(FULL, reserved=KVCost(90, 20, 0)),)))
        return engine.foreign

    assert not foreign(20, 1), "of ours one waits for the next step"
    assert not foreign(40, 0), "nobody is held up"
    assert foreign(20, 20)


def test_too_many_engines_are_cut_and_those_without_work_are_not() -> None:
    statuses = [replace(STATUS, id=f"e{n}") for n in range(ENGINES_SHOWN_MAX + 7)]
    uses = tuple(
        EngineUse(replace(LIMITS, engine_id=one.id, accepting=one.id != "e105"), KVCost(0, 0, 0), 0)
        for one in statuses
    )
    shown, more = engines_shown(statuses, LedgerView(uses))
    assert (len(shown), more, shown[0].id) == (ENGINES_SHOWN_MAX, 7, "e105")


def waits_for(use: TenantUse, *engines: EngineUse) -> str | None:
    [shown] = tenants_shown(
        LedgerView(engines, tenants=(use,)), "default", state(LedgerView(), []).tenants.book
    )
    return shown.waits_for


def test_what_a_tenant_waits_for() -> None:
    waiting = TenantUse("x", CAPPED, blocks=33, blocks_limit=40, reservations=5, queued=1)
    assert waits_for(waiting, FULL) == "room", "one more of seven blocks fits into its limit"
    assert waits_for(replace(waiting, blocks=34), FULL) == "its own limit"
    assert waits_for(replace(waiting, queued=0), FULL) is None


def test_blocks_and_slots_may_be_free_and_prompts_at_their_bound() -> None:
    def held(blocks: int = 40, seqs: int = 4, prefill: int = 4096, **more: Any) -> EngineUse:
        return EngineUse(replace(LIMITS, **more), KVCost(blocks, seqs, prefill), reservations=4)

    waiting = TenantUse("x", TenantRules(), blocks=40, blocks_limit=100, reservations=4, queued=1)
    assert waits_for(waiting, held()) == "prompts"
    assert waits_for(waiting, held(prefill=8200)) == "prompts", "one may go beyond it, alone"
    assert waits_for(waiting, held(prefill=4095)) == "room", "another prompt of that length would be let in"
    assert waits_for(waiting, held(blocks=91)) == "room", "it needs ten"
    assert waits_for(waiting, held(seqs=8)) == "room"
    assert waits_for(waiting, held(blocks_usable=49)) == "room", "what is not trusted is not room"
    assert waits_for(waiting, replace(held(), pinned_by="r9")) == "room", "it is kept free for another"
    assert waits_for(waiting, held(accepting=False)) == "an engine"
    assert waits_for(replace(waiting, blocks_limit=45), held()) == "its own limit"
    assert waits_for(replace(waiting, blocks=0, reservations=0), held()) == "prompts", "the others' size"
    assert waits_for(replace(waiting, blocks=0, reservations=0), held(blocks=91)) == "room"


def test_prompts_are_the_reason_only_where_they_are_so_on_every_engine_with_room() -> None:
    busy = EngineUse(LIMITS, KVCost(40, 4, 8000), reservations=4)
    full = EngineUse(replace(LIMITS, engine_id="b"), KVCost(99, 4, 0), reservations=4)
    idle = EngineUse(replace(LIMITS, engine_id="c"), KVCost(40, 4, 0), reservations=4)
    waiting = TenantUse("x", TenantRules(), blocks=40, blocks_limit=300, reservations=4, queued=1)
    assert waits_for(waiting, busy, full) == "prompts"
    assert waits_for(waiting, busy, idle) == "room", "it is larger than most"
    assert waits_for(waiting, EngineUse(LIMITS, KVCost(0, 0, 0), 0)) == "room"


async def test_an_engine_whose_prompts_keep_others_out_is_said_to_be() -> None:
    ledger = MemoryLedger(HandClock())
    await ledger.observe(LIMITS)
    for name in ("r1", "r2", "r3"):
        await ledger.reserve(Ask(name, "chat", {LIMITS.shape: KVCost(10, 1, 3000)}, 10))
    view = ledger.view()
    [told] = queue_view("default", view).tenants
    assert told.waits_for == "prompts"
    [pool] = (await LocalView(state(view, [STATUS]), Rejections(Hand())).look()).pools
    assert pool.headline.text.startswith(
        "1 request of tenant chat waits: the engine is at work on as many prompts"
    )
    assert pool.tenants[0].waits_for == "prompts"


async def test_who_waits_for_prompts_waits_in_turn() -> None:
    book = state(LedgerView(), [], names=("chat", "jobs")).tenants.book
    book = book.with_overrides({"chat": Override.of_json({"priority": "interactive"})})
    at_prompts = EngineUse(LIMITS, KVCost(40, 4, 8000), reservations=4)
    uses = tuple(TenantUse(name, TenantRules(), blocks_limit=100, queued=1) for name in ("chat", "jobs"))
    shown = tenants_shown(LedgerView((at_prompts,), tenants=uses), "default", book)
    assert [(one.waits_for, one.after) for one in shown] == [("prompts", ()), ("prompts", ("interactive",))]


async def test_shares_are_shares_of_all_engines_also_of_those_that_take_no_work() -> None:
    drained = EngineUse(replace(LIMITS, engine_id="http://b:1", accepting=False), KVCost(0, 0, 0), 0)
    holds = TenantUse("chat", CAPPED, blocks=75, blocks_limit=120, reservations=5, queued=1)
    view = LedgerView((FULL, drained), queued=1, tenants=(holds,))
    [shown] = (await LocalView(state(view, []), Rejections(Hand())).look()).pools
    assert shown.blocks == 200
    assert waits_for(holds, FULL, drained) == "room"
    assert waits_for(replace(holds, blocks=110), FULL, drained) == "its own limit"
    assert waits_for(replace(holds, blocks_limit=200), FULL, drained) == "room"
    told = queue_view("default", replace(view, tenants=(replace(holds, blocks=110),)))
    assert told.tenants[0].waits_for == "its own limit", "the same words everywhere"


def test_an_engine_with_nothing_left_on_it_is_drained() -> None:
    def shown(reservations: int, running: float | None) -> tuple[str, str]:
        status = replace(STATUS, state=State.DRAINING, why="x", gauges=Gauges(running=running))
        use = EngineUse(replace(LIMITS, accepting=False), KVCost(0, 0, 0), reservations)
        [engine], _ = engines_shown([status], LedgerView((use,)))
        return engine.state, engine.why

    assert shown(1, 0.0)[0] == "draining"
    assert shown(0, 1.0)[0] == "draining", "whoever sent it: it runs"
    assert shown(0, 0.0)[0] == shown(0, None)[0] == "drained"
    assert shown(0, 0.0)[1].startswith("an operator told kvgate to send it no new work")


def test_who_is_served_before_whom() -> None:
    book = state(LedgerView(), [], names=("chat", "jobs", "night", "poor")).tenants.book
    book = book.with_overrides(
        {
            "chat": Override.of_json({"priority": "interactive"}),
            "night": Override.of_json({"priority": "batch"}),
            "poor": Override.of_json({"priority": "batch"}),
        }
    )

    def turns(*uses: TenantUse) -> dict[str, tuple[tuple[str, ...], bool]]:
        view = LedgerView((FULL,), tenants=uses)
        return {one.name: (one.after, one.below_guarantee) for one in tenants_shown(view, "default", book)}

    chat, jobs, night, poor = (
        TenantUse(name, TenantRules(), blocks_limit=100, queued=1)
        for name in ("chat", "jobs", "night", "poor")
    )
    poor = replace(poor, blocks=9, blocks_guaranteed=10)
    assert turns(chat, jobs, night, poor) == {
        "chat": ((), False),
        "jobs": (("interactive",), False),
        "night": (("interactive", "standard"), False),
        "poor": ((), True),
    }
    assert turns(replace(chat, queued=0, blocks=90), night) == {"chat": ((), False), "night": ((), False)}
    assert turns(replace(poor, queued=0)) == {"poor": ((), False)}, "it wants no more"
    assert turns(replace(poor, blocks=10)) == {"poor": ((), False)}


def test_ages_are_ordered_and_the_busy_come_first() -> None:
    uses = (
        TenantUse("idle", CAPPED),
        TenantUse("holds", CAPPED, blocks=5, reservations=1),
        TenantUse("waits", CAPPED, queued=1, oldest_wait_s=1.0),
        TenantUse("waits long", CAPPED, queued=1, oldest_wait_s=9.0),
    )
    shown = tenants_shown(LedgerView((FULL,), tenants=uses), "default", state(LedgerView(), []).tenants.book)
    assert [one.name for one in shown] == ["waits long", "waits", "holds", "idle"]
    assert shown[0].limit == 0.4, "of one who left the policy, what the ledger knows"


def test_modes_are_counted_once_for_a_policy() -> None:
    book = state(LedgerView(), [], names=("a", "b", "c")).tenants.book
    observing = book.with_overrides({"b": Override.of_json({"mode": "observe"})})
    modes = Modes()
    assert modes.of(book, "p") == {"enforce": 3}
    assert modes.of(observing, "p") == {"enforce": 2, "observe": 1}
    assert modes.of(observing, "p") is modes.of(observing, "p")


# Rejections


def refused(tenant: str = "chat", **more: Any) -> RequestRecord:
    values: dict[str, Any] = {
        "endpoint": Endpoint.CHAT,
        "pool": "p",
        "outcome": Outcome.REJECTED_QUEUE_FULL,
        "reason": "queue_full",
        "status": 429,
        "told": "no room",
    }
    return RequestRecord("r1", tenant, **values | more)


def test_a_flood_of_one_kind_hides_no_other() -> None:
    clock = Hand()
    rejections = Rejections(clock)
    rejections.ended(refused("quiet"))
    for _ in range(1000):
        clock.now_s += 0.01
        rejections.ended(refused("noisy"))
    noisy, quiet = rejections.shown()
    assert (noisy.tenant, noisy.count, noisy.age_s) == ("noisy", 1000, 0.0)
    assert (quiet.tenant, quiet.count, quiet.age_s) == ("quiet", 1, 10.0)
    assert (quiet.status, quiet.reason, quiet.told) == (429, "queue_full", "no room")


def test_kinds_and_messages_are_bounded() -> None:
    rejections = Rejections(Hand())
    for number in range(KINDS_MAX + 20):
        rejections.ended(refused(f"t{number}", told="x" * 10_000))
    shown = rejections.shown()
    assert len(shown) == KINDS_MAX
    assert shown[0].tenant == f"t{KINDS_MAX + 19}"
    assert {len(one.told) for one in shown} == {CHARS_MAX}


def test_what_is_no_rejection_is_not_kept() -> None:
    rejections = Rejections(Hand())
    rejections.ended(refused(outcome=Outcome.SERVED))
    rejections.ended(refused(outcome=Outcome.CLIENT_GONE))
    rejections.ended(refused(outcome=Outcome.UPSTREAM_FAILED))
    rejections.ended(refused(outcome=Outcome.REJECTED_BAD_REQUEST, endpoint=None))
    rejections.ended(refused(outcome=None))
    assert rejections.shown() == ()
    rejections.ended(refused(outcome=Outcome.EVICTED_QUEUE_TIMEOUT))
    rejections.ended(refused(outcome=Outcome.REJECTED_DRAINING, endpoint=None, reason="draining"))
    assert [one.reason for one in rejections.shown()] == ["draining", "queue_full"]


def test_what_a_client_is_told_is_in_no_log_line() -> None:
    assert "told" not in refused().as_log_fields()


# Several processes


def told(*rejections: RequestRecord, ready: bool = True) -> Snapshot:
    kept = Rejections(Hand())
    for one in rejections:
        kept.ended(one)
    base = Snapshot(
        "1", ready=ready, draining=False, pools=(), changes=(), rejections=kept.shown(), policy=POLICY
    )
    return decode(encode(base))


def test_several_processes_are_one() -> None:
    one = merged(
        {
            "worker 1": told(refused("a"), refused("b")),
            "worker 2": None,
            "worker 3": told(refused("a"), ready=False),
        }
    )
    assert one is not None
    assert (one.ready, one.silent) == (False, ("worker 2",))
    assert {rejection.tenant: rejection.count for rejection in one.rejections} == {"a": 2, "b": 1}
    assert merged({"worker 1": None}) is None


async def test_a_crew_is_asked_with_its_token() -> None:
    asked: list[tuple[str, str, dict[str, str]]] = []

    async def ask_all(method: str, path: str, headers: Any) -> dict[str, httpx.Response | None]:
        asked.append((method, path, dict(headers)))
        return {
            "worker 1": httpx.Response(401, json={}),
            "worker 2": httpx.Response(200, content=b'{"version": 1}'),
            "worker 3": httpx.Response(200, content=encode(told(refused("a")))),
            "worker 4": None,
        }

    shown = await CrewView(ask_all, "hush").look()
    assert asked == [("GET", "/console/snapshot", {"authorization": "Bearer hush"})]
    assert shown is not None
    assert shown.silent == ("worker 1", "worker 2", "worker 4")
    assert json.loads(encode(shown))["rejections"][0]["tenant"] == "a"
