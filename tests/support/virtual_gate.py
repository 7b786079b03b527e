"""One process before one small engine, in virtual time: the forecaster, its pace and the ledger that serve over HTTP, and
the model of the engine that real vLLM is compared with (`tests/vllm/test_simulator.py`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING

from kvgate.admission.pricing import Priced
from kvgate.ledger.base import Ask
from kvgate.ledger.core import LedgerCore
from kvgate.replay.engine_base import Seen
from kvgate.replay.foreseeing import Counted, Foreseeing, Held
from kvgate_policies.engine_model import EngineModel, SimRequest, StepProfile
from kvgate_policies.forecast_fit import z_of
from kvgate_policies.forecast_request import Outlook
from kvgate_policies.kv_cost import price
from kvgate_policies.tenancy import OutputBudget
from kvgate_policies.types import EngineLimits, EngineShape, TenantPolicy, TokenCount

if TYPE_CHECKING:
    from kvgate.forecasting import Running

BLOCKS = 120
SHAPE = EngineShape(block_size=32, max_model_len=2048, prefix_caching=True)
PACED = StepProfile("paced", 0.022, source="as real vLLM takes, paced at 20 ms")
CPU = StepProfile("cpu", 0.022, 0.0003, 0.0, 0.00018, source="as `vllm-cpu-tiny` of the simulated engine")
"""Its steps last the longer, the more run and the more of prompts is read: its pace is never quite that of before."""
SCRAPE_S = 1.0
"""Between two looks at the engine's counters."""
PREFILL_TOKENS_PER_S = 8192
TENANT = TenantPolicy("t", reservation="forecast")
STEPS_MAX = 20_000

Sizes = Mapping[str, tuple[int, int]]
"""Of each request: tokens of the prompt and of the answer."""


@dataclass(frozen=True, slots=True)
class Ran:
    steps: int
    preemptions: int
    kv_use: float
    """Mean part of the blocks in use, until the last request has begun."""


def direct(sizes: Sizes) -> Ran:
    """All at once, with no limit."""
    engine = _Engine(PACED)
    for request_id in sizes:
        engine.add(request_id, sizes)
    while engine.has_work:
        engine.step()
    return engine.ran


