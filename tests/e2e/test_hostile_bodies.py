"""Bodies that no client sends on purpose, on every route: the status is sensible, nothing is kept, nothing grows.

Real bodies are mutated at random, seeded, for some seconds; `KVGATE_SOAK=1` takes minutes.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import time
from copy import deepcopy
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from kvgate.api.routes import TABLE, Dialect, Route, Treatment
from kvgate.sim.server import SimServer
from kvgate_policies.types import TenantPolicy
from support.gateway import Gate, gateway

pytestmark = pytest.mark.e2e

SOAK = bool(os.environ.get("KVGATE_SOAK"))
ROUNDS = 200 if SOAK else 6
CLIENTS = 16
REQUESTS_A_ROUND = 320
SEED = int(os.environ.get("KVGATE_SEED", "20260801"))
ROUTES = [route for route in TABLE if route.treatment is not Treatment.MODELS]
SENSIBLE = frozenset({200, 400, 403, 404, 408, 413, 415, 422, 429, 501})
"""403 and 404 are the simulated engine's, for what it does not serve; 5xx but 501 never."""

MESSAGES = [
    {"role": "user", "content": "hello"},
    {"role": "assistant", "content": [{"type": "text", "text": "hi"}]},
]
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 400}}
TOOL = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {}}}},
}
REAL: tuple[dict[str, Any], ...] = (
    {
        "model": "sim",
        "messages": MESSAGES,
        "max_tokens": 3,
        "stream": True,
        "stream_options": {"include_usage": True},
    },
    {
        "model": "sim",
        "messages": [{"role": "user", "content": [IMAGE]}],
        "tools": [TOOL],
        "max_completion_tokens": 3,
    },
    {"model": "sim", "messages": [MESSAGES, MESSAGES], "max_tokens": 2},
    {"model": "sim", "prompt": ["a b", "c"], "max_tokens": 2, "n": 2, "echo": True},
    {"model": "sim", "prompt": [[1, 2], [3]], "max_tokens": 2, "logprobs": 1},
    {"model": "sim", "input": "hello", "instructions": "be short", "max_output_tokens": 3, "stream": True},
    {"model": "sim", "input": [{"role": "user", "content": "x"}], "previous_response_id": "resp_1"},
    {"model": "sim", "system": "s", "messages": MESSAGES, "max_tokens": 3, "thinking": {"type": "enabled"}},
    {"model": "sim", "token_ids": [1, 2, 3], "sampling_params": {"max_tokens": 2, "n": 1}},
    {"model": "sim", "query": "q", "documents": ["a", "b", {"text": "c"}], "instruction": "i"},
    {"model": "sim", "text_1": ["a"], "text_2": ["b", "c"], "truncate_prompt_tokens": -1},
    {"model": "sim", "tokens": [1, 2, 3], "add_special_tokens": False},
)
ODD: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 7.5, 1e3, 1e308, 2**63, 10**40, 10**400),
    *(
        "",
        "7",
        " 7 ",
        "1_0",
        "é",
        "\u4e2d" * 50,
        "\x00\r\n",
        "data:x;base64,AAAA",
        "x-anthropic-billing-header",
    ),
    *(
        [],
        {},
        [[]],
        [{}],
        [None],
        [1, "a"],
        [[1], "a", None],
        {"": {}},
        {"text": 1},
        {"content": [{"type": []}]},
    ),
)
RAW = (
    *(
        b"",
        b" ",
        b"{",
        b"}",
        b"[]",
        b"null",
        b'"x"',
        b"\xff",
        b"\x00",
        b"\xef\xbb\xbf{}",
        b'{"a":NaN}',
        b"{}{}",
    ),
    *(
        b'{"model":"\\ud800"}',
        b"[" * 5000,
        b'{"a":' * 5000,
        b'{"prompt":' + b"1" * 5000 + b"}",
        b'{"n":1e999}',
    ),
)


