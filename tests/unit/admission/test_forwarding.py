"""What an engine is sent beside the body: the priority that kvgate decides on, and whose pulse its answer is."""

from __future__ import annotations

import httpx
import pytest

from kvgate.admission.contract import Call
from kvgate.admission.forwarding import FORECAST_PRIORITY, GUARANTEED_PRIORITY, forwarded
from kvgate.engines.base import Pulse, Target
from kvgate_policies.types import PriorityClass, TenantPolicy

BODY = b'{"priority": -7, "prompt": "x"}'


def a_call(*headers: tuple[bytes, bytes]) -> Call:
    return Call(
        method="POST",
        path="/v1/completions",
        headers=[(b"content-type", b"application/json"), *headers],
        body=BODY,
        arrived_s=0.0,
        tenant=TenantPolicy(),
        priority=PriorityClass.STANDARD,
        deadline_s=None,
        with_max_tokens=lambda _: BODY,
    )


def sent(*headers: tuple[bytes, bytes], priority: int | None = None) -> httpx.Request:
    target = Target("http://a", "http://a", pulse=Pulse())
    return forwarded(
        a_call(*headers), target, BODY, connect_s=1.0, read_s=None, pulse=target.pulse, priority=priority
    )


@pytest.mark.parametrize("asked", [(), ((b"x-vllm-priority", b"-100"),), ((b"x-vllm-priority", b"x"),) * 2])
def test_the_priority_decided_here_replaces_the_clients(asked: tuple[tuple[bytes, bytes], ...]) -> None:
    request = sent(*asked, priority=1)
    assert request.headers.get_list("x-vllm-priority") == ["1"]
    assert request.headers["content-type"] == "application/json"
    assert request.read() == BODY, "the header rules, so the body stays as it came"


def test_without_one_the_clients_passes() -> None:
    assert "x-vllm-priority" not in sent().headers
    assert sent((b"x-vllm-priority", b"3")).headers["x-vllm-priority"] == "3"


def test_nothing_else_comes_as_early_as_what_is_guaranteed() -> None:
    untold, a_later_turn = 0, FORECAST_PRIORITY - 1
    assert min(untold, a_later_turn) > GUARANTEED_PRIORITY


def test_the_pulse_goes_with_the_request() -> None:
    assert isinstance(sent().extensions["pulse"], Pulse)