class VirtualGate:
    """Its forecaster remembers from one run to the next. A request is on the engine one step after its grant, and its end
    is known one step after its last token.
    """

    def __init__(
        self,
        *,
        risk: float,
        known: bool,
        streams: Callable[[str], bool] = lambda _: True,
        profile: StepProfile = PACED,
    ) -> None:
        """`known`: whether lengths are known to the gate (`ignore_eos`). `streams`: whether a request's answer comes as
        a stream; else nothing is seen of it but the engine's counters, at each scrape.
        """
        self._known, self._z = known, z_of(risk)
        self._streams, self._profile = streams, profile
        self._step, self._time_s, self._scrape_s = 0, 0.0, 0.0
        self._core = LedgerCore(bypass_max=8, scan_depth=4, grants_max=16, tie=0)
        self._core.observe(EngineLimits("e", SHAPE, BLOCKS, 256, PREFILL_TOKENS_PER_S))
        self.changes: list[frozenset[str]] = []
        """Whose lengths were taken to have changed."""
        self._foreseeing = Foreseeing(
            self._core, self._now_s, self.changes.append, PREFILL_TOKENS_PER_S, ["e"]
        )
        self._look_s = 0.0
        self._tokens: dict[str, int] = {}
        self._running: dict[str, Running] = {}
        self._begin_at: dict[int, list[str]] = defaultdict(list)
        self._end_at: dict[int, list[str]] = defaultdict(list)

    def run(self, sizes: Sizes) -> Ran:
        """All at once, in the order given, until the last one is over."""
        engine = _Engine(self._profile)
        priced = {request_id: self._price(*size) for request_id, size in sizes.items()}
        for request_id, tag in priced.items():
            seq = self._core.reserve(Ask(request_id, "t", tag.costs, 1000, z=self._z), self._now_s())
            assert isinstance(seq, int), f"refused: {seq}"
        left = len(sizes)
        while left:
            left -= self._ends(sizes)
            self._scrape(engine)
            if self._now_s() >= self._look_s:
                self._look_s = self._now_s() + self._foreseeing.look()
            self._grants(priced)
            for request_id in self._begin_at.pop(self._step, ()):
                engine.add(request_id, sizes)
            self._step += 1
            self._end_at[self._step].extend(self._steps(engine))
        return engine.ran

    def _now_s(self) -> float:
        return self._time_s

    def _scrape(self, engine: _Engine) -> None:
        if self._time_s >= self._scrape_s:
            self._scrape_s = self._time_s + SCRAPE_S
            self._foreseeing.scraped({"e": engine.seen}, lambda _: engine.tokens)

    def _price(self, prompt: int, output: int) -> Priced:
        limit = output if self._known else SHAPE.max_model_len - prompt
        outlook = Outlook((prompt,), limit, ignore_eos=self._known)
        costs = {SHAPE: price(SHAPE, (prompt,), limit, 1)}
        count, budget = TokenCount((prompt,), exact=True), OutputBudget(limit, None)
        return self._foreseeing.price(Priced(costs, count, budget, outlook=outlook), TENANT)

    def _ends(self, sizes: Sizes) -> int:
        ended = self._end_at.pop(self._step, ())
        for request_id in ended:
            _, output = sizes[request_id]
            self._foreseeing.end(self._running.pop(request_id), output, by_itself=not self._known)
            self._core.end(request_id)
        return len(ended)

    def _grants(self, priced: Mapping[str, Priced]) -> None:
        if self._core.unfinished:
            self._core.go_on()
        for request_id, grant in self._core.take_decisions():
            assert not isinstance(grant, str), f"{request_id} was refused: {grant}"
            self._tokens[request_id] = 0
            streams = self._streams(request_id)
            counted = Counted(partial(self._tokens.__getitem__, request_id)) if streams else None
            held = Held(grant.cost, lambda blocks: None)
            self._running[request_id] = self._foreseeing.begin(
                held, grant, priced[request_id], TENANT, counted
            )
            self._begin_at[self._step + 1].append(request_id)

    def _steps(self, engine: _Engine) -> Sequence[str]:
        """Who ended."""
        more, ended, step_s = engine.step()
        self._time_s += step_s or self._profile.step_s
        for request_id in more:
            self._tokens[request_id] += 1
        return ended


class _Engine:
    """The model, and what became of it."""

    def __init__(self, profile: StepProfile) -> None:
        self._model = EngineModel(
            num_gpu_blocks=BLOCKS + 1,
            block_size=SHAPE.block_size,
            max_model_len=SHAPE.max_model_len,
            max_num_seqs=256,
            max_num_batched_tokens=2048,
            profile=profile,
        )
        self._used: list[int] = []
        self._last_begun = 0
        self._preemptions = 0

    def add(self, request_id: str, sizes: Sizes) -> None:
        self._model.add(SimRequest(request_id, *sizes[request_id]))

    def step(self) -> tuple[Sequence[str], Sequence[str], float]:
        """Who has one token more, who ended, and how long it took."""
        if not self._model.has_work:
            return (), (), 0.0
        result = self._model.step()
        self._used.append(result.kv_used)
        self._preemptions += len(result.preempted)
        if result.admitted:
            self._last_begun = len(self._used)
        assert len(self._used) < STEPS_MAX, "the engine never gets done"
        ended = [request_id for request_id, _ in result.finished]
        return tuple(result.tokens), ended, result.step_s

    @property
    def tokens(self) -> int:
        return self._model.counters.generation_tokens

    @property
    def seen(self) -> Seen:
        model = self._model
        counters = model.counters
        return Seen(model.kv_used, model.running, model.waiting, counters.preemptions, counters.steps)

    @property
    def has_work(self) -> bool:
        return self._model.has_work

    @property
    def ran(self) -> Ran:
        return Ran(len(self._used), self._preemptions, fmean(self._used[: self._last_begun]) / BLOCKS)
