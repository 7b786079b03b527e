"""Traces: what becomes of the phases that a line tells, whatever way it takes."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes as names
from opentelemetry.trace import SpanKind, StatusCode

from kvgate.config import Settings, load
from kvgate.errors import ConfigError
from kvgate.telemetry import span_attributes
from kvgate.telemetry.otel import OtelTrace, OtelTracer
from kvgate.telemetry.otel_export import CountedExporter, resource
from kvgate.telemetry.record import RequestRecord
from kvgate.telemetry.traces import Phase, SpanCount, tracing
from kvgate_policies.types import Endpoint, Outcome

ENGINE = "http://gpu-a:8000"
TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"
ROUTE = "/v1/chat/completions"


class Hand:
    """A clock moved by hand."""

    now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


@dataclass
class Rig:
    clock: Hand
    tracer: OtelTracer
    exporter: InMemorySpanExporter
    counts: dict[SpanCount, int]

    def begin(self, record: RequestRecord, *headers: tuple[bytes, bytes], method: str = "POST") -> OtelTrace:
        return self.tracer.begin(record, method, ROUTE, headers, self.clock.now_s)

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        return self.exporter.get_finished_spans()

    def after(self, seconds: float) -> None:
        self.clock.now_s += seconds


def rig(sample: float = 1.0) -> Rig:
    clock, exporter, counts = Hand(), InMemorySpanExporter(), dict.fromkeys(SpanCount, 0)

    def count(what: SpanCount, spans: int) -> None:
        counts[what] += spans

    return Rig(clock, OtelTracer(SimpleSpanProcessor(exporter), sample, clock, count), exporter, counts)


def a_record(outcome: Outcome | None = None, **more: Any) -> RequestRecord:
    record = RequestRecord("r1", tenant="shop", endpoint=Endpoint.CHAT, model="m", outcome=outcome)
    for name, value in more.items():
        setattr(record, name, value)
    return record


def length_s(span: ReadableSpan) -> float:
    assert span.start_time is not None
    assert span.end_time is not None
    return (span.end_time - span.start_time) / 1e9


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def test_phases_follow_each_other_and_the_last_has_the_outcome() -> None:
    rigged, record = rig(), a_record()
    trace = rigged.begin(record)
    for phase, seconds in ((Phase.RESERVE, 0.5), (Phase.QUEUE, 3.0), (Phase.RELAY, 7.0)):
        trace.enter(phase, at=ENGINE)
        rigged.after(seconds)
    record.outcome, record.status, record.ttft_s = Outcome.SERVED, 200, 4.0
    trace.end()
    reserve, queue, relay, root = rigged.spans
    assert [span.name for span in rigged.spans] == ["reserve", "queue", "relay", f"POST {ROUTE}"]
    assert [length_s(span) for span in rigged.spans] == pytest.approx([0.5, 3.0, 7.0, 10.5])
    assert reserve.end_time == queue.start_time
    assert queue.end_time == relay.start_time
    assert {span.parent.span_id for span in (reserve, queue, relay) if span.parent} == {root.context.span_id}
    assert {span.status.status_code for span in rigged.spans} == {StatusCode.UNSET}
    assert attributes(relay)["kvgate.outcome"] == "served"
    assert "kvgate.outcome" not in attributes(queue)
    assert relay.events[0].timestamp == (root.start_time or 0) + 4_000_000_000
    assert record.trace_id == f"{root.context.trace_id:032x}"
    assert rigged.counts[SpanCount.ENDED] == 4


def test_each_attempt_has_a_relay_of_its_own_and_the_failed_one_says_why() -> None:
    rigged, record = rig(), a_record()
    trace = rigged.begin(record)
    trace.enter(Phase.RESERVE)
    record.engine_id = "http://gpu-a:8000"
    trace.enter(Phase.RELAY, at="http://gpu-a:8000")
    trace.leave()
    rigged.after(0.3)  # the reservation is held a moment longer
    trace.enter(Phase.RESERVE, after="reset")
    record.engine_id = "http://gpu-b"
    trace.enter(Phase.RELAY, at="http://gpu-b")
    record.outcome, record.status = Outcome.SERVED, 200
    trace.end()
    first, second = [span for span in rigged.spans if span.name == "relay"]
    assert (first.kind, second.kind) == (SpanKind.CLIENT, SpanKind.CLIENT)
    assert (first.status.status_code, first.status.description) == (StatusCode.ERROR, "reset")
    assert length_s(first) == 0.0, "it was over before the hold"
    assert second.status.status_code is StatusCode.UNSET
    addresses = [(attributes(s)["server.address"], attributes(s)["server.port"]) for s in (first, second)]
    assert addresses == [("gpu-a", 8000), ("gpu-b", 80)]
    assert attributes(second)["http.response.status_code"] == 200
    assert "http.response.status_code" not in attributes(first)


def test_a_queued_request_that_leaves_is_no_error() -> None:
    rigged, record = rig(), a_record()
    trace = rigged.begin(record)
    trace.enter(Phase.RESERVE)
    trace.enter(Phase.QUEUE)
    record.outcome = Outcome.CLIENT_GONE
    trace.end()
    _, queue, root = rigged.spans
    assert attributes(queue)["kvgate.outcome"] == attributes(root)["kvgate.outcome"] == "client_gone"
    assert {queue.status.status_code, root.status.status_code} == {StatusCode.UNSET}


@pytest.mark.parametrize(
    "outcome", [one for one in Outcome if one not in {Outcome.SERVED, Outcome.CLIENT_GONE}]
)
def test_every_other_end_is_an_error_with_its_reason(outcome: Outcome) -> None:
    rigged, record = rig(), a_record(outcome, reason="a_reason")
    trace = rigged.begin(record)
    trace.enter(Phase.RESERVE)
    trace.end()
    for span in rigged.spans:
        assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "a_reason")
        assert attributes(span)["error.type"] == "a_reason"
        assert attributes(span)["kvgate.outcome"] == outcome.value


@settings(deadline=None)
@given(st.lists(st.sampled_from([*Phase, "leave", "wait"]), max_size=12), st.sampled_from(Outcome))
def test_no_way_through_leaves_a_span_open_or_outside_its_parent(steps: list[str], outcome: Outcome) -> None:
    rigged, record = rig(), a_record()
    trace = rigged.begin(record)
    for step in steps:
        if step == "leave":
            trace.leave()
        elif step == "wait":
            rigged.after(1.0)
        else:
            trace.enter(Phase(step), at=ENGINE)
    record.outcome = outcome
    trace.end()
    *children, root = rigged.spans
    assert len(children) == sum(step in set(Phase) for step in steps)
    assert rigged.counts[SpanCount.ENDED] == len(rigged.spans)
    for earlier, later in pairwise(children):
        assert (earlier.end_time or 0) <= (later.start_time or 0)
    for child in children:
        assert (
            (root.start_time or 0) <= (child.start_time or 0) <= (child.end_time or 0) <= (root.end_time or 0)
        )


def test_the_client_s_trace_goes_on_and_the_engine_is_told_of_the_relay() -> None:
    rigged, record = rig(), a_record()
    headers = (
        (b"traceparent", PARENT.encode()),
        (b"tracestate", b"a=1"),
        (b"tracestate", b"b=2"),
        (b"x", b"y"),
    )
    trace = rigged.begin(record, *headers)
    trace.enter(Phase.RELAY, at=ENGINE)
    out = trace.outgoing([*headers, (b"baggage", b"k=v")])
    record.outcome = Outcome.SERVED
    trace.end()
    relay, root = rigged.spans
    assert record.trace_id == TRACE
    assert root.parent is not None
    assert f"{root.parent.span_id:016x}" == PARENT.split("-")[2]
    assert dict(out)[b"traceparent"] == f"00-{TRACE}-{relay.context.span_id:016x}-01".encode()
    assert dict(out)[b"tracestate"] == b"a=1,b=2"
    assert [name for name, _ in out] == [b"x", b"baggage", b"traceparent", b"tracestate"]


MALFORMED = (
    b"",
    b"00",
    PARENT.encode()[:-3],
    PARENT.upper().encode(),
    b"ff" + PARENT.encode()[2:],
    f"00-{'0' * 32}-b7ad6b7169203331-01".encode(),
    f"00-{TRACE}-{'0' * 16}-01".encode(),
    b"\xff\xfe\x00",
    PARENT.encode() + b"-more",
    b"x" * 20_000,
)


@pytest.mark.parametrize("said", MALFORMED, ids=range(len(MALFORMED)))
def test_a_malformed_parent_begins_a_new_trace(said: bytes) -> None:
    rigged, record = rig(), a_record(Outcome.SERVED)
    trace = rigged.begin(record, (b"traceparent", said), (b"tracestate", b"a=1"))
    out = dict(trace.outgoing([(b"traceparent", said), (b"tracestate", b"a=1")]))
    trace.end()
    [root] = rigged.spans
    assert root.parent is None
    assert record.trace_id not in {None, TRACE}
    assert out[b"traceparent"] != said
    assert b"tracestate" not in out


def test_two_parents_are_none() -> None:
    rigged, record = rig(), a_record(Outcome.SERVED)
    rigged.begin(record, (b"traceparent", PARENT.encode()), (b"traceparent", PARENT.encode())).end()
    assert record.trace_id != TRACE


@settings(deadline=None)
@given(st.binary(max_size=80), st.lists(st.binary(max_size=80), max_size=3))
def test_no_header_does_harm(parent: bytes, states: list[bytes]) -> None:
    rigged, record = rig(), a_record(Outcome.SERVED)
    trace = rigged.begin(record, (b"traceparent", parent), *((b"tracestate", state) for state in states))
    trace.enter(Phase.RELAY, at=ENGINE)
    out = trace.outgoing([])
    trace.end()
    assert len(rigged.spans) == 2
    assert all(b"\r" not in value and b"\n" not in value for _, value in out)


class TestSampling:
    def test_what_is_not_sampled_has_no_spans_but_tells_the_engine(self) -> None:
        rigged, record = rig(0.0), a_record(Outcome.SERVED)
        trace = rigged.begin(record)
        trace.enter(Phase.RELAY, at=ENGINE)
        trace.leave()
        [(_, told)] = trace.outgoing([])
        trace.end()
        assert rigged.spans == ()
        assert record.trace_id is None
        assert int(told[-2:], 16) & 1 == 0
        assert rigged.counts[SpanCount.ENDED] == 0

    @pytest.mark.parametrize(("flags", "sampled"), [("01", True), ("00", False)])
    @pytest.mark.parametrize("share", [0.0, 1.0])
    def test_a_trace_begun_elsewhere_follows_its_beginning(
        self, flags: str, sampled: bool, share: float
    ) -> None:
        rigged, record = rig(share), a_record(Outcome.SERVED)
        trace = rigged.begin(record, (b"traceparent", (PARENT[:-2] + flags).encode()))
        [(_, told)] = trace.outgoing([])
        trace.end()
        assert bool(rigged.spans) is sampled
        assert told.startswith(f"00-{TRACE}-".encode())
        assert bool(int(told[-2:], 16) & 1) is sampled

    def test_a_share_is_kept(self) -> None:
        rigged = rig(0.25)
        for _ in range(2000):
            rigged.begin(a_record(Outcome.SERVED)).end()
        assert 350 < len(rigged.spans) < 650


class TestAttributes:
    def test_their_names_are_those_of_the_conventions(self) -> None:
        record = a_record(
            Outcome.SERVED,
            prompt_tokens_real=9,
            completion_tokens=3,
            max_tokens_asked=5,
            n=2,
            stream=True,
            ttft_s=0.1,
        )
        told = span_attributes.of_request("POST", ROUTE, record)
        ours = {name for name in told if name.startswith("gen_ai.")}
        assert ours == {
            names.GEN_AI_OPERATION_NAME,
            names.GEN_AI_PROVIDER_NAME,
            names.GEN_AI_REQUEST_MODEL,
            names.GEN_AI_REQUEST_MAX_TOKENS,
            names.GEN_AI_REQUEST_CHOICE_COUNT,
            names.GEN_AI_REQUEST_STREAM,
            names.GEN_AI_USAGE_INPUT_TOKENS,
            names.GEN_AI_USAGE_OUTPUT_TOKENS,
            names.GEN_AI_RESPONSE_TIME_TO_FIRST_CHUNK,
        }

    def test_every_endpoint_has_an_operation(self) -> None:
        assert set(span_attributes.OPERATIONS) == set(Endpoint)
        known = {one.value for one in names.GenAiOperationNameValues}
        assert set(span_attributes.OPERATIONS.values()) - known == {"transcription"}

    def test_the_limit_is_what_the_engine_was_told(self) -> None:
        record = a_record(Outcome.SERVED, max_tokens_asked=None, max_tokens_charged=2048)
        assert "gen_ai.request.max_tokens" not in span_attributes.of_relay(ENGINE, record, last=True)
        record.max_tokens_rewritten = True
        assert span_attributes.of_relay(ENGINE, record, last=True)["gen_ai.request.max_tokens"] == 2048

    def test_names_of_spans_are_few(self) -> None:
        assert span_attributes.name("POST", ROUTE) == f"POST {ROUTE}"
        assert span_attributes.name("GET", None) == "GET"
        assert span_attributes.name("X" * 500, None) == "HTTP"

    def test_names_that_clients_choose_are_bounded(self) -> None:
        record = a_record(Outcome.SERVED, model="m\udc80" + "x" * 5000)
        told = span_attributes.of_request("POST", ROUTE, record)
        assert len(str(told["gen_ai.request.model"])) == 200
        str(told["gen_ai.request.model"]).encode()


class Failing(SpanExporter):
    """A collector's client that does what it is told."""

    def __init__(self, *answers: SpanExportResult | Exception) -> None:
        self._answers = iter(answers)

    def export(self, spans: Any) -> SpanExportResult:
        answer = next(self._answers)
        if isinstance(answer, Exception):
            raise answer
        if answer is SpanExportResult.FAILURE:
            logging.getLogger("opentelemetry.exporter.otlp").warning("Transient error %s", "no route to host")
            logging.getLogger("opentelemetry.exporter.otlp").error("Failed to export for good")
        return answer

    def shutdown(self) -> None:
        pass


