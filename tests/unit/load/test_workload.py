from __future__ import annotations

import json

import pytest

from kvgate.load import PromptKind, mixed, uniform


def test_the_seed_decides_and_prompts_differ():
    one, same, other = (uniform("m", count=4, prompt_tokens=50, output_tokens=9, seed=s) for s in (1, 1, 2))
    assert one == same
    assert one != other
    assert len({session.prompt for session in one.sessions}) == 4


def test_body_asks_for_exactly_the_output():
    body = json.loads(uniform("m", count=1, prompt_tokens=192, output_tokens=129, seed=0).body(0))
    assert len(body["prompt"]) == 192
    assert all(isinstance(token, int) for token in body["prompt"])
    assert (body["model"], body["max_tokens"], body["ignore_eos"], body["stream"]) == ("m", 129, True, True)
    assert body["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    assert "seed" not in body


def test_chat_and_text():
    chat = uniform("m", count=1, prompt_tokens=10, output_tokens=1, seed=0, kind=PromptKind.CHAT)
    text = uniform("m", count=1, prompt_tokens=10, output_tokens=1, seed=0, kind=PromptKind.TEXT)
    assert chat.sessions[0].path == "/v1/chat/completions"
    assert json.loads(chat.body(0))["messages"] == [{"role": "user", "content": chat.sessions[0].prompt}]
    assert text.sessions[0].path == "/v1/completions"
    assert len(json.loads(text.body(0))["prompt"].split()) == 10


@pytest.mark.parametrize("size", [(0, 5), (5, 0)])
def test_an_empty_session_is_refused(size):
    with pytest.raises(ValueError, match="at least one token"):
        mixed("m", [size], seed=0)
