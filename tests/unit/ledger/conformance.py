"""What every ledger promises, sentence by sentence of its contract.

A ledger joins by a subclass in a test module of its own that says how to open one:

    class TestMyLedger(LedgerConformance):
        @asynccontextmanager
        async def open(self, **bounds): ...

`bounds` are `bypass_max`, `scan_depth` and `grants_per_call_max`. A ledger that pushes its grants over a
network also overrides `settle`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from kvgate.ledger.base import Ask, Grant, Refusal
from kvgate_policies.types import KVCost
from unit.ledger.pool import OTHER_SHAPE, SHAPE, Probe, ask, cost, engine, turns

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager

    from kvgate.ledger.base import Ledger


class LedgerConformance:
    def open(self, **bounds: int) -> AbstractAsyncContextManager[Ledger]:
        raise NotImplementedError

    async def settle(self) -> None:
        """Return when every decision made so far has reached its waiter."""
        await turns()

    @pytest.fixture
    async def probe(self) -> AsyncIterator[Probe]:
        """A ledger with one engine `a` of 100 blocks."""
        async with self.open() as ledger:
            await ledger.observe(engine())
            yield Probe(ledger, self.settle)

    # reserve

    async def test_room_is_granted_at_once_with_its_engine_and_price(self, probe):
        grant = await probe.start(ask("r", blocks=30, prefill_tokens=50))
        assert (grant.request_id, grant.engine_id, grant.cost) == ("r", "a", cost(30, 1, 50))
        assert probe.use().reserved == cost(30, 1, 50)
        assert probe.use().reservations == 1

    async def test_what_does_not_fit_waits_and_takes_nothing_meanwhile(self, probe):
        await probe.start(ask("big", blocks=80))
        await probe.wait(ask("next", blocks=30, prefill_tokens=10))
        assert probe.use().reserved == cost(80)
        assert probe.ledger.view().queued == 1

    @pytest.mark.parametrize(
        "full",
        [ask("x", blocks=95), ask("x", seqs=16), ask("x", prefill_tokens=995)],
        ids=["blocks", "seqs", "prefill_tokens"],
    )
    async def test_each_part_of_the_price_is_checked(self, probe, full):
        await probe.start(full)
        await probe.wait(ask("r", blocks=10, seqs=1, prefill_tokens=10))

    async def test_all_parts_are_taken_together_or_none(self, probe):
        """A waiter must not sit on slots while it waits for blocks."""
        await probe.start(ask("x", blocks=95, seqs=1))
        await probe.wait(ask("r", blocks=10, seqs=15))
        await probe.start(ask("small", blocks=5, seqs=15))

    async def test_an_engine_is_filled_to_the_last_block_and_no_further(self, probe):
        await probe.start(ask("r1", blocks=60))
        await probe.start(ask("r2", blocks=40))
        await probe.wait(ask("r3", blocks=1))

    async def test_an_empty_engine_takes_whatever_its_capacity_covers(self, probe):
        await probe.start(ask("whole", blocks=100, seqs=16, prefill_tokens=50_000))

    async def test_a_prompt_above_the_prefill_bound_goes_alone(self, probe):
        await probe.start(ask("long", prefill_tokens=5000))
        ticket = await probe.wait(ask("short", prefill_tokens=1))
        await probe.ledger.renew("long", cost(10, 1, 0))
        assert await probe.started(ticket) == ["short"]

    async def test_fit_is_asked_per_engine_never_of_the_pool(self, probe):
        await probe.ledger.observe(engine("b"))
        assert await probe.ledger.reserve(ask("r", blocks=150)) is Refusal.NEVER_FITS
        await probe.start(ask("r1", blocks=60))
        await probe.start(ask("r2", blocks=60))
        await probe.wait(ask("r3", blocks=60))

    async def test_the_price_of_the_engines_shape_counts(self, probe):
        await probe.ledger.observe(engine("b", shape=OTHER_SHAPE, blocks=50))
        costs = {SHAPE: cost(200), OTHER_SHAPE: cost(40)}
        ticket = await probe.ledger.reserve(Ask("r", "t", costs, 10))
        decision = await probe.decision(ticket)
        assert isinstance(decision, Grant)
        assert (decision.engine_id, decision.cost) == ("b", cost(40))

    async def test_an_engine_of_a_shape_without_a_price_is_not_considered(self, probe):
        await probe.ledger.observe(engine("b", shape=OTHER_SHAPE))
        await probe.start(ask("r1", blocks=90))
        await probe.wait(ask("r2", blocks=90))
        assert probe.use("b").reservations == 0

    async def test_avoided_engines_are_not_chosen(self, probe):
        await probe.ledger.observe(engine("b"))
        for number in range(4):
            grant = await probe.start(ask(f"r{number}", avoid=frozenset({"a"})))
            assert grant.engine_id == "b"
        await probe.start(ask("large", blocks=90, avoid=frozenset({"b"})))
        await probe.wait(ask("again", blocks=90, avoid=frozenset({"b"})))

    async def test_equal_engines_share_the_load(self, probe):
        await probe.ledger.observe(engine("b"))
        for number in range(8):
            await probe.start(ask(f"r{number}"))
        assert (probe.use("a").reservations, probe.use("b").reservations) == (4, 4)

    async def test_equal_engines_take_turns(self, probe):
        for engine_id in "bc":
            await probe.ledger.observe(engine(engine_id))
        chosen = []
        for number in range(6):
            chosen.append((await probe.start(ask(f"r{number}"))).engine_id)
            await probe.ledger.release(f"r{number}")
        assert chosen[:3] == chosen[3:]
        assert sorted(chosen[:3]) == ["a", "b", "c"]

    # refusals

    async def test_no_engine_at_all(self):
        async with self.open() as ledger:
            assert await ledger.reserve(ask("r")) is Refusal.NO_ENGINE

    async def test_an_engine_that_does_not_accept_is_waited_for(self, probe):
        await probe.ledger.observe(engine(accepting=False))
        ticket = await probe.wait(ask("r"))
        await probe.ledger.observe(engine())
        assert (await ticket.granted()).engine_id == "a"

    async def test_no_engine_but_avoided_ones(self, probe):
        assert await probe.ledger.reserve(ask("r", avoid=frozenset({"a"}))) is Refusal.NO_ENGINE
        assert await probe.ledger.reserve(ask("r", seq=7, avoid=frozenset({"a"}))) is Refusal.NO_ENGINE

    async def test_one_that_queues_again_waits_through_a_pause_of_the_pool(self, probe):
        """Its engine said it was full for a moment; that is no failure."""
        grant = await probe.start(ask("r"))
        await probe.ledger.release("r")
        await probe.ledger.observe(engine(accepting=False))
        ticket = await probe.wait(ask("r", seq=grant.seq))
        await probe.ledger.observe(engine(accepting=True))
        assert await probe.started(ticket) == ["r"]

    @pytest.mark.parametrize("too_large", [ask("r", blocks=101), ask("r", seqs=17)], ids=["blocks", "seqs"])
    async def test_larger_than_every_engine_is_never_granted_and_never_queued(self, probe, too_large):
        assert await probe.ledger.reserve(too_large) is Refusal.NEVER_FITS
        probe.assert_empty()

    async def test_never_is_said_of_all_known_engines_not_only_of_those_that_accept(self, probe):
        await probe.ledger.observe(engine("big", blocks=500, accepting=False))
        ticket = await probe.wait(ask("r", blocks=400))
        await probe.ledger.observe(engine("big", blocks=500, accepting=True))
        assert await probe.started(ticket) == ["r"]

    async def test_never_is_said_before_no_engine(self, probe):
        await probe.ledger.observe(engine(accepting=False))
        assert await probe.ledger.reserve(ask("r", blocks=101)) is Refusal.NEVER_FITS

    async def test_a_full_queue_refuses(self, probe):
        await probe.start(ask("x", blocks=100))
        await probe.wait(ask("r1", depth=2))
        await probe.wait(ask("r2", depth=2))
        assert await probe.ledger.reserve(ask("r3", depth=2)) is Refusal.QUEUE_FULL
        assert probe.ledger.view().queued == 2

    async def test_a_full_queue_does_not_refuse_what_starts_at_once(self, probe):
        await probe.start(ask("x", blocks=60))
        await probe.wait(ask("large", blocks=50))
        await probe.start(ask("small", blocks=40, depth=1))

    async def test_depth_zero_means_now_or_never(self, probe):
        await probe.start(ask("r1", blocks=60, depth=0))
        assert await probe.ledger.reserve(ask("r2", blocks=60, depth=0)) is Refusal.QUEUE_FULL
        await probe.ledger.release("r1")
        await probe.start(ask("r2", blocks=60, depth=0))

    async def test_a_refusal_leaves_nothing_behind(self, probe):
        await probe.start(ask("x", blocks=100))
        assert await probe.ledger.reserve(ask("r", depth=0)) is Refusal.QUEUE_FULL
        await probe.ledger.release("x")
        probe.assert_empty()
        await probe.start(ask("r"))

    async def test_an_id_that_is_queued_or_holds_is_refused_as_an_error(self, probe):
        await probe.start(ask("held", blocks=100))
        await probe.wait(ask("queued"))
        for request_id in ("held", "queued"):
            with pytest.raises(ValueError, match=request_id):
                await probe.ledger.reserve(ask(request_id))
        assert (probe.use().reserved, probe.ledger.view().queued) == (cost(100), 1)

    async def test_a_negative_cost_is_an_error(self, probe):
        with pytest.raises(ValueError, match="negative"):
            await probe.ledger.reserve(ask("r", blocks=-1))
        await probe.start(ask("r"))
        with pytest.raises(ValueError, match="negative"):
            await probe.ledger.renew("r", cost(10, -1))
        assert probe.use().reserved == cost(10)

    # order

    async def test_first_come_first_served(self, probe):
        await probe.start(ask("x", blocks=100))
        tickets = [await probe.wait(ask(f"r{number}", blocks=50)) for number in range(4)]
        assert [ticket.position for ticket in tickets] == [0, 1, 2, 3]
        await probe.ledger.release("x")
        assert await probe.started(*tickets) == ["r0", "r1"]
        await probe.ledger.release("r1")
        assert await probe.started(*tickets[2:]) == ["r2"]

    async def test_an_arrival_does_not_jump_the_queue(self, probe):
        await probe.start(ask("x", blocks=60))
        first = await probe.wait(ask("first", blocks=60))
        second = await probe.wait(ask("second", blocks=60))
        await probe.ledger.release("x")
        assert await probe.started(first, second) == ["first"]

    async def test_position_counts_those_ahead(self, probe):
        await probe.start(ask("x", blocks=100))
        r0, r1, r2 = [await probe.wait(ask(f"r{number}", blocks=100)) for number in range(3)]
        await probe.ledger.cancel("r0")
        assert (r1.position, r2.position) == (0, 1)
        await probe.ledger.release("x")
        await self.settle()
        assert (r1.position, r2.position) == (0, 0)
        assert (r0.request_id, r0.seq < r1.seq < r2.seq) == ("r0", True)

    async def test_one_that_queues_again_keeps_its_place_and_is_not_refused_for_the_depth(self, probe):
        grant = await probe.start(ask("old", blocks=100))
        young = await probe.wait(ask("young", blocks=100, depth=1))
        await probe.ledger.observe(engine(accepting=False))
        await probe.ledger.release("old")
        old = await probe.queue(ask("old", blocks=100, depth=1, seq=grant.seq))
        assert (old.seq, old.position, young.position) == (grant.seq, 0, 1)
        await probe.ledger.observe(engine(accepting=True))
        assert await probe.started(young, old) == ["old"]

    async def test_those_that_fit_pass_a_head_that_does_not_but_only_so_often(self):
        async with self.open(bypass_max=3) as ledger:
            probe = Probe(ledger, self.settle)
            await ledger.observe(engine())
            await probe.start(ask("x", blocks=50))
            head = await probe.wait(ask("head", blocks=60))
            for number in range(3):
                await probe.start(ask(f"small{number}", blocks=10))
            assert probe.use().pinned_by == "head"
            small = await probe.wait(ask("small3", blocks=10))
            await ledger.release("x")
            assert await probe.started(head, small) == ["head", "small3"]
            assert probe.use().pinned_by is None

    async def test_bypass_zero_is_strict_order(self):
        async with self.open(bypass_max=0) as ledger:
            probe = Probe(ledger, self.settle)
            await ledger.observe(engine())
            await probe.start(ask("x", blocks=50))
            await probe.wait(ask("head", blocks=60))
            await probe.wait(ask("small", blocks=1))

    async def test_a_pinned_engine_does_not_hold_up_the_others(self):
        async with self.open(bypass_max=0) as ledger:
            probe = Probe(ledger, self.settle)
            await ledger.observe(engine("a"))
            await ledger.observe(engine("b"))
            await probe.start(ask("x", blocks=50))
            await probe.start(ask("y", blocks=70))
            head = await probe.wait(ask("head", blocks=60))
            pinned = [use for use in ledger.view().engines if use.pinned_by == "head"]
            assert [use.reserved.blocks for use in pinned] == [50], "the one that fits it soonest"
            grant = await probe.start(ask("small"))
            assert grant.engine_id != pinned[0].limits.engine_id
            await ledger.release("y")
            assert await probe.started(head) == ["head"], "it takes whichever fits it first"
            assert all(use.pinned_by is None for use in ledger.view().engines)

    @pytest.mark.parametrize("how", ["cancel", "forget", "not_accepting", "shrunk"])
    async def test_a_pin_ends_with_its_request_or_its_engine(self, how):
        async with self.open(bypass_max=0) as ledger:
            probe = Probe(ledger, self.settle)
            await ledger.observe(engine("a"))
            await probe.start(ask("x", blocks=50))
            await probe.wait(ask("head", blocks=60))
            assert probe.use("a").pinned_by == "head"
            await ledger.observe(engine("b", blocks=200, accepting=False))
            small = await probe.wait(ask("small", blocks=20))
            match how:
                case "cancel":
                    await ledger.cancel("head")
                    assert await probe.started(small) == ["small"]
                case "forget":
                    await ledger.forget("a")
                    assert await probe.started(small) == []
                case "not_accepting":
                    await ledger.observe(engine("a", accepting=False))
                    assert probe.use("a").pinned_by is None
                case "shrunk":
                    await ledger.observe(engine("a", blocks=55))
                    assert probe.use("a").pinned_by == "small", "it is the head of those that could run"
                    await ledger.release("x")
                    assert await probe.started(small) == ["small"]
                case _:
                    raise ValueError(how)

    async def test_a_pin_moves_to_an_engine_that_can_still_be_used(self):
        async with self.open(bypass_max=0) as ledger:
            probe = Probe(ledger, self.settle)
            await ledger.observe(engine("a"))
            await ledger.observe(engine("b"))
            for number in range(2):
                await probe.start(ask(f"x{number}", blocks=50))
            head = await probe.wait(ask("head", blocks=60))
            (first,) = [use.limits.engine_id for use in ledger.view().engines if use.pinned_by]
            other = {"a": "b", "b": "a"}[first]
            await ledger.observe(engine(first, accepting=False))
            assert probe.use(other).pinned_by == "head"
            await ledger.void(other)
            assert isinstance(await probe.decision(head), Grant)

    async def test_one_that_only_waits_for_an_engine_to_come_back_blocks_nobody_and_is_not_passed(self):
        async with self.open(bypass_max=2) as ledger:
            probe = Probe(ledger, self.settle)
            await ledger.observe(engine("a"))
            await ledger.observe(engine("big", blocks=500, accepting=False))
            stuck = [await probe.wait(ask(f"stuck{number}", blocks=400)) for number in range(10)]
            for number in range(8):
                await probe.start(ask(f"small{number}"))
            assert probe.use("a").pinned_by is None
            assert ledger.view().totals["bypasses"] == 0
            await ledger.observe(engine("big", blocks=500))
            assert await probe.started(*stuck) == ["stuck0"], "in their old order"

    async def test_one_call_is_bounded_and_the_rest_follows_by_itself(self):
        async with self.open(grants_per_call_max=2) as ledger:
            probe = Probe(ledger, self.settle)
            await ledger.observe(engine(seqs=64))
            await probe.start(ask("x", blocks=100))
            tickets = [await probe.wait(ask(f"r{number}", blocks=5)) for number in range(20)]
            await ledger.release("x")
            assert len(await probe.started(*tickets)) == 20

    # ends

    async def test_release_gives_everything_back(self, probe):
        await probe.start(ask("r", blocks=30, seqs=4, prefill_tokens=99))
        await probe.ledger.release("r")
        probe.assert_empty()

    async def test_ends_are_idempotent_and_safe_after_each_other(self, probe):
        for calls in (
            ["release", "release", "cancel", "cancel"],
            ["cancel", "cancel", "release", "release"],
        ):
            await probe.start(ask("held", blocks=100))
            await probe.wait(ask("queued"))
            for call in calls:
                await getattr(probe.ledger, call)("queued")
                await getattr(probe.ledger, call)("held")
                await getattr(probe.ledger, call)("never heard of")
            probe.assert_empty()

    async def test_no_grant_after_a_cancel(self, probe):
        await probe.start(ask("x", blocks=100))
        ticket = await probe.wait(ask("r"))
        await probe.ledger.cancel("r")
        await probe.ledger.release("x")
        await self.settle()
        probe.assert_empty()
        with pytest.raises(RuntimeError, match="r"):
            await ticket.granted()

    async def test_a_grant_that_crosses_a_cancel_is_given_back_by_it(self, probe):
        await probe.start(ask("x", blocks=100))
        ticket = await probe.wait(ask("r"))
        waiter = asyncio.ensure_future(ticket.granted())
        await asyncio.sleep(0)
        await probe.ledger.release("x")
        await probe.ledger.cancel("r")
        await self.settle()
        probe.assert_empty()
        with pytest.raises(RuntimeError, match="r"):
            await waiter

    async def test_cancelling_the_wait_changes_nothing(self, probe):
        await probe.start(ask("x", blocks=100))
        ticket = await probe.wait(ask("r"))
        assert probe.ledger.view().queued == 1, "the wait of the probe was cancelled"
        await probe.ledger.release("x")
        await self.settle()
        assert probe.use().reservations == 1
        assert await probe.started(ticket) == ["r"]
        assert await probe.started(ticket) == ["r"], "asked again, the answer is the same"
        assert probe.ledger.view().totals["grants"] == 2

    async def test_the_decision_can_be_read_without_waiting(self, probe):
        await probe.start(ask("x", blocks=100))
        ticket = await probe.wait(ask("r"))
        assert ticket.decision is None
        await probe.ledger.release("x")
        await self.settle()
        assert ticket.decision == await ticket.granted()
        await probe.ledger.release("r")
        assert ticket.decision is None, "there is no answer any more"

    async def test_an_id_may_come_again_after_it_ended(self, probe):
        first = await probe.start(ask("r"))
        await probe.ledger.release("r")
        second = await probe.start(ask("r"))
        assert second.seq > first.seq

    # whatever frees capacity grants before it returns

    @pytest.mark.parametrize("how", ["release", "cancel", "renew", "grow", "join", "void", "forget"])
    async def test_no_lost_wake_up(self, probe, how):
        await probe.start(ask("x", blocks=60, prefill_tokens=10))
        ticket = await probe.wait(ask("r", blocks=50))
        match how:
            case "release" | "cancel":
                await getattr(probe.ledger, how)("x")
            case "renew":
                await probe.ledger.renew("x", cost(50))
            case "grow":
                await probe.ledger.observe(engine(blocks=110))
            case "join":
                await probe.ledger.observe(engine("b"))
            case "void":
                await probe.ledger.void("a")
            case "forget":
                await probe.ledger.forget("a")
                await probe.ledger.observe(engine("a"))
            case _:
                raise ValueError(how)
        assert any(use.reserved.blocks >= 50 for use in probe.ledger.view().engines), "decided already"
        assert await probe.started(ticket) == ["r"]

    async def test_the_leaving_of_a_head_lets_those_behind_move_up(self):
        async with self.open(scan_depth=1) as ledger:
            probe = Probe(ledger, self.settle)
            await ledger.observe(engine())
            await probe.start(ask("x", blocks=50))
            await probe.wait(ask("head", blocks=60))
            small = await probe.wait(ask("small", blocks=10))
            await ledger.cancel("head")
            assert await probe.started(small) == ["small"]

    # renew

    async def test_renew_is_absolute(self, probe):
        await probe.start(ask("r", blocks=30, prefill_tokens=100))
        for _ in range(2):
            await probe.ledger.renew("r", cost(40, 1, 0))
            assert probe.use().reserved == cost(40, 1, 0)
        await probe.ledger.release("r")
        probe.assert_empty()

    async def test_renew_may_overdraw_which_only_blocks_grants(self, probe):
        await probe.start(ask("r1", blocks=50))
        await probe.start(ask("r2", blocks=50))
        await probe.ledger.renew("r1", cost(90))
        assert probe.use().reserved == cost(140, 2)
        ticket = await probe.wait(ask("r3", blocks=5))
        await probe.ledger.release("r2")
        assert await probe.started(ticket) == ["r3"]

    async def test_renew_of_what_is_not_held_does_nothing(self, probe):
        await probe.start(ask("x", blocks=100))
        await probe.wait(ask("queued", blocks=30))
        await probe.ledger.renew("queued", cost(1))
        await probe.ledger.renew("never heard of", cost(1))
        await probe.ledger.release("x")
        assert probe.use().reserved == cost(30)

    # reprice

    async def test_reprice_lets_an_engine_of_a_new_shape_be_used(self, probe):
        await probe.start(ask("x", blocks=100))
        ticket = await probe.wait(ask("r", blocks=80))
        await probe.ledger.observe(engine("b", shape=OTHER_SHAPE, blocks=50))
        assert await probe.decision(ticket) is None
        await probe.ledger.reprice("r", {SHAPE: cost(80), OTHER_SHAPE: cost(40)})
        decision = await probe.decision(ticket)
        assert isinstance(decision, Grant)
        assert (decision.engine_id, decision.cost) == ("b", cost(40))

    async def test_reprice_beyond_every_engine_ends_the_wait(self, probe):
        await probe.start(ask("x", blocks=100))
        ticket = await probe.wait(ask("r"))
        await probe.ledger.reprice("r", {SHAPE: cost(101)})
        assert await probe.decision(ticket) is Refusal.NEVER_FITS
        assert probe.ledger.view().queued == 0

    async def test_reprice_of_what_is_not_queued_does_nothing(self, probe):
        await probe.start(ask("held"))
        await probe.ledger.reprice("held", {SHAPE: cost(20)})
        await probe.ledger.reprice("never heard of", {SHAPE: cost(20)})
        assert probe.use().reserved == cost(10)

    async def test_a_request_without_a_price_for_any_engine_waits_for_one(self, probe):
        ticket = await probe.ledger.reserve(Ask("r", "t", {OTHER_SHAPE: cost(10)}, 10))
        assert await probe.decision(ticket) is None
        await probe.start(ask("others pass it"))
        await probe.ledger.reprice("r", {SHAPE: cost(10)})
        assert await probe.started(ticket) == ["r"]

    # engines come, change and go

    async def test_a_drop_of_the_capacity_only_blocks_grants(self, probe):
        await probe.start(ask("x", blocks=80))
        await probe.ledger.observe(engine(blocks=50))
        assert probe.use().reserved == cost(80)
        ticket = await probe.wait(ask("r", blocks=10))
        await probe.ledger.release("x")
        assert await probe.started(ticket) == ["r"]

    async def test_an_engine_that_does_not_accept_keeps_what_it_runs(self, probe):
        await probe.start(ask("x"))
        await probe.ledger.observe(engine(accepting=False))
        assert probe.use().reserved == cost(10)
        await probe.ledger.release("x")
        probe.assert_empty()

    async def test_a_queued_request_that_can_never_fit_any_more_is_told_so(self, probe):
        await probe.start(ask("x", blocks=80))
        large, small = await probe.wait(ask("large", blocks=60)), await probe.wait(ask("small", blocks=45))
        await probe.ledger.observe(engine(blocks=50))
        assert await probe.decision(large) is Refusal.NEVER_FITS
        assert await probe.decision(small) is None
        assert probe.ledger.view().queued == 1

    async def test_the_loss_of_the_only_large_engine_is_told(self, probe):
        await probe.ledger.observe(engine("big", blocks=500))
        await probe.start(ask("x", blocks=400))
        ticket = await probe.wait(ask("r", blocks=400))
        await probe.ledger.forget("big")
        assert await probe.decision(ticket) is Refusal.NEVER_FITS

    async def test_an_empty_pool_keeps_its_queue(self, probe):
        await probe.start(ask("x", blocks=100))
        ticket = await probe.wait(ask("r", blocks=90))
        await probe.ledger.forget("a")
        assert await probe.decision(ticket) is None
        await probe.ledger.observe(engine("b"))
        assert await probe.started(ticket) == ["r"]

    async def test_who_avoids_the_others_is_woken_when_its_engine_is_back(self, probe):
        await probe.ledger.observe(engine("b", accepting=False))
        ticket = await probe.wait(ask("r", seq=0, avoid=frozenset({"a"})))
        await probe.start(ask("other"))
        await probe.ledger.observe(engine("b"))
        assert await probe.started(ticket) == ["r"]

    @pytest.mark.parametrize("how", ["void", "forget"])
    async def test_what_an_engine_lost_is_not_given_back_again(self, probe, how):
        await probe.start(ask("x", blocks=40))
        await getattr(probe.ledger, how)("a")
        await probe.ledger.observe(engine())
        await probe.start(ask("y", blocks=100))
        await probe.ledger.renew("x", cost(1))
        await probe.ledger.release("x")
        await probe.ledger.cancel("x")
        assert probe.use().reserved == cost(100)

    @pytest.mark.parametrize("how", ["void", "forget"])
    async def test_who_lost_its_engine_may_queue_again(self, probe, how):
        await probe.ledger.observe(engine("b", blocks=50))
        grant = await probe.start(ask("r", blocks=60))
        await getattr(probe.ledger, how)("a")
        await probe.ledger.observe(engine("a"))
        again = await probe.start(ask("r", blocks=60, seq=grant.seq))
        assert again.seq == grant.seq
        await probe.ledger.release("r")
        probe.assert_empty()

    async def test_engines_that_are_not_known_may_be_forgotten_and_voided(self, probe):
        await probe.ledger.forget("z")
        await probe.ledger.void("z")
        await probe.start(ask("r"))

    # close

    async def test_close_answers_everyone_and_every_later_one(self, probe):
        await probe.start(ask("x", blocks=100))
        ticket = await probe.wait(ask("r"))
        await probe.ledger.close(Refusal.DRAINING)
        assert await probe.decision(ticket) is Refusal.DRAINING
        assert await probe.ledger.reserve(ask("late")) is Refusal.DRAINING
        assert await probe.ledger.reserve(ask("again", seq=0)) is Refusal.DRAINING
        assert probe.ledger.view().queued == 0

    async def test_what_runs_lives_on_after_close_until_released(self, probe):
        await probe.start(ask("x", blocks=60, prefill_tokens=10))
        await probe.ledger.close(Refusal.DRAINING)
        await probe.ledger.renew("x", cost(60))
        assert probe.use().reserved == cost(60)
        await probe.ledger.release("x")
        probe.assert_empty()

    # view

    async def test_the_counters_balance(self, probe):
        await probe.start(ask("x", blocks=100))
        for number in range(3):
            await probe.wait(ask(f"r{number}", blocks=40, depth=3))
        await probe.ledger.reserve(ask("full", depth=3))
        await probe.ledger.reserve(ask("huge", blocks=1000))
        await probe.ledger.cancel("r0")
        await probe.ledger.release("x")
        await self.settle()
        view = probe.ledger.view()
        totals = view.totals
        assert (totals["arrivals"], totals["grants"], totals["releases"], totals["cancels"]) == (6, 3, 1, 1)
        assert (totals["refused_queue_full"], totals["refused_never_fits"]) == (1, 1)
        assert (view.queued, sum(use.reservations for use in view.engines)) == (0, 2)
        assert probe.use().reserved == KVCost(80, 2, 0)