@pytest.fixture
def counted() -> Iterator[tuple[CountedExporter, dict[SpanCount, int]]]:
    counts = dict.fromkeys(SpanCount, 0)

    def count(what: SpanCount, spans: int) -> None:
        counts[what] += spans

    exporter = CountedExporter("http://collector:4318/", count)
    yield exporter, counts
    exporter.shutdown()


def test_trouble_with_the_collector_is_said_once_and_counted_always(
    counted: tuple[CountedExporter, dict[SpanCount, int]],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    exporter, counts = counted
    bad, good = SpanExportResult.FAILURE, SpanExportResult.SUCCESS
    monkeypatch.setattr(exporter, "_inner", Failing(good, bad, RuntimeError("bug"), bad, good, good, bad))
    spans = rig_spans(2)
    with caplog.at_level(logging.INFO):
        results = [exporter.export(spans) for _ in range(7)]
    assert [result is good for result in results] == [True, False, False, False, True, True, False]
    assert (counts[SpanCount.EXPORTED], counts[SpanCount.FAILED]) == (6, 8)
    said = [record.getMessage() for record in caplog.records if record.name.startswith("kvgate.")]
    assert len(said) == 3
    assert "http://collector:4318" in said[0]
    assert "no route to host" in said[0]
    assert "again" in said[1]


def test_what_clients_write_is_not_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        exporter = CountedExporter("http://collector:4318", lambda *_: None)
        try:
            trace = rig().begin(
                a_record(), (b"traceparent", PARENT.encode()), (b"tracestate", b"!forged line!")
            )
            trace.end()
        finally:
            exporter.shutdown()
    assert caplog.records == []


def rig_spans(count: int) -> list[ReadableSpan]:
    rigged = rig()
    for _ in range(count):
        rigged.begin(a_record(Outcome.SERVED)).end()
    return list(rigged.spans)


def test_the_library_s_log_is_its_own_again_afterwards() -> None:
    logger = logging.getLogger("opentelemetry")
    before = (logger.propagate, list(logger.handlers))
    exporter = CountedExporter("http://collector:4318", lambda *_: None)
    assert not logger.propagate
    exporter.shutdown()
    assert (logger.propagate, logger.handlers) == before


def test_the_service_is_named_by_the_standard_variables_or_else_kvgate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OTEL_SERVICE_NAME", raising=False)
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=prod")
    told = resource().attributes
    assert (told["service.name"], told["deployment.environment.name"]) == ("kvgate", "prod")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "gate-eu")
    assert resource().attributes["service.name"] == "gate-eu"


