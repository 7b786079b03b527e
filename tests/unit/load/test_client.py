"""The client on a real socket on 127.0.0.1, against scripted answers."""

from __future__ import annotations

import asyncio

import pytest

from kvgate.load import LoadRun, Patience, StreamEnd, offer, uniform
from kvgate.load.client import retry_after_s
from support.upstream import ScriptedUpstream, byte_by_byte, cut, hang, reset, respond, sse

QUICK = Patience(stream_s_max=10.0, retry_after_s_default=0.001, retries_max=2)


def _workload(count: int, output_tokens: int = 3):
    return uniform("m", count=count, prompt_tokens=5, output_tokens=output_tokens, seed=1)


def _events(tokens: int = 3, finish_reason: str | None = "length"):
    def usage(count):
        return {"prompt_tokens": 5, "completion_tokens": count}

    body = [{"choices": [{"text": "a"}], "usage": usage(count + 1)} for count in range(tokens)]
    body[-1]["choices"][0]["finish_reason"] = finish_reason
    return [*body, {"choices": [], "usage": usage(tokens)}]


async def test_a_good_stream_whole_or_in_single_bytes():
    async with ScriptedUpstream(sse(_events(), delay_s=0.01), byte_by_byte(sse(_events()))) as up:
        records = await offer(up.url, _workload(2), concurrency=1)
        assert [record.end for record in records] == [StreamEnd.COMPLETED] * 2
        for record in records:
            assert (record.status, record.finish_reason, record.error) == (200, "length", None)
            assert (record.prompt_tokens, record.completion_tokens) == (5, 3)
            assert len(record.token_times_s) == 3
            assert record.token_times_s == sorted(record.token_times_s)
            assert record.sent_s <= record.token_times_s[0] <= record.token_times_s[-1]
            assert record.ended_s is not None
            assert record.token_times_s[-1] <= record.ended_s
        assert [seen.path for seen in up.requests] == ["/v1/completions"] * 2
        assert len(up.requests[0].json["prompt"]) == 5


async def test_a_refusal_is_retried_and_its_time_counts_into_the_first_token():
    refused = [respond({"error": "full"}, status, [("retry-after", "0")]) for status in (429, 503)]
    async with ScriptedUpstream(*refused, sse(_events())) as up:
        [record] = await offer(up.url, _workload(1), patience=QUICK)
        assert (record.end, record.retries, len(up.requests)) == (StreamEnd.COMPLETED, 2, 3)


@pytest.mark.parametrize(
    ("answer", "requests"),
    [
        (respond({"error": "full"}, 429), 3),
        (respond({"error": "too long"}, 429, [("x-should-retry", "false")]), 1),
        (respond({"error": "bad"}, 400), 1),
        (respond({"error": "broken"}, 500), 1),
    ],
)
async def test_a_final_refusal(answer, requests):
    async with ScriptedUpstream(answer) as up:
        [record] = await offer(up.url, _workload(1), patience=QUICK)
        assert record.end is StreamEnd.REFUSED
        assert "error" in str(record.error)
        assert len(up.requests) == requests


@pytest.mark.parametrize(
    ("answer", "end"),
    [
        (reset(), StreamEnd.FAILED),
        (cut(sse(_events()), 300), StreamEnd.FAILED),
        (sse(_events(), whole=False, done=False)[:-1], StreamEnd.TIMED_OUT),
        (hang(), StreamEnd.TIMED_OUT),
        (sse([*_events(2, None), {"error": {"message": "died"}}]), StreamEnd.FAILED),
        (sse(["<html>"]), StreamEnd.FAILED),
        (sse(_events(2, "abort")), StreamEnd.ABORTED),
        (sse([]), StreamEnd.ABORTED),
        (sse([], done=False), StreamEnd.FAILED),
        (sse(_events(2)), StreamEnd.WRONG_LENGTH),
        (sse(_events(4)), StreamEnd.WRONG_LENGTH),
    ],
)
async def test_bad_ends_are_records_not_exceptions(answer, end):
    async with ScriptedUpstream(answer) as up:
        [record] = await offer(up.url, _workload(1), patience=Patience(stream_s_max=0.5))
        assert record.end is end
        assert record.ended_s is not None


async def test_nobody_listens():
    async with ScriptedUpstream() as up:
        url = up.url
    [record] = await offer(url, _workload(1))
    assert (record.end, record.status) == (StreamEnd.FAILED, None)


async def test_a_closed_loop_never_has_more_in_flight_than_clients():
    most = 0
    async with ScriptedUpstream(sse(_events(), delay_s=0.002)) as up:

        async def watch() -> None:
            nonlocal most
            while True:
                most = max(most, up.connections_open)
                await asyncio.sleep(0)

        watching = asyncio.create_task(watch())
        records = await offer(up.url, _workload(12), concurrency=3)
        watching.cancel()
    assert [record.index for record in records] == list(range(12))
    assert 1 < most <= 3


async def test_at_once_is_at_once_and_urls_take_turns():
    release = asyncio.Event()
    held = (release, *sse(_events()))
    async with ScriptedUpstream(held) as one, ScriptedUpstream(held) as two:
        run = LoadRun([one.url, two.url], _workload(8))
        running = asyncio.create_task(run.run())
        await one.until(lambda: len(one.requests) == len(two.requests) == 4)
        assert [record.end for record in run.records] == [None] * 8
        release.set()
        records = await running
    assert [record.url for record in records] == [one.url, two.url] * 4
    assert all(record.end is StreamEnd.COMPLETED for record in records)


@pytest.mark.parametrize(("urls", "concurrency"), [([], None), ("http://e", 0)])
def test_a_run_of_nothing_is_refused(urls, concurrency):
    with pytest.raises(ValueError, match="at least one"):
        LoadRun(urls, _workload(1), concurrency=concurrency)


@pytest.mark.parametrize(
    ("header", "wait_s"),
    [
        ("3", 3.0),
        ("0.5", 0.5),
        (None, 1.0),
        ("Wed, 21 Oct 2026 07:28:00 GMT", 1.0),
        ("900", 60.0),
        ("-1", 0.0),
    ],
)
def test_retry_after(header, wait_s):
    assert retry_after_s(header, Patience()) == wait_s
