"""The verbs of the shared ledger, one by one, on a real server."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from redis.crc import key_slot

from integration.ledger.process import Pool, open_pool, until_settled
from kvgate.errors import LedgerCorrupt
from kvgate.ledger.base import Ask, Refusal
from kvgate.ledger.scripts import Granted, LeaseLost, Place, Refused, Sums, read_entry
from kvgate_policies.types import EngineShape
from unit.ledger.pool import OTHER_SHAPE, SHAPE, ask, cost, engine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from support.redis_server import RedisServer

pytestmark = pytest.mark.integration


@pytest.fixture
async def pool(redis_server: RedisServer) -> AsyncIterator[Pool]:
    async with open_pool(redis_server) as pool:
        yield pool


class TestReserve:
    async def test_a_grant_comes_over_the_stream_with_all_that_is_known_of_it(self, pool):
        shape = EngineShape(16, 4096, prefix_caching=True, speculative_tokens=3, blocks_opaque=77)
        p = await pool.join("p", engine(shape=shape))
        seq = await p.reserve(Ask("r", "t", {shape: cost(30, 2, 50)}, 10))
        (entry,) = await pool.stream.read()
        assert entry == Granted("p", "r", "a", shape, cost(30, 2, 50), seq, entry.gseq, "t")
        assert (await pool.use()).reserved == cost(30, 2, 50)

    async def test_sent_again_while_it_waits_it_answers_the_same_place(self, pool):
        p = await pool.join("p", engine())
        await p.hold(ask("x", blocks=100))
        seq = await p.queue(ask("r", depth=1))
        assert await p.reserve(ask("r", depth=1)) == seq
        view = await pool.scripts.view()
        assert (view.queued, view.totals["arrivals"]) == (1, 2)

    @pytest.mark.parametrize("ack", [None, 0])
    async def test_sent_again_with_its_grant_on_the_way_it_is_not_granted_twice(self, pool, ack):
        p = await pool.join("p", engine())
        seq = await p.reserve(ask("r"))
        _, again = await p.scripts.reserve("p", ask("r"), ack=ack)
        assert again == Place(seq, 0)
        assert (await pool.use()).reservations == 1

    async def test_one_whose_grant_was_read_queues_again_also_before_the_next_beat(self, pool):
        p = await pool.join("p", engine())
        grant = await p.hold(ask("r", blocks=60))
        await p.release("r")
        again = await p.hold(ask("r", blocks=60, seq=grant.seq))
        assert (again.seq, again.gseq > grant.gseq) == (grant.seq, True)
        await p.beat()
        assert (await pool.use()).reserved == cost(60)

    async def test_an_id_of_another_process_is_an_error(self, pool):
        p, q = await pool.join("p", engine()), await pool.join("q", engine())
        await p.hold(ask("x", blocks=100))
        await p.queue(ask("r"))
        with pytest.raises(ValueError, match="another process"):
            await q.reserve(ask("r"))

    async def test_processes_share_one_order(self, pool):
        p, q = await pool.join("p", engine()), await pool.join("q", engine())
        await p.hold(ask("x", blocks=100))
        seqs = [await process.queue(ask(f"r{n}", blocks=50)) for n, process in enumerate([q, p, q, p])]
        assert seqs == sorted(seqs)
        assert await pool.scripts.ahead([f"r{n}" for n in range(4)]) == [0, 1, 2, 3]
        await p.release("x")
        await p.read()
        await q.read()
        assert (list(p.held), list(q.held)) == (["r1"], ["r0"])

    async def test_what_is_missing_of_the_own_is_told_in_one_call(self, pool):
        p, q = await pool.join("p", engine()), await pool.join("q", engine())
        await p.hold(ask("x", blocks=100))
        for process, rid in ((p, "r1"), (q, "r2"), (p, "r3")):
            await process.queue(ask(rid, blocks=50))
        await pool.scripts.cancel("p", "r3")
        assert await pool.scripts.missing("p", ["r1", "r2", "r3", "x", "never"]) == ["r2", "r3", "x", "never"]

    async def test_never_over_the_capacity_of_an_engine_whoever_asks(self, pool):
        processes = [await pool.join(pid, engine()) for pid in "pqr"]
        answers = await asyncio.gather(
            *(
                process.reserve(ask(f"{process.pid}{n}", blocks=30, depth=0))
                for n in range(5)
                for process in processes
            )
        )
        assert sum(isinstance(answer, int) for answer in answers) == 3
        assert (await pool.use()).reserved == cost(90, 3)

    @pytest.mark.parametrize(
        "wrong",
        [
            ask("r", blocks=-1),
            ask("r", blocks=1 << 60),
            ask("r\x01"),
            ask(""),
            ask("r", avoid=frozenset("\n")),
        ],
    )
    async def test_what_is_wrong_is_not_sent(self, pool, wrong):
        p = await pool.join("p", engine())
        with pytest.raises(ValueError):
            await p.scripts.reserve("p", wrong)

    async def test_a_process_is_judged_by_the_engines_that_it_knows_itself(self, pool):
        p = await pool.join("p", engine(), engine("big", blocks=500))
        q = await pool.join("q", engine())
        assert await q.reserve(ask("q1", blocks=400)) is Refusal.NEVER_FITS
        assert await q.reserve(ask("q2", avoid=frozenset("a"))) is Refusal.NO_ENGINE
        assert (await p.hold(ask("p1", blocks=400))).engine_id == "big"


class TestAccepting:
    async def test_an_engine_that_one_process_cannot_use_is_open_to_the_others(self, pool):
        p, q = await pool.join("p", engine(accepting=False)), await pool.join("q", engine())
        await p.queue(ask("p1"))
        await q.hold(ask("q1"))
        assert (await pool.use()).limits.accepting
        await p.observe(engine())
        await p.read()
        assert "p1" in p.held

    async def test_a_beat_says_it_too(self, pool):
        p = await pool.join("p", engine())
        p.closed.add("a")
        await p.beat()
        await p.queue(ask("r"))
        assert not (await pool.use()).limits.accepting
        p.closed.clear()
        await p.beat()
        await p.read()
        assert "r" in p.held

    async def test_a_pin_of_a_process_that_lost_the_engine_goes_elsewhere(self, redis_server):
        async with open_pool(redis_server, bypass_max=0) as pool:
            p, q = await pool.join("p", engine()), await pool.join("q", engine())
            await q.hold(ask("x", blocks=50))
            await p.queue(ask("head", blocks=60))
            assert (await pool.use()).pinned_by == "head"
            await q.queue(ask("small"))
            await p.observe(engine(accepting=False))
            await q.read()
            assert "small" in q.held
            assert (await pool.use()).pinned_by is None

    async def test_the_capacity_is_the_last_one_said_by_anyone(self, pool):
        p, q = await pool.join("p", engine()), await pool.join("q", engine())
        await q.observe(engine(blocks=50))
        assert await p.reserve(ask("r", blocks=60)) is Refusal.NEVER_FITS


class TestReleaseAndBeat:
    async def test_a_release_sent_twice_counts_once(self, pool):
        p = await pool.join("p", engine())
        await p.hold(ask("r1", blocks=30))
        await p.hold(ask("r2", blocks=50))
        await p.release("r1")
        await p.scripts.release("p", p.rel, "a", "tenant", cost(30))
        assert (await pool.use()).reserved == cost(50)

    async def test_a_release_that_comes_after_the_beat_that_contains_it_changes_nothing(self, pool):
        p = await pool.join("p", engine())
        await p.hold(ask("r1", blocks=30))
        await p.hold(ask("r2", blocks=50))
        grant = p.held.pop("r1")
        p.rel += 1
        await p.beat()
        await p.scripts.release("p", p.rel, "a", "tenant", grant.cost)
        assert (await pool.use()).reserved == cost(50)

    async def test_a_lost_release_is_healed_by_the_next_beat_which_wakes_whoever_waits(self, pool):
        p, q = await pool.join("p", engine()), await pool.join("q", engine())
        await p.hold(ask("x", blocks=100))
        await q.queue(ask("r"))
        p.held.clear()
        p.rel += 1
        await p.beat()
        await q.read()
        assert "r" in q.held

    async def test_more_than_there_is_is_refused_and_nothing_changed(self, pool):
        p = await pool.join("p", engine())
        await p.hold(ask("r", blocks=30, prefill_tokens=5))
        for wrong in (cost(31), cost(30, 2), cost(30, 1, 6), cost(29, 1, 5)):
            with pytest.raises(LedgerCorrupt, match="nothing was changed"):
                await p.scripts.release("p", 1, "a", "tenant", wrong)
        assert (await pool.use()).reserved == cost(30, 1, 5)
        await p.release("r")
        assert (await pool.use()).reservations == 0

    async def test_another_process_cannot_give_back_what_is_not_its_own(self, pool):
        p, q = await pool.join("p", engine()), await pool.join("q", engine())
        await p.hold(ask("r", blocks=30))
        with pytest.raises(LedgerCorrupt):
            await q.scripts.release("q", 1, "a", "tenant", cost(30))

    async def test_a_part_of_a_cost_is_given_back_and_more_may_be_taken(self, pool):
        p = await pool.join("p", engine())
        await p.hold(ask("r", blocks=30, prefill_tokens=50))
        await p.scripts.release("p", 1, "a", "tenant", cost(-80, 0, 50), reservations=0)
        use = await pool.use()
        assert (use.reserved, use.reservations) == (cost(110, 1, 0), 1)

    async def test_a_grant_that_the_process_did_not_want_any_more_is_returned_by_the_beat_without_it(
        self, pool
    ):
        p = await pool.join("p", engine())
        await p.hold(ask("x", blocks=100))
        await p.queue(ask("r", blocks=60))
        await p.release("x")
        assert await p.cancel("r") is False, "the grant was on its way"
        await p.beat()
        assert (await pool.use()).reserved == cost(60), "not read yet"
        await p.read()
        await p.beat()
        assert (await pool.use()).reservations == 0

    async def test_no_grant_after_a_cancel_that_found_it_queued(self, pool):
        p = await pool.join("p", engine())
        await p.hold(ask("x", blocks=100))
        await p.queue(ask("r", blocks=60))
        assert await p.cancel("r") is True
        assert await p.cancel("r") is False
        await p.release("x")
        assert [entry.request_id for entry in await pool.stream.read()] == ["x"]

    async def test_beats_and_a_release_in_any_order_never_count_less_than_is_held(self, pool):
        """Four moments of a process that gets two grants and releases the first; their messages in any order."""
        for number, order in enumerate(itertools.permutations(range(5))):
            pid = f"p{number}"
            p = await pool.join(pid, engine())
            first, second = f"{pid}-1", f"{pid}-2"
            moments = [replace(p, held={})]
            await p.hold(ask(first, blocks=10))
            moments.append(replace(p, held=dict(p.held)))
            await p.hold(ask(second, blocks=30))
            moments.append(replace(p, held=dict(p.held)))
            p.rel, released = 1, p.held.pop(first)
            moments.append(replace(p, held=dict(p.held)))
            for step in order:
                if step == 4:
                    await p.scripts.release(pid, 1, "a", "tenant", released.cost)
                else:
                    await moments[step].beat()
                assert (await pool.use()).reserved.blocks in {30, 40}, order
            assert (await pool.use()).reserved == cost(30), order
            p.held.clear()
            await p.beat()
            await p.scripts.leave(pid)

    async def test_any_number_of_grants_is_acknowledged_at_once(self, redis_server):
        async with open_pool(redis_server, lease_ms=300_000) as pool:
            p = await pool.join("p", engine(blocks=5000, seqs=5000))
            for number in range(2500):
                await p.scripts.reserve("p", ask(f"r{number}", blocks=1))
            await p.read()
            last = (await pool.stream.read())[-1]
            assert isinstance(last, Granted)
            p.ack = last.gseq
            await p.beat()
            assert (await pool.use()).reservations == 0
            assert await pool.client.hlen(pool.key("unseen")) == 0

    async def test_sums_on_an_engine_that_nobody_knows_count_once_it_is_known(self, pool):
        p = await pool.join("p")
        await p.scripts.beat("p", ack=0, rel=0, sums={("a", "tenant"): Sums(cost(70), 1)}, closed=[])
        assert (await pool.scripts.view()).engines == ()
        await p.observe(engine())
        assert (await pool.use()).reserved == cost(70)
        await p.queue(ask("r", blocks=40))

    async def test_sums_without_a_reservation_are_refused(self, pool):
        p = await pool.join("p", engine())
        with pytest.raises(LedgerCorrupt):
            await p.scripts.beat("p", ack=0, rel=0, sums={("a", "tenant"): Sums(cost(70), 0)}, closed=[])
        assert (await pool.use()).reservations == 0


class TestEngines:
    async def test_an_engine_stays_while_one_process_knows_it(self, pool):
        p, q = await pool.join("p", engine()), await pool.join("q", engine())
        await p.hold(ask("p1", blocks=30))
        await q.hold(ask("q1", blocks=20))
        await p.scripts.forget("p", "a")
        assert (await pool.use()).reserved == cost(20)
        assert await p.reserve(ask("p2")) is Refusal.NO_ENGINE
        await q.scripts.forget("q", "a")
        assert (await pool.scripts.view()).engines == ()
        assert await pool.client.hgetall(pool.key("engines")) == {}

    async def test_what_was_held_on_a_forgotten_engine_is_not_given_back_again(self, pool):
        p, _ = await pool.join("p", engine()), await pool.join("q", engine())
        await p.hold(ask("r"))
        await p.scripts.forget("p", "a")
        await p.release("r")
        assert (await pool.use()).reservations == 0

    async def test_one_that_can_never_fit_any_more_is_told_over_the_stream(self, pool):
        p, q = await pool.join("p", engine(), engine("big", blocks=500)), await pool.join("q", engine())
        await p.hold(ask("x", blocks=450))
        await p.queue(ask("large", blocks=400))
        await q.observe(engine("big", blocks=500))
        await q.queue(ask("other", blocks=400))
        await p.scripts.forget("p", "big")
        refused = [entry for entry in await pool.stream.read() if isinstance(entry, Refused)]
        assert refused == [Refused("p", "large", Refusal.NEVER_FITS)], "q still knows it"

    async def test_one_that_waits_for_an_engine_to_come_back_starts_on_a_new_one(self, pool):
        p = await pool.join("p", engine(), engine("big", blocks=500, accepting=False))
        await p.queue(ask("r", blocks=400))
        assert (await pool.scripts.inspect()).parked == 1
        await p.observe(engine("new", blocks=500))
        await p.read()
        assert p.held["r"].engine_id == "new"

    async def test_places_of_gone_engines_are_used_again_and_mix_nothing_up(self, pool):
        p = await pool.join("p", engine("a"), engine("b", accepting=False))
        await p.scripts.forget("p", "a")
        await p.observe(engine("c"), engine("d"))
        taken = [(await p.hold(ask(f"r{n}", blocks=60))).engine_id for n in range(2)]
        assert sorted(taken) == ["c", "d"]
        await p.queue(ask("r", blocks=60))

    async def test_void_strikes_own_sums_and_orphans_and_no_one_elses(self, pool):
        p, q, gone = [await pool.join(pid, engine()) for pid in "pqg"]
        for process, blocks in ((p, 10), (q, 20), (gone, 30)):
            await process.hold(ask(process.pid, blocks=blocks))
        await pool.expire("g")
        await p.scripts.void("p", "a")
        assert (await pool.use()).reserved == cost(20)

    async def test_a_large_change_is_made_in_bounded_steps(self, pool):
        p = await pool.join("p", engine(), engine("big", blocks=1000, accepting=False))
        for number in range(600):
            await p.scripts.reserve("p", ask(f"r{number}", blocks=500, depth=1000))
        p.waiting.clear()
        reply = await p.scripts.forget("p", "big")
        assert reply.unfinished
        await until_settled(pool)
        assert (await pool.scripts.view()).totals["refused_never_fits"] == 600
        assert len(await pool.stream.read()) == 600


class TestReprice:
    async def test_lets_another_shape_be_used(self, pool):
        p = await pool.join("p", engine(), engine("b", shape=OTHER_SHAPE))
        await p.hold(ask("x", blocks=100))
        await p.queue(ask("r", blocks=60))
        await p.scripts.reprice("p", "r", {SHAPE: cost(60), OTHER_SHAPE: cost(5)})
        await p.read()
        assert (p.held["r"].engine_id, p.held["r"].cost) == ("b", cost(5))

    async def test_of_one_that_is_not_queued_does_nothing(self, pool):
        p, q = await pool.join("p", engine()), await pool.join("q", engine())
        await p.hold(ask("x", blocks=100))
        await p.queue(ask("r", blocks=60))
        await q.scripts.reprice("q", "r", {SHAPE: cost(500)})
        await p.scripts.reprice("p", "x", {SHAPE: cost(1)})
        await pool.check()
        assert (await pool.use()).reserved == cost(100)


class TestWhole:
    async def test_everything_is_gone_after_a_graceful_end(self, pool):
        p, q = await pool.join("p", engine()), await pool.join("q", engine())
        await p.hold(ask("x", blocks=100))
        await p.queue(ask("r", blocks=100))
        await q.queue(ask("other", blocks=100))
        await p.scripts.leave("p")
        await q.read()
        assert "other" in q.held
        await q.scripts.leave("q")
        left = {key.decode().rpartition(":")[2] for key in await pool.client.keys("*")}
        assert left <= {"meta", "grants", "tenants"}, "and what each tenant was charged"

    async def test_a_bounded_call_says_that_it_is_unfinished(self, redis_server):
        async with open_pool(redis_server, grants_max=4) as pool:
            p = await pool.join("p", engine())
            await p.hold(ask("x", blocks=100))
            for number in range(10):
                await p.queue(ask(f"r{number}"))
            reply = await p.release("x")
            counts = [len(await pool.stream.read())]
            while reply.unfinished:
                reply = await pool.scripts.pump()
                counts.append(len(await pool.stream.read()))
            assert counts == [5, 9, 11]

    async def test_keys_are_those_that_are_declared_and_all_of_one_slot(self, pool):
        p = await pool.join("p", engine(), engine("b", accepting=False))
        gone = await pool.join("g", engine())
        await gone.hold(ask("g1"))
        await pool.expire("g")
        await p.hold(ask("x", blocks=90))
        await p.queue(ask("r", blocks=50))
        await p.scripts.reserve("p", ask("parked", blocks=50, avoid=frozenset("a")))
        p.waiting["parked"] = ask("parked")
        found = {key.decode() for key in await pool.client.keys("*")}
        assert found == {
            pool.key(name)
            for name in (
                "meta",
                "leases",
                "processes",
                "engines",
                "slots",
                "holdings",
                "orphans",
                "tenants",
                "busy",
                "flows",
                "queue",
                "parked",
                "waiters",
                "owners",
                "unseen",
                "ceilings",
                "grants",
            )
        }
        slots = {key_slot(key.encode()) for key in found}
        assert len(slots) == 1

    async def test_keys_do_not_outlive_the_pool_by_more_than_a_day(self, pool):
        p = await pool.join("p", engine())
        await p.hold(ask("r"))
        await p.beat()
        await pool.client.persist(pool.key("meta"))
        assert await pool.client.pttl(pool.key("meta")) == -1
        await p.beat()
        assert 0 < await pool.client.pttl(pool.key("meta")) <= 86_400_000
        assert 0 < await pool.client.pttl(pool.key("engines")) <= 86_400_000

    async def test_scripts_that_the_server_forgot_are_sent_again(self, pool):
        p = await pool.join("p", engine())
        await pool.client.script_flush()
        await p.hold(ask("r"))
        stats = await pool.client.info("commandstats")
        await p.hold(ask("s"))
        after = await pool.client.info("commandstats")
        assert after["cmdstat_eval"]["calls"] == stats["cmdstat_eval"]["calls"], "by its hash from then on"

    async def test_answers_are_read_alike_as_bytes_and_as_text(self, pool, redis_server):
        p = await pool.join("p", engine())
        await p.hold(ask("r"))
        (as_bytes,) = [fields for _, fields in await pool.client.xrange(pool.scripts.stream_key)]
        as_text = {key.decode(): value.decode() for key, value in as_bytes.items()}
        assert read_entry(as_bytes) == read_entry(as_text)
        with redis_server.client() as client:
            assert client.hget(pool.key("meta"), "epoch") == (await pool.scripts.inspect()).epoch

    async def test_verify_names_what_does_not_add_up(self, pool):
        p = await pool.join("p", engine())
        await p.hold(ask("x", blocks=100))
        await p.queue(ask("r", blocks=60))
        await pool.client.hdel(pool.key("slots"), "p\x01a\x01tenant")
        await pool.client.zrem(pool.key("owners"), "p\x01r")
        faults = await pool.scripts.verify()
        assert any("engine a" in fault for fault in faults)
        assert any("request r" in fault for fault in faults)
        await pool.client.flushall()

    async def test_inspect_shows_who_holds_what(self, pool):
        p, gone = await pool.join("p", engine()), await pool.join("g", engine())
        await p.hold(ask("x", blocks=50))
        await gone.hold(ask("y", blocks=50))
        await p.beat()
        await p.queue(ask("r", blocks=60))
        await pool.expire("g")
        seen = await pool.scripts.inspect()
        assert list(seen.leases_ms) == ["p"]
        assert [(part.pid, part.sums, part.unseen) for part in seen.holdings] == [("p", Sums(cost(50), 1), 0)]
        assert [(part.pid, part.sums) for part in seen.orphans] == [("g", Sums(cost(50), 1))]
        assert [(waiting.pid, waiting.request_id) for waiting in seen.head] == [("p", "r")]

    async def test_verbs_that_need_a_lease_say_so(self, pool):
        p = pool.add("p")
        for call in (
            p.scripts.reserve("p", ask("r")),
            p.scripts.release("p", 1, "a", "tenant", cost()),
            p.scripts.observe("p", engine()),
        ):
            with pytest.raises(LeaseLost):
                await call
        assert await p.cancel("r") is False