BACKEND = {"backends": ["http://a:1"]}


class TestSettings:
    def test_off_unless_an_endpoint_is_given(self) -> None:
        assert load(None, {}, BACKEND).otlp_endpoint is None

    def test_ours_wins_over_the_standard_variable(self) -> None:
        standard = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://standard:4318/"}
        assert load(None, standard, BACKEND).otlp_endpoint == "http://standard:4318"
        both = standard | {"KVGATE_OTLP_ENDPOINT": "http://ours:4318/v1/traces"}
        assert load(None, both, BACKEND).otlp_endpoint == "http://ours:4318"
        option = BACKEND | {"otlp_endpoint": "https://option/otlp"}
        assert load(None, both, option).otlp_endpoint == "https://option/otlp"

    @pytest.mark.parametrize(
        "said",
        ["collector:4318", "grpc://c:4317", "http://", "http://u:secret@c", "http://c?k=v", "http://a b"],
    )
    def test_what_is_no_collector_is_refused(self, said: str) -> None:
        with pytest.raises(ConfigError, match="OTLP over HTTP"):
            load(None, {"KVGATE_OTLP_ENDPOINT": said}, BACKEND)

    def test_without_the_extra_it_says_what_to_install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for missing in ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"):
            with monkeypatch.context() as patched:
                patched.setitem(sys.modules, missing, None)
                with pytest.raises(
                    ConfigError, match=r"KVGATE_OTLP_ENDPOINT: .*pip install 'kvgate\[otel\]'"
                ):
                    load(None, {"KVGATE_OTLP_ENDPOINT": "http://c:4318"}, BACKEND)
                assert load(None, {}, BACKEND).otlp_endpoint is None

    def test_shares_of_traces(self) -> None:
        assert load(None, {"KVGATE_TRACE_SAMPLE": "5%"}, BACKEND).trace_sample == 0.05
        with pytest.raises(ConfigError, match="KVGATE_TRACE_SAMPLE"):
            load(None, {"KVGATE_TRACE_SAMPLE": "120%"}, BACKEND)


async def test_without_an_endpoint_there_is_no_tracer() -> None:
    async with tracing(Settings(backends=("http://a:1",)), Hand(), lambda *_: None) as tracer:
        assert tracer is None


def test_without_an_endpoint_the_library_is_not_even_loaded() -> None:
    """In a process of its own: here it is loaded."""
    asked = "import sys, kvgate.app; print(bool({'kvgate.telemetry.otel', 'opentelemetry.sdk.trace'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
