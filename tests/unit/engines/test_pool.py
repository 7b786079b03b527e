"""The pool over servers in virtual time: what is discovered, who gets work, and when."""

from __future__ import annotations

import asyncio
from array import array

import pytest

from kvgate.engines.base import Trouble
from kvgate.engines.health import BACKOFF_S_MAX, FAILURES_MAX, PROBE_FAILURES_MAX
from kvgate.engines.tokenize import CONCURRENT_MAX
from kvgate.tokens.base import TokenizeFailed
from kvgate_policies.types import EngineShape
from support.upstream import EngineFace
from support.virtual_loop import run_virtual
from unit.engines.world import Server, World, virtual

A = "http://a"
B = "http://b"


# --- discovery ---------------------------------------------------------------------------------------------


@virtual
async def test_a_backend_is_discovered_and_takes_work() -> None:
    world = World({"a": Server()})
    assert world.pool.shapes() == frozenset()
    assert world.pool.snapshot()[0].state == "unknown"
    async with world.running():
        assert world.pool.shapes() == {EngineShape(32, 2048, prefix_caching=True)}
        assert world.pool.available() == {A}
        assert (world.use().limits.blocks, world.accepting()) == (120, True)
        target = world.pool.target(A)
        assert target is not None
        assert (target.url, dict(target.headers)) == (A, {})


@virtual
async def test_ranks_are_engines_of_their_own() -> None:
    world = World({"a": Server(EngineFace(engines=2, num_gpu_blocks=242))}, backend_api_key="sk")
    async with world.running():
        assert world.pool.available() == {f"{A}#0", f"{A}#1"}
        assert [use.limits.blocks for use in world.ledger.view().engines] == [120, 120]
        target = world.pool.target(f"{A}#1")
        assert target is not None
        assert dict(target.headers) == {"Authorization": "Bearer sk", "X-data-parallel-rank": "1"}
        assert len(world.pool.targets()) == 1


@virtual
async def test_the_pools_own_key_goes_with_every_question() -> None:
    server = Server()
    async with World({"a": server}, backend_api_key="sk").running() as world:
        await world.pool.tokenize({"prompt": "x"})
    assert {request.headers.get("authorization") for request in server.seen} == {"Bearer sk"}


@virtual
async def test_one_backend_that_hangs_delays_no_other() -> None:
    world = World({"a": Server(hangs=True), "b": Server()}, probe_timeout_s=2.0)
    async with world.running():
        assert world.pool.available() == {B}
        before = world.servers["b"].asked("/metrics")
        await asyncio.sleep(20)
        assert world.servers["b"].asked("/metrics") - before == pytest.approx(20, abs=3)


@virtual
async def test_the_interval_is_jittered_by_a_tenth() -> None:
    servers = {str(i): Server() for i in range(20)}
    async with World(servers).running():
        await asyncio.sleep(100)
    counts = [server.asked("/metrics") for server in servers.values()]
    assert 90 <= min(counts) < max(counts) <= 112


@virtual
async def test_reports_of_one_discovery() -> None:
    plain, blind, dead = Server(), Server(EngineFace(metrics=False)), Server(refuses=True)
    world = World({"a": plain, "b": blind, "c": dead})
    a, b, c = await world.pool.discover_once()
    assert (a.url, a.models, a.errors) == (A, ("tiny",), ())
    assert a.sources["num_gpu_blocks"] == "121 from vllm:cache_config_info in /metrics"
    assert "--num-gpu-blocks" in b.errors[0]
    assert "--block-size" in b.errors[0]
    assert "--max-model-len" not in b.errors[0]
    assert "refused" in c.errors[0]
    assert world.pool.available() == {A}
    async with world.running():  # the same pool goes on
        assert world.pool.available() == {A}


@virtual
async def test_by_hand_no_metrics_are_needed() -> None:
    server = Server(EngineFace(metrics=False, max_model_len=None))
    world = World({"a": server}, num_gpu_blocks=51, block_size=16, max_model_len=1000)
    async with world.running():
        assert world.pool.shapes() == {EngineShape(16, 1000)}
        assert (world.use().limits.blocks, world.accepting()) == (50, True)


@virtual
async def test_metrics_that_go_away_take_no_engine_out() -> None:
    server = Server()
    async with World({"a": server}).running() as world:
        server.face.metrics = False
        await asyncio.sleep(30)
        assert world.accepting()
        assert world.use().limits.blocks == 120
        assert "404" in str(world.pool.snapshot()[0].last_error)


