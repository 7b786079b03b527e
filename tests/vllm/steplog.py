"""vLLM's own scheduler, with a log: one JSON line for each engine step. Runs inside the engine's process.

It decides nothing; it writes down what was decided. Wall time on a shared CPU is noise, but steps, blocks and
tokens are exact, so the tests measure with this. The fields of a line are those of `steps.Step`.

It can also pace the engine: a step of the tiny model takes 4 ms, one of a model in use 10 to 30 ms, and how
many steps pass during an HTTP round trip must not depend on the model's size. The wait uses no CPU, as a GPU's.

vLLM takes it by `--scheduler-cls steplog.LoggingScheduler`. `$KVGATE_STEPLOG` is the file to append to; the file
of that name with `.pace` added holds the least time of a step, in seconds, while there is one.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler  # type: ignore[import-not-found]


class LoggingScheduler(Scheduler):  # type: ignore[misc]
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._log = Path(os.environ["KVGATE_STEPLOG"]).open("a", encoding="utf-8")  # noqa: SIM115 (the engine's life)
        self._pace = Path(os.environ["KVGATE_STEPLOG"] + ".pace")
        self._began_s = 0.0
        self._number = 0
        self._computed_max: dict[str, int] = {}
        """Tokens of each request whose KV was ever computed; a preemption drops the KV, not this."""

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        self._wait_for_pace()
        output = super().schedule(*args, **kwargs)
        if output.total_num_scheduled_tokens or output.preempted_req_ids:
            self._number += 1
            self._log.write(json.dumps(self._line(output)) + "\n")
            self._log.flush()  # a test reads as soon as it has its answer
        for request_id in output.finished_req_ids:
            self._computed_max.pop(request_id, None)
        return output

    def _wait_for_pace(self) -> None:
        try:
            pace_s = float(self._pace.read_text())
        except FileNotFoundError:
            pace_s = 0.0
        time.sleep(max(0.0, self._began_s + pace_s - time.monotonic()))
        self._began_s = time.monotonic()

    def _line(self, output: Any) -> dict[str, Any]:
        pool = self.kv_cache_manager.block_pool
        queues = (self.kv_holding_waiting, self.waiting)
        return {
            "step": self._number,
            "run": len(self.running),
            "wait": [request.request_id for queue in queues for request in queue],
            "kv": pool.num_gpu_blocks - 1 - pool.get_num_free_blocks(),
            "t": output.total_num_scheduled_tokens,
            "out": [name for name in output.num_scheduled_tokens if self._emits(name)],
            "pre": sorted(output.preempted_req_ids or ()),
            "new": [request.req_id for request in output.scheduled_new_reqs],
            "prio": {r.req_id: self.requests[r.req_id].priority for r in output.scheduled_new_reqs},
            "res": sorted(output.scheduled_cached_reqs.resumed_req_ids or ()),
            "again": sum(self._again(name, count) for name, count in output.num_scheduled_tokens.items()),
        }

    def _emits(self, request_id: str) -> bool:
        """Whether this step computes the last known token of a request, so that a new one is sampled."""
        request = self.requests[request_id]
        return bool(request.num_computed_tokens >= request.num_tokens)

    def _again(self, request_id: str, count: int) -> int:
        """How many of the tokens computed in this step were computed before."""
        after: int = self.requests[request_id].num_computed_tokens
        known = self._computed_max.get(request_id, 0)
        self._computed_max[request_id] = max(known, after)
        return max(0, min(known, after) - (after - count))
