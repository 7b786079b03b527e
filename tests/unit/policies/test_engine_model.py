"""The engine model against what vLLM 0.32 did: step and preemption counts logged inside the real engine.

48 requests offered at t = 0, at most C in flight, 120 usable blocks of 32 tokens, 2048 tokens a step.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvgate_policies.engine_model import (
    EngineModel,
    FinishReason,
    SchedulingPolicy,
    SimRequest,
    StepProfile,
    StepResult,
)

STALL_STEPS = 20


def make_model(**changes) -> EngineModel:
    sizes = {"num_gpu_blocks": 121, "block_size": 32, "max_model_len": 2048, "max_num_seqs": 256}
    return EngineModel(**{**sizes, **changes})


@dataclass
class Run:
    """What came out of one closed-loop run."""

    model: EngineModel
    steps: int = 0
    longest_gap: int = 0
    preempted: set[str] = field(default_factory=set)
    stalled: set[str] = field(default_factory=set)
    running_sum: int = 0
    finished: list[str] = field(default_factory=list)
    _last: dict[str, int] = field(default_factory=dict)

    def note(self, result: StepResult) -> None:
        self.steps += 1
        self.running_sum += result.running
        self.preempted.update(result.preempted)
        self.finished += [request_id for request_id, _ in result.finished]
        for request_id in result.tokens:
            gap = self.steps - self._last.get(request_id, self.steps)
            self.longest_gap = max(self.longest_gap, gap)
            if gap > STALL_STEPS:
                self.stalled.add(request_id)
            self._last[request_id] = self.steps

    @property
    def preemptions(self) -> int:
        return self.model.counters.preemptions

    @property
    def mean_running(self) -> float:
        return self.running_sum / self.steps


def closed_loop(model: EngineModel, requests: list[SimRequest], in_flight: int, lag_steps: int = 1) -> Run:
    """A client that keeps `in_flight` requests going and takes `lag_steps` to send the next one."""
    run = Run(model)
    to_send = deque(requests)
    due: deque[int] = deque()
    for _ in range(min(in_flight, len(to_send))):
        assert model.add(to_send.popleft())
    step = 0
    while model.has_work or due:
        while due and due[0] <= step:
            due.popleft()
            if to_send:
                assert model.add(to_send.popleft())
        step += 1
        if not model.has_work:
            continue
        result = model.step()
        run.note(result)
        due += [step + lag_steps] * len(result.finished)
    return run


def alike(count: int, prompt: int, output: int, shared: int = 0) -> list[SimRequest]:
    key = "system prompt" if shared else None
    return [SimRequest(f"r{i}", prompt, output, prefix_key=key, prefix_tokens=shared) for i in range(count)]


# Against the real engine


@pytest.mark.parametrize(
    ("in_flight", "steps", "preemptions", "stalled", "longest_gap"),
    [
        (12, 527, 0, 0, 1),
        (13, 530, 3, 3, 33),
        (18, 518, 18, 13, 128),
        (24, 517, 16, 12, 128),
        (36, 526, 18, 12, 128),
        (48, 517, 16, 12, 128),
    ],
)
def test_prompt_heavy_requests_preempt_as_in_vllm(in_flight, steps, preemptions, stalled, longest_gap):
    run = closed_loop(make_model(), alike(48, 192, 129), in_flight)
    assert run.steps == pytest.approx(steps, rel=0.03)
    if in_flight <= 13:
        assert run.preemptions == preemptions
    else:
        assert run.preemptions == pytest.approx(preemptions, rel=0.3)
    assert len(run.stalled) == pytest.approx(stalled, abs=2)
    assert run.longest_gap == longest_gap


def test_within_capacity_the_step_count_is_that_of_vllm_to_two_percent():
    run = closed_loop(make_model(), alike(48, 192, 129), 12)
    assert run.steps == pytest.approx(527, rel=0.02)
    assert run.mean_running == pytest.approx(11.8, rel=0.02)


@pytest.mark.parametrize(
    ("in_flight", "steps", "preemptions", "recomputed_share"),
    [(12, 1042, 0, 0.0), (18, 798, 12, 0.159), (24, 796, 39, 0.31), (48, 803, 60, 0.465)],
)
def test_output_heavy_requests_preempt_as_in_vllm(in_flight, steps, preemptions, recomputed_share):
    run = closed_loop(make_model(), alike(48, 64, 257), in_flight)
    assert run.steps == pytest.approx(steps, rel=0.04)
    assert run.preemptions == pytest.approx(preemptions, rel=0.3)
    assert run.model.counters.recomputed_tokens / 15_408 == pytest.approx(recomputed_share, rel=0.15)


def test_long_outputs_of_short_prompts_preempt_as_in_vllm():
    within = closed_loop(make_model(), alike(32, 32, 400), 8)
    assert within.steps == pytest.approx(1608, rel=0.02)
    assert (within.preemptions, within.longest_gap) == (0, 1)
    beyond = closed_loop(make_model(), alike(32, 32, 400), 32)
    assert beyond.steps == pytest.approx(966, rel=0.02)
    assert beyond.preemptions == pytest.approx(39, rel=0.1)
    assert beyond.longest_gap == 544


def test_the_watermark_halves_preemptions_as_in_vllm():
    run = closed_loop(make_model(watermark=0.1), alike(48, 192, 129), 48)
    assert (run.preemptions, run.longest_gap) == (8, 97)
    assert run.steps == pytest.approx(517, rel=0.01)
    assert run.model.counters.recomputed_tokens / 15_408 == pytest.approx(0.133, abs=0.005)


def test_without_prefix_caching_a_resumed_request_computes_all_again():
    with_cache = closed_loop(make_model(), alike(48, 192, 129), 48).model.counters
    without = closed_loop(make_model(prefix_caching=False), alike(48, 192, 129), 48).model.counters
    assert without.preemptions == with_cache.preemptions
    assert with_cache.recomputed_tokens < without.recomputed_tokens
    assert without.recomputed_tokens / 15_408 == pytest.approx(0.227, abs=0.02)
    assert (without.prefix_queries, without.prefix_hits) == (0, 0)


@pytest.mark.parametrize(
    ("prompt", "output", "preemptions"),
    [(192, 129, 0), (192, 130, 1), (193, 128, 0), (193, 129, 1), (161, 160, 0), (1, 320, 0), (320, 1, 0)],
)
def test_twelve_sequences_of_320_slots_fit_and_of_321_do_not(prompt, output, preemptions):
    run = closed_loop(make_model(), alike(12, prompt, output), 12)
    assert run.preemptions == preemptions


@pytest.mark.parametrize(("in_flight", "preemptions"), [(22, 0), (23, 0), (24, 2)])
def test_a_shared_prefix_doubles_the_capacity(in_flight, preemptions):
    run = closed_loop(make_model(), alike(48, 192, 129, shared=160), in_flight)
    assert run.preemptions == preemptions


# Blocks


def test_a_sequence_holds_the_blocks_of_what_was_written():
    model = make_model()
    model.add(SimRequest("a", 31, 100))
    held = []
    for _ in range(68):
        model.step()
        held.append(model.blocks_of("a"))
    assert held == [-(-(31 + g - 1) // 32) for g in range(1, 69)]
    assert (held[1], held[2], held[33], held[34]) == (1, 2, 2, 3)


def test_siblings_share_the_full_blocks_of_their_prompt():
    model = make_model()
    prompt = tuple(range(200))
    requests = [SimRequest(f"n{i}", 200, 60, token_ids=prompt) for i in range(4)]
    model.add(requests[0])
    assert model.step().kv_used == 7
    for request in requests[1:]:
        model.add(request)
    assert model.step().kv_used == 10
    held = [model.step().kv_used for _ in range(30)]
    assert held[-1] == 14


def test_the_last_prompt_token_is_computed_again_in_a_block_of_its_own():
    model = make_model()
    prompt = tuple(range(256))
    model.add(SimRequest("a", 256, 9, token_ids=prompt))
    model.step()
    model.add(SimRequest("b", 256, 9, token_ids=prompt))
    result = model.step()
    assert model.counters.prefix_hits == 224
    assert result.computed_tokens == 1 + 32
    assert result.kv_used == 8 + 1 + 1  # and the first one grew into its ninth block


def test_what_ended_stays_in_the_cache_but_counts_as_free():
    model = make_model()
    model.add(SimRequest("a", 130, 1, token_ids=tuple(range(130))))
    model.step()
    assert (model.kv_used, model.has_work) == (0, False)
    model.add(SimRequest("b", 130, 1, token_ids=tuple(range(130))))
    result = model.step()
    assert (model.counters.prefix_hits, result.computed_tokens, result.kv_used) == (128, 2, 5)


def test_other_content_is_not_a_hit():
    model = make_model()
    model.add(SimRequest("a", 64, 1, token_ids=(1,) * 64))
    model.step()
    model.add(SimRequest("b", 96, 1, token_ids=(2,) * 32 + (1,) * 64))
    model.step()
    assert model.counters.prefix_hits == 0


def test_the_cache_is_overwritten_least_recently_freed_first():
    model = make_model(num_gpu_blocks=9, max_model_len=256)
    for name in ("old", "new"):
        model.add(SimRequest(name, 97, 1, prefix_key=name, prefix_tokens=96))
        model.step()
    model.add(SimRequest("big", 120, 1))
    model.step()
    model.add(SimRequest("again", 97, 1, prefix_key="new", prefix_tokens=96))
    model.step()
    assert model.counters.prefix_hits == 96
    model.add(SimRequest("gone", 97, 1, prefix_key="old", prefix_tokens=96))
    model.step()
    assert model.counters.prefix_hits == 96


# Order


def test_the_last_admitted_is_preempted_and_resumes_at_the_front():
    model = make_model(num_gpu_blocks=9, max_model_len=256)
    for name in "abcd":
        model.add(SimRequest(name, 64, 100))
    preempted = [name for _ in range(40) for name in model.step().preempted]
    assert preempted[:2] == ["d", "c"]
    run = Run(model)
    while model.has_work:
        run.note(model.step())
    assert run.finished == ["a", "b", "c", "d"]


def test_a_head_that_does_not_fit_holds_up_the_small_ones_behind():
    model = make_model(num_gpu_blocks=9, max_model_len=256)
    for request in (SimRequest("a", 150, 50), SimRequest("big", 200, 5), SimRequest("small", 10, 5)):
        model.add(request)
    assert model.step().admitted == ("a",)
    assert (model.running, model.waiting) == (1, 2)


def test_nothing_is_admitted_in_a_step_that_preempted():
    model = make_model(num_gpu_blocks=9, max_model_len=256)
    model.add(SimRequest("a", 96, 100))
    model.add(SimRequest("b", 128, 100))
    model.step()  # a and b fill 7 of 8 blocks with their first token, and the next ones need one each
    model.add(SimRequest("c", 10, 5))
    result = model.step()
    assert (result.preempted, result.admitted) == (("b",), ())
    assert model.step().admitted == ()  # b, in front, does not fit; c waits behind it


def test_long_prompts_are_computed_in_chunks_within_the_budget():
    model = make_model(max_num_batched_tokens=100)
    model.add(SimRequest("a", 250, 2))
    assert [(r.computed_tokens, r.tokens) for r in (model.step() for _ in range(3))] == [
        (100, ()),
        (100, ()),
        (50, ("a",)),
    ]


def test_max_num_seqs_bounds_the_running_set():
    model = make_model(max_num_seqs=2)
    for request in alike(3, 10, 5):
        model.add(request)
    model.step()
    assert (model.running, model.waiting) == (2, 1)


def test_priority_orders_the_line_and_preempts_the_least_urgent():
    model = make_model(num_gpu_blocks=9, max_model_len=256, policy=SchedulingPolicy.PRIORITY)
    for name, priority in (("late", 9), ("mid", 5), ("urgent", 0)):
        model.add(SimRequest(name, 64, 100, priority=priority))
    assert model.step().admitted == ("urgent", "mid", "late")
    preempted = [name for _ in range(40) for name in model.step().preempted]
    assert preempted[0] == "late"


def test_an_urgent_request_overtakes_the_waiting_but_evicts_nobody():
    model = make_model(max_num_seqs=1, policy=SchedulingPolicy.PRIORITY)
    for name, priority in (("running", 9), ("waiting", 9)):
        model.add(SimRequest(name, 10, 5, priority=priority))
    model.step()
    model.add(SimRequest("urgent", 10, 5, priority=0))
    run = Run(model)
    while model.has_work:
        run.note(model.step())
    assert run.finished == ["running", "urgent", "waiting"]
    assert run.preemptions == 0


# Coming and going


def test_the_end_comes_by_itself_by_the_limit_or_by_the_window():
    model = make_model(max_model_len=64)
    model.add(SimRequest("stops", 10, 20, stop_after=3))
    model.add(SimRequest("limit", 10, 3, stop_after=9))
    model.add(SimRequest("window", 60, 50))
    ends: dict[str, tuple[int, FinishReason]] = {}
    while model.has_work:
        ends |= {name: (model.counters.steps, reason) for name, reason in model.step().finished}
    assert ends == {
        "stops": (3, FinishReason.STOP),
        "limit": (3, FinishReason.LENGTH),
        "window": (4, FinishReason.LENGTH),
    }
    assert (model.counters.stopped, model.counters.cut_at_length) == (1, 2)


def test_an_aborted_sequence_is_gone_with_its_blocks():
    model = make_model(max_num_seqs=1)
    for request in alike(2, 100, 5):
        model.add(request)
    model.step()
    assert (model.abort("r0"), model.abort("r1"), model.abort("r0")) == (True, True, False)
    assert (model.kv_used, model.has_work) == (0, False)


def test_preempt_now_takes_the_last_admitted():
    model = make_model()
    for request in alike(2, 100, 5):
        model.add(request)
    model.step()
    assert model.preempt() == "r1"
    assert (model.running, model.waiting, model.counters.preemptions) == (1, 1, 1)
    result = model.step()
    assert (result.admitted, result.recomputed_tokens) == (("r1",), 4)  # 96 of its 100 are in the cache


def test_preempt_with_nothing_running_does_nothing():
    assert make_model().preempt() is None


def test_max_num_queued_reqs_counts_waiting_and_running():
    model = make_model(max_num_queued_reqs=2)
    assert [model.add(request) for request in alike(3, 10, 5)] == [True, True, False]
    assert (model.accepts(), model.counters.admission_rejections) == (False, 1)


def test_an_idle_step_changes_nothing_and_takes_no_time():
    model = make_model(profile=StepProfile("p", 0.1))
    assert model.step() == StepResult((), (), (), (), 0, 0, 0, 0, 0, 0.0)
    assert model.counters.steps == 0


def test_step_time_is_the_sum_of_its_four_terms():
    model = make_model(profile=StepProfile("p", 1.0, 0.1, 0.001, 0.01))
    model.add(SimRequest("a", 100, 5))
    assert model.step().step_s == pytest.approx(1.0 + 100 * 0.001 + 100 * 0.01)
    model.add(SimRequest("b", 10, 5))
    assert model.step().step_s == pytest.approx(1.0 + 0.1 + 111 * 0.001 + 10 * 0.01)


@pytest.mark.parametrize(
    "changes",
    [
        {"num_gpu_blocks": 1},
        {"num_gpu_blocks": 64},  # 63 usable: one block short of a sequence of 2048
        {"block_size": 0},
        {"max_num_seqs": 0},
        {"policy": "lifo"},
    ],
)
def test_sizes_no_engine_starts_with_are_refused(changes):
    with pytest.raises((ValueError, ZeroDivisionError)):
        make_model(**changes)


@pytest.mark.parametrize(
    ("prompt", "output", "more"),
    [
        (0, 1, {}),
        (1, 0, {}),
        (3, 1, {"token_ids": (1,)}),
        (3, 1, {"prefix_tokens": 4}),
        (3, 1, {"stop_after": 0}),
    ],
)
def test_requests_that_make_no_sense_are_refused(prompt, output, more):
    with pytest.raises(ValueError, match="x: "):
        SimRequest("x", prompt, output, **more)


def test_a_full_window_and_an_id_in_use_are_refused():
    model = make_model(max_model_len=64)
    with pytest.raises(ValueError, match="fills max_model_len"):
        model.add(SimRequest("a", 64, 1))
    model.add(SimRequest("a", 63, 1))
    with pytest.raises(ValueError, match="already here"):
        model.add(SimRequest("a", 1, 1))


# Always

REQUESTS = st.lists(
    st.tuples(st.integers(1, 200), st.integers(1, 80), st.integers(0, 2), st.integers(0, 3)),
    min_size=1,
    max_size=25,
)


@given(
    requests=REQUESTS,
    blocks=st.integers(19, 60),
    budget=st.integers(8, 300),
    caching=st.booleans(),
    policy=st.sampled_from(SchedulingPolicy),
    watermark=st.sampled_from([0.0, 0.2]),
    aborts=st.sets(st.integers(0, 24), max_size=5),
)
@settings(max_examples=150, deadline=None)
def test_everything_ends_exactly_once_and_no_block_is_lost(
    requests, blocks, budget, caching, policy, watermark, aborts
):
    model = make_model(
        num_gpu_blocks=blocks,
        block_size=16,
        max_model_len=288,
        max_num_batched_tokens=budget,
        prefix_caching=caching,
        policy=policy,
        watermark=watermark,
    )
    tokens = dict.fromkeys(map(str, range(len(requests))), 0)
    for index, (prompt, output, key, priority) in enumerate(requests):
        shared = prompt // 2 if key else 0
        model.add(
            SimRequest(str(index), prompt, output, priority, prefix_key=key or None, prefix_tokens=shared)
        )
    ended: list[str] = []
    while model.has_work:
        result = model.step()
        assert result.computed_tokens > 0
        assert result.computed_tokens <= budget
        assert result.kv_used <= model.usable_blocks
        assert len(set(result.tokens)) == len(result.tokens)
        for name in result.tokens:
            tokens[name] += 1
        ended += [name for name, _ in result.finished]
        if model.counters.steps in aborts:
            model.abort(str(model.counters.steps))
    assert model.kv_used == 0
    assert len(set(ended)) == len(ended)
    for name in ended:
        assert tokens[name] == requests[int(name)][1]
    counters = model.counters
    if not aborts:
        needed = sum(prompt + output - 1 for prompt, output, _, _ in requests)
        assert len(ended) == len(requests)
        assert counters.computed_tokens + counters.prefix_hits >= needed
        assert counters.prompt_tokens == sum(prompt for prompt, _, _, _ in requests)