@virtual
async def test_a_hybrid_is_told_loudly_in_the_report() -> None:
    world = World({"a": Server(EngineFace(num_gpu_blocks=1000, concurrency=1000 / 90))})
    (report,) = await world.pool.discover_once()
    assert report.errors == ()
    assert "90 KV blocks" in report.warnings[0]
    assert next(iter(world.pool.shapes())).blocks_opaque == 90


# --- models ------------------------------------------------------------------------------------------------


@virtual
async def test_models_of_all_backends_are_merged() -> None:
    servers = {"a": Server(EngineFace(adapters=("l1",))), "b": Server(EngineFace(adapters=("l2",)))}
    async with World(servers).running() as world:
        assert world.pool.model_names() == ("tiny", "l1", "l2")
        assert [card["id"] for card in world.pool.models()] == ["tiny", "l1", "l2"]
        assert world.pool.serves("l2")
        assert world.pool.serves(None)
        assert not world.pool.serves("nope")


@virtual
async def test_without_any_backend_no_model_is_called_unknown() -> None:
    """Then the engines are what is missing, and 404 would be the wrong answer."""
    async with World({"a": Server(refuses=True)}).running() as world:
        assert world.pool.serves("tiny")
        assert world.pool.available() == frozenset()


@virtual
async def test_a_backend_of_another_model_gets_no_work_and_the_reason_is_said() -> None:
    servers = {"a": Server(), "b": Server(EngineFace(model="other"))}
    async with World(servers).running() as world:
        assert world.state(B) == "error"
        assert not world.accepting(B)
        assert world.pool.snapshot()[1].why.startswith("serves other, the pool serves tiny")
        assert not world.pool.serves("other")
        servers["b"].face.model = "tiny"
        assert await world.until(lambda: world.accepting(B)) < 15


@virtual
async def test_a_new_adapter_is_found_without_a_restart() -> None:
    server = Server()
    async with World({"a": server}).running() as world:
        server.face.adapters = ("lora",)
        assert await world.until(lambda: world.pool.serves("lora")) < 15


# --- down and up -------------------------------------------------------------------------------------------


@virtual
async def test_a_refused_request_closes_the_engine_at_once_and_a_probe_opens_it() -> None:
    async with World({"a": Server()}).running() as world:
        await world.pool.report(A, Trouble.CONNECT)
        assert not world.accepting()
        assert world.state() == "down"
        assert await world.until(world.accepting) < 1.2


@virtual
async def test_a_refused_connection_is_all_ranks_of_the_backend() -> None:
    async with World({"a": Server(EngineFace(engines=2)), "b": Server()}).running() as world:
        await world.pool.report(f"{A}#0", Trouble.CONNECT)
        assert world.pool.available() == {B}


@virtual
async def test_a_process_that_is_gone_is_found_by_the_probe() -> None:
    server = Server()
    async with World({"a": server}).running() as world:
        server.refuses = True
        assert await world.until(lambda: not world.accepting()) < 1.2


@virtual
async def test_slow_probes_alone_take_an_engine_out_only_after_three() -> None:
    server = Server()
    async with World({"a": server}, probe_timeout_s=2.0).running() as world:
        server.hangs = True
        needed_s = await world.until(lambda: not world.accepting())
        probes = server.asked("/metrics") - 1
        assert probes >= PROBE_FAILURES_MAX
        assert needed_s < 16
        server.hangs = False
        await world.until(world.accepting)


@virtual
async def test_an_unhealthy_engine_is_out_with_its_own_word() -> None:
    server = Server()
    async with World({"a": server}).running() as world:
        server.face.metrics, server.face.healthy = False, False
        assert await world.until(lambda: not world.accepting()) < 1.2


@virtual
async def test_busy_is_a_short_hold() -> None:
    async with World({"a": Server()}, busy_hold_s=0.5).running() as world:
        await world.pool.report(A, Trouble.BUSY)
        assert not world.accepting()
        assert world.pool.available() == {A}
        assert await world.until(world.accepting) == pytest.approx(0.5, abs=0.02)


@virtual
async def test_a_hold_frees_the_queue_when_it_ends() -> None:
    async with World({"a": Server()}).running() as world:
        await world.pool.report(A, Trouble.BUSY)
        assert await world.grant("early") is None
        await asyncio.sleep(0.6)
        assert await world.grant("late") is not None


# --- the breaker -------------------------------------------------------------------------------------------


async def trip(world: World) -> None:
    for _ in range(FAILURES_MAX):
        await world.pool.report(A, Trouble.RESET)