class Fuzz:
    """Random requests, the same ones for the same seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def request(self) -> tuple[Route, bytes, dict[str, str]]:
        choose = self._random
        route = choose.choice(ROUTES)
        if "audio" in route.path:
            return route, self._form(), {"content-type": "multipart/form-data; boundary=xyz"}
        headers = {"content-type": "application/json"} if choose.random() < 0.95 else {}
        if choose.random() < 0.1:
            return route, choose.choice(RAW), headers
        return route, self._cut(json.dumps(self._mutated(choose.choice(REAL))).encode()), headers

    def _mutated(self, real: dict[str, Any]) -> dict[str, Any]:
        body = json.loads(json.dumps(real))
        for _ in range(self._random.randrange(4)):
            self._mutate(body)
        return dict(body)

    def _mutate(self, body: dict[str, Any]) -> None:
        """One member of the body, or of something in it, becomes something else or another body's."""
        choose, place = self._random, body
        while True:
            key: Any = (
                choose.choice(list(place) or ["x"])
                if isinstance(place, dict)
                else choose.randrange(len(place))
            )
            inner = place.get(key) if isinstance(place, dict) else place[key]
            if not isinstance(inner, dict | list) or not inner or choose.random() < 0.4:
                break
            place = cast("Any", inner)
        other = choose.choice(REAL)
        foreign = choose.choice(list(other))
        if isinstance(place, dict) and choose.random() < 0.4:
            place[foreign] = deepcopy(choose.choice((*ODD, other[foreign])))
        else:
            place[key] = deepcopy(choose.choice((*ODD, [inner] * 3, {"content": inner})))

    def _cut(self, body: bytes) -> bytes:
        """Now and then a byte goes wrong, or the end is missing."""
        choose, at = self._random, self._random.randrange(len(body) or 1)
        kind = choose.random()
        if kind < 0.05:
            return body[:at]
        if kind < 0.1:
            return body[:at] + choose.randbytes(1) + body[at + 1 :]
        return body

    def _form(self) -> bytes:
        choose = self._random
        names = ("file", "model", "prompt", "n", "stream", "max_completion_tokens", 'x"y', "")
        parts = [
            f'--xyz\r\ncontent-disposition: form-data; name="{choose.choice(names)}"'
            f"{'; filename=a' * choose.randrange(2)}\r\n\r\n{choose.choice(ODD)}\r\n"
            for _ in range(choose.randrange(5))
        ]
        return self._cut("".join([*parts, "--xyz--\r\n"]).encode())


def checked(route: Route, body: bytes, answer: httpx.Response) -> None:
    shown = f"{route.method} {route.path} {body[:300]!r}: {answer.status_code} {answer.content[:300]!r}"
    assert answer.status_code in SENSIBLE, shown
    assert answer.headers["x-request-id"], shown
    if "x-kvgate-reason" in answer.headers:
        said = answer.json()
        anthropic = route.dialect is Dialect.ANTHROPIC
        assert (said.get("type") == "error") is anthropic, shown
        assert said["error"]["message"], shown


async def fuzz_round(gate: Gate, fuzz: Fuzz) -> set[int]:
    requests = [fuzz.request() for _ in range(REQUESTS_A_ROUND)]
    seen: set[int] = set()

    async def client() -> None:
        while requests:
            route, body, headers = requests.pop()
            path = route.path.replace("{id}", "resp_abc")
            answer = await gate.http.request(route.method, path, content=body, headers=headers)
            checked(route, body, answer)
            seen.add(answer.status_code)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(CLIENTS):
            tasks.create_task(client())
    await gate.at_zero()
    return seen


def files_open() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts open files by /proc")
@pytest.mark.parametrize("prompt_tokens", ["learned", "backend"])
async def test_no_body_breaks_anything_or_leaves_anything_behind(prompt_tokens: str):
    fuzz, seen = Fuzz(SEED), set[int]()
    policy = TenantPolicy(max_tokens_default=20)
    async with (
        SimServer(profile="instant") as sim,
        gateway([sim.url], tenant=policy, prompt_tokens=prompt_tokens) as gate,
    ):
        seen |= await fuzz_round(gate, fuzz)
        files, tasks = files_open(), len(asyncio.all_tasks())
        ends = time.monotonic() + (300 if SOAK else 5)
        for _ in range(ROUNDS):
            seen |= await fuzz_round(gate, fuzz)
            if time.monotonic() > ends:
                break
        gc.collect()
        await gate.until(lambda: files_open() <= files + CLIENTS, "no more files than before")
        await gate.until(lambda: len(asyncio.all_tasks()) <= tasks + CLIENTS, "no more tasks than before")
        assert gate.view.totals["voided"] == 0
        assert {200, 400, 404} <= seen
        answer = await gate.post("/v1/completions", {"model": "sim", "prompt": [1, 2], "max_tokens": 2})
        assert answer.status_code == 200


@pytest.mark.parametrize(
    "value", ["0", "-1", '"7"', "1e3", "7.5", "true", "null", "9223372036854775808", "1" + "0" * 40]
)
@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/chat/completions", {"messages": MESSAGES}, "max_tokens"),
        ("/v1/chat/completions", {"messages": MESSAGES}, "max_completion_tokens"),
        ("/v1/completions", {"prompt": "a"}, "max_tokens"),
        ("/v1/responses", {"input": "a"}, "max_output_tokens"),
        ("/v1/messages", {"messages": MESSAGES}, "max_tokens"),
    ],
)
async def test_every_form_of_a_limit_is_answered_as_the_engine_does(
    path: str, body: dict[str, Any], field: str, value: str
):
    """What the engine takes costs what it takes; what it refuses is refused, by it or in the client's dialect."""
    text = json.dumps({"model": "sim", **body})[:-1] + f',"{field}":{value}}}'
    headers = {"content-type": "application/json"}
    async with SimServer(profile="instant") as sim, gateway([sim.url]) as gate:
        async with httpx.AsyncClient(base_url=sim.url) as direct:
            expected = await direct.post(path, content=text, headers=headers)
        answer = await gate.http.post(path, content=text, headers=headers)
        assert answer.status_code == expected.status_code
        if "x-kvgate-reason" in answer.headers:
            assert (answer.json().get("type") == "error") is (path == "/v1/messages")
        await gate.at_zero()