@virtual
async def test_requests_that_fail_in_a_row_close_the_engine_though_probes_are_good() -> None:
    async with World({"a": Server()}).running() as world:
        for _ in range(FAILURES_MAX - 1):
            await world.pool.report(A, Trouble.ERROR)
        await world.pool.succeeded(A)
        await world.pool.report(A, Trouble.ERROR)
        assert world.accepting()
        await trip(world)
        assert not world.accepting()
        assert world.state() == "down"


@virtual
async def test_on_trial_one_prompt_at_a_time_until_one_succeeds() -> None:
    async with World({"a": Server()}).running() as world:
        await trip(world)
        assert 1.0 <= await world.until(world.accepting) < 2.2
        assert world.state() == "trial"
        assert await world.grant("first") is not None
        assert await world.grant("second") is None
        await world.pool.succeeded(A)
        assert world.state() == "up"
        assert await world.grant("third") is not None


@virtual
async def test_a_trial_that_ends_without_a_verdict_gives_its_place_to_the_next() -> None:
    """The client left, or the engine answered 4xx: neither good nor bad, and nothing stays locked."""
    async with World({"a": Server()}).running() as world:
        await trip(world)
        await world.until(world.accepting)
        for name in ("one", "two", "three"):
            assert await world.grant(name) is not None
            await world.ledger.release(name)
        assert world.state() == "trial"


@virtual
async def test_a_failed_trial_waits_longer_each_time() -> None:
    async with World({"a": Server()}, probe_interval_s=0.1).running() as world:
        await trip(world)
        waits = []
        for _ in range(7):
            waits.append(await world.until(world.accepting))
            await world.pool.report(A, Trouble.RESET)
            assert not world.accepting()
        assert waits == pytest.approx([1, 2, 4, 8, 16, BACKOFF_S_MAX, BACKOFF_S_MAX], abs=0.2)


# --- draining engines that answer without tokens -----------------------------------------------------------


@virtual
async def test_an_empty_answer_is_checked_with_a_canary_before_the_engine_is_suspended() -> None:
    server = Server()
    async with World({"a": server}).running() as world:
        await world.pool.report(A, Trouble.EMPTY)
        await asyncio.sleep(0.01)
        assert world.accepting()
        assert server.asked("/v1/completions") == 1


@virtual
async def test_a_draining_engine_is_suspended_and_back_when_it_lives_again() -> None:
    server = Server(aborts=True)
    async with World({"a": server, "b": Server()}).running() as world:
        await world.pool.report(A, Trouble.EMPTY)
        await world.until(lambda: world.state() == "suspended", timeout_s=0.1)
        assert not world.accepting()
        await asyncio.sleep(100)
        assert world.state() == "suspended"
        assert 5 <= server.asked("/v1/completions") <= 12, "asked again with a growing back-off"
        server.aborts = False
        assert await world.until(world.accepting) < BACKOFF_S_MAX + 1


@virtual
async def test_where_a_canary_can_tell_nothing_two_empty_answers_suspend() -> None:
    async with World({"a": Server(completes=False)}).running() as world:
        await world.pool.report(A, Trouble.EMPTY)
        await asyncio.sleep(0.01)
        assert world.accepting()
        await world.pool.report(A, Trouble.EMPTY)
        assert world.state() == "suspended"
        await world.until(lambda: world.state() == "trial")
        await world.pool.succeeded(A)
        assert world.state() == "up"


# --- restarts ----------------------------------------------------------------------------------------------


@virtual
async def test_a_restart_voids_what_was_reserved_and_reads_the_capacity_again() -> None:
    server = Server()
    async with World({"a": server}).running() as world:
        assert await world.grant("old", blocks=50) is not None
        server.face.start_time_s += 60
        server.face.num_gpu_blocks = 201
        await world.until(lambda: world.use().limits.blocks == 200)
        assert world.use().reservations == 0
        await world.ledger.release("old")
        assert world.use().reserved.blocks == 0


@virtual
async def test_without_a_start_time_a_counter_that_went_back_tells() -> None:
    server = Server(EngineFace(generation_tokens=500, start_time_s=float("nan")))
    async with World({"a": server}).running() as world:
        await world.grant("old")
        server.face.generation_tokens = 700
        await asyncio.sleep(3)
        assert world.use().reservations == 1
        server.face.generation_tokens = 3
        await world.until(lambda: world.use().reservations == 0)


@virtual
async def test_a_restart_with_another_number_of_ranks_changes_the_engines() -> None:
    server = Server()
    async with World({"a": server}).running() as world:
        server.face.start_time_s += 60
        server.face.engines, server.face.num_gpu_blocks = 2, 242
        await world.until(lambda: world.pool.available() == {f"{A}#0", f"{A}#1"})
        assert [use.limits.engine_id for use in world.ledger.view().engines] == [f"{A}#0", f"{A}#1"]
        assert world.pool.target(A) is None


@virtual
async def test_a_new_shape_is_announced_before_work_goes_there() -> None:
    server = Server()
    world = World({"a": server, "b": Server(refuses=True)})
    heard: list[int] = []

    async def shapes_changed() -> None:
        heard.append(len(world.pool.shapes()))
        assert B not in {use.limits.engine_id for use in world.ledger.view().engines}

    async with world.running():
        world.pool.on_shapes = shapes_changed
        world.servers["b"].face.block_size = 16
        world.servers["b"].refuses = False
        await world.until(lambda: world.pool.available() == {A, B})
        await asyncio.sleep(5)
    assert heard == [2]


# --- operators ---------------------------------------------------------------------------------------------


def test_the_log_tells_the_state_that_is_shown_and_the_size(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        world = World({"a": Server(EngineFace(num_gpu_blocks=None)), "b": Server()})
        async with world.running():
            world.servers["b"].face.num_gpu_blocks = 65
            world.servers["b"].face.start_time_s += 60
            await world.until(lambda: world.use(B).limits.blocks == 64)

    with caplog.at_level("INFO", "kvgate.engines"):
        run_virtual(story())
    assert f"engine {A}: unknown → error: num_gpu_blocks is unknown: not found in" in caplog.text
    assert f"engine {A}: unknown → up" not in caplog.text
    assert [message for message in caplog.messages if "usable" in message] == [
        f"engine {B}: {blocks} usable KV blocks of 32 tokens, a window of 2048" for blocks in (120, 64)
    ]


@virtual
async def test_drain_and_undrain() -> None:
    async with World({"a": Server(EngineFace(engines=2, num_gpu_blocks=242))}).running() as world:
        await world.pool.drain(f"{A}#0")
        assert world.state(f"{A}#0") == "draining"
        assert not world.accepting(f"{A}#0")
        assert world.pool.available() == {f"{A}#1"}
        await world.pool.drain(A)
        assert world.pool.available() == frozenset()
        await asyncio.sleep(5)
        await world.pool.undrain(A)
        assert world.accepting(f"{A}#0")
        with pytest.raises(KeyError):
            await world.pool.drain("http://nowhere")
        with pytest.raises(KeyError):
            await world.pool.undrain(f"{A}#7")


@virtual
async def test_a_removed_backend_is_forgotten_when_its_last_request_is_over() -> None:
    async with World({"a": Server(), "b": Server()}).running() as world:
        await world.pool.drain(B)
        assert await world.grant("last") is not None
        await world.pool.undrain(B)
        await world.pool.remove(A)
        assert world.pool.backends() == (B,)
        assert not world.accepting()
        await asyncio.sleep(10)
        assert world.pool.target(A) is not None, "the running request may still have to be told of"
        await world.ledger.release("last")
        await world.until(lambda: world.pool.target(A) is None)
        assert [use.limits.engine_id for use in world.ledger.view().engines] == [B]
        asked = world.servers["a"].asked("/metrics")
        await asyncio.sleep(10)
        assert world.servers["a"].asked("/metrics") == asked
        with pytest.raises(KeyError):
            await world.pool.remove(A)


@virtual
async def test_an_idle_backend_goes_at_once_and_may_come_again() -> None:
    async with World({"a": Server(), "b": Server()}).running() as world:
        await world.pool.remove(f"{A}/")
        assert world.pool.target(A) is None
        await world.pool.add(f"{A}/")
        await world.until(lambda: world.pool.available() == {A, B})


@virtual
async def test_a_backend_that_is_added_while_it_leaves_stays() -> None:
    async with World({"a": Server()}).running() as world:
        await world.grant("running")
        await world.pool.remove(A)
        await world.pool.add(A)
        await world.ledger.release("running")
        await asyncio.sleep(5)
        assert world.accepting()
        assert world.pool.backends() == (A,)


async def removed_while_a_probe_is_under_way(world: World) -> None:
    server = world.servers["a"]
    asked = server.asked("/metrics")
    server.hangs = True
    await world.until(lambda: server.asked("/metrics") > asked)
    await world.pool.remove(A)
    assert world.pool.backends() == ()


@virtual
async def test_a_probe_that_outlives_its_backend_tells_the_ledger_nothing() -> None:
    world = World({"a": Server()})
    async with world.running():
        await removed_while_a_probe_is_under_way(world)
        await asyncio.sleep(10)
        assert world.ledger.view().engines == ()


@virtual
async def test_a_probe_that_outlives_its_backend_leaves_the_next_one_of_that_url_alone() -> None:
    world = World({"a": Server()})
    async with world.running():
        await removed_while_a_probe_is_under_way(world)
        await world.pool.add(A)
        world.servers["a"].hangs = False
        await asyncio.sleep(10)
        assert world.pool.backends() == (A,)
        assert world.accepting()


@virtual
async def test_news_of_an_engine_that_left_is_ignored() -> None:
    async with World({"a": Server()}).running() as world:
        await world.pool.report("http://gone#3", Trouble.CONNECT)
        await world.pool.succeeded(f"{A}#3")
        assert world.accepting()


@virtual
async def test_a_snapshot_says_where_things_are_from_and_how_old() -> None:
    server = Server(EngineFace(usage=0.25, running=3))
    async with World({"a": server}).running() as world:
        await asyncio.sleep(0.3)
        (status,) = world.pool.snapshot()
        assert status.gauges is not None
        assert (status.gauges.kv_usage, status.gauges.running) == (0.25, 3)
        assert status.probe_age_s == pytest.approx(0.31, abs=0.05)
        assert status.sources["max_model_len"] == "2048 from /v1/models"
        assert (status.models, status.last_error) == (("tiny",), None)


@virtual
async def test_a_ledger_that_fails_once_does_not_end_the_probes() -> None:
    async with World({"a": Server()}).running() as world:
        observe = world.ledger.observe
        failed: list[object] = []

        async def failing(limits) -> None:
            if not failed:
                failed.append(limits)
                raise ConnectionError
            await observe(limits)

        world.ledger.observe = failing  # type: ignore[method-assign]
        world.servers["a"].face.num_gpu_blocks = 91
        await world.until(lambda: world.use().limits.blocks == 90)
        assert len(failed) == 1


# --- tokenize ----------------------------------------------------------------------------------------------


@virtual
async def test_tokenize_takes_turns_among_the_engines_that_are_up() -> None:
    servers = {"a": Server(), "b": Server(), "c": Server(refuses=True)}
    async with World(servers).running() as world:
        assert [await world.pool.tokenize({"prompt": "a b c"}) for _ in range(6)] == [4] * 6
        assert servers["a"].asked("/tokenize") == servers["b"].asked("/tokenize") == 3


@virtual
async def test_tokenize_fails_in_bounded_time() -> None:
    server = Server()
    async with World({"a": server}).running() as world:
        server.hangs = True
        began_s = asyncio.get_running_loop().time()
        calls = [world.pool.tokenize({"prompt": "x"}) for _ in range(3 * CONCURRENT_MAX)]
        ends = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(end, TokenizeFailed) for end in ends)
        assert asyncio.get_running_loop().time() - began_s == pytest.approx(2.0, abs=0.01)
        assert server.asked("/tokenize") == CONCURRENT_MAX


@virtual
async def test_tokenize_without_an_engine() -> None:
    async with World({"a": Server(refuses=True)}).running() as world:
        with pytest.raises(TokenizeFailed, match="no engine is up"):
            await world.pool.tokenize({"prompt": "x"})


@virtual
async def test_tokenize_with_an_answer_that_is_none() -> None:
    server = Server()
    async with World({"a": server}).running() as world:
        for broken in ({}, {"count": "3"}, {"count": -1}):
            server.face.tokenize = lambda _, broken=broken: broken  # type: ignore[method-assign, misc]
            with pytest.raises(TokenizeFailed):
                await world.pool.tokenize({"prompt": "x"})


@virtual
async def test_token_ids_are_those_of_the_answer() -> None:
    server = Server()
    async with World({"a": server}).running() as world:
        server.face.tokenize = lambda body: {"count": 3, "tokens": [1, 2, 2**31]}  # type: ignore[method-assign]
        assert await world.pool.token_ids({"prompt": "x"}) == array("I", [1, 2, 2**31]).tobytes()
        for broken in ({"count": 3}, {"tokens": None}, {"tokens": [-1]}, {"tokens": [2**40]}):
            server.face.tokenize = lambda _, broken=broken: broken  # type: ignore[method-assign, misc]
            with pytest.raises(TokenizeFailed, match="no tokens"):
                await world.pool.token_ids({"prompt": "x"})


# --- real loops --------------------------------------------------------------------------------------------


@virtual
async def test_nothing_is_left_when_the_pool_ends() -> None:
    server = Server(aborts=True)
    async with World({"a": server}).running() as world:
        await world.pool.report(A, Trouble.EMPTY)
        await world.pool.report(A, Trouble.BUSY)
        await asyncio.sleep(0.02)
    assert asyncio.all_tasks() == {asyncio.current_task()}
