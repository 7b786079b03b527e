"""What is accepted, resolved and refused, in the very words of vLLM 0.32."""

from __future__ import annotations

import pytest

from kvgate.sim import output
from kvgate.sim.errors import RequestRefused
from kvgate.sim.fields import read_object
from kvgate.sim.generation import Kind, ServedModel, read_generation

SERVED = ServedModel("tiny", 2048, 0)

CHAT = {"messages": [{"role": "user", "content": "hello the proxy"}]}


def read(kind, body, **headers):
    return read_generation(
        kind, body, {name.replace("_", "-"): value for name, value in headers.items()}, SERVED
    )


def refused(kind, body, **headers) -> RequestRefused:
    with pytest.raises(RequestRefused) as caught:
        read(kind, body, **headers)
    return caught.value


def limits(kind, body) -> list[int]:
    return [choice.max_tokens for choice in read(kind, body).choices]


@pytest.mark.parametrize(
    ("raw", "message", "param"),
    [
        (
            b'{"model": "tiny", ',
            (
                "{'type': 'json_invalid', 'loc': 'body.18', 'msg': 'JSON decode error', 'input': "
                "'<dict of 0 items>', 'ctx': {'error': 'Expecting property name enclosed in double quotes'}}"
            ),
            "body.18",
        ),
        (
            b"",
            "{'type': 'missing', 'loc': 'body', 'msg': 'Field required', 'input': 'None'}",
            "body",
        ),
        (
            b"[]",
            (
                "{'type': 'model_attributes_type', 'loc': 'body', 'msg': 'Input should be a valid "
                "dictionary or object to extract fields from', 'input': '<list of 0 items>'}"
            ),
            "body",
        ),
    ],
)
def test_bodies_that_are_no_object(raw, message, param):
    with pytest.raises(RequestRefused) as caught:
        read_object(raw)
    error = caught.value.body["error"]
    assert error.pop("message") == f"1 validation error:\n  {message}"
    assert error == {"type": "Bad Request", "param": param, "code": 400}


@pytest.mark.parametrize("raw", [b"\xff\xfe{}", b"[" * 100_000, b"nul"])
def test_other_broken_bodies_are_a_400_too(raw):
    with pytest.raises(RequestRefused) as caught:
        read_object(raw)
    assert caught.value.status == 400


@pytest.mark.parametrize(
    ("kind", "body", "expected"),
    [
        (Kind.CHAT, {"max_tokens": 6}, [6]),
        (Kind.CHAT, {"max_tokens": 6, "max_completion_tokens": 2}, [2]),
        (Kind.CHAT, {}, [2048 - 8]),
        (Kind.CHAT, {"max_tokens": 2048}, [2048 - 8]),
        (Kind.CHAT, {"max_tokens": 5, "n": 3}, [5, 5, 5]),
        (Kind.CHAT, {"max_tokens": "7"}, [7]),
        (Kind.CHAT, {"max_tokens": 7.0}, [7]),
    ],
)
def test_limits_of_a_chat(kind, body, expected):
    assert limits(kind, {**CHAT, **body}) == expected


@pytest.mark.parametrize("n", [3, 0, "x"])
def test_apis_without_n_ignore_it(n):
    assert limits(Kind.RESPONSE, {"input": "a b", "max_output_tokens": 5, "n": n}) == [5]
    assert limits(Kind.MESSAGE, {**CHAT, "max_tokens": 5, "n": n}) == [5]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"prompt": [1] * 10}, [16]),
        ({"prompt": [1] * 10, "max_tokens": None}, [16]),
        ({"prompt": [1] * 2040}, [8]),
        ({"prompt": [1] * 1900, "max_tokens": 149}, [148]),
        ({"prompt": [1] * 10, "max_tokens": 0, "echo": True}, [1]),
        ({"prompt": [[1], [2, 3]], "max_tokens": 4}, [4, 4]),
        ({"prompt": [[1], [2, 3]], "max_tokens": 4, "n": 2}, [4] * 4),
    ],
)
def test_limits_of_completions(body, expected):
    assert limits(Kind.COMPLETION, body) == expected


def test_limits_of_the_other_endpoints():
    assert limits(Kind.RESPONSE, {"input": "hello"}) == [2048 - 6]
    assert limits(Kind.RESPONSE, {"input": "hello", "max_output_tokens": 3}) == [3]
    assert limits(Kind.MESSAGE, {**CHAT, "max_tokens": 3}) == [3]
    assert limits(Kind.EMBEDDING, {"input": ["a", "b"]}) == [1, 1]


@pytest.mark.parametrize(
    ("body", "message", "param"),
    [
        (
            {"max_tokens": 0},
            "max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)",
            "max_tokens",
        ),
        (
            {"max_tokens": -1},
            "max_tokens must be at least 1, got -1. (parameter=max_tokens, value=-1)",
            "max_tokens",
        ),
        (
            {"max_tokens": 5000},
            (
                "max_tokens=5000 cannot be greater than max_model_len=2048. Please request fewer output "
                "tokens. (parameter=max_tokens, value=5000)"
            ),
            "max_tokens",
        ),
        (
            {"prompt": [1] * 2048},
            "max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)",
            "max_tokens",
        ),
        (
            {"prompt": "x" * 30_000},
            (
                "This model's maximum context length is 2048 tokens. However, your prompt contains 30000 "
                "characters (more than 8192 characters, which is the upper bound for 2048 input tokens). "
                "Please reduce the length of the input prompt. (parameter=input_text, value=30000)"
            ),
            "input_text",
        ),
        (
            {"prompt": ""},
            "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)",
            "prompt",
        ),
        ({"prompt": [2**40]}, f"Token id {2**40} is out of vocabulary", None),
        ({"n": 0}, "n must be at least 1, got 0.", None),
        ({"n": 2, "temperature": 0}, "n must be 1 when using greedy sampling, got 2.", None),
        (
            {"temperature": -1},
            "temperature must be non-negative, got -1.0. (parameter=temperature, value=-1.0)",
            "temperature",
        ),
        (
            {"max_tokens": 2, "min_tokens": 5},
            "min_tokens must be less than or equal to max_tokens=2, got 5.",
            None,
        ),
        (
            {"stream_options": {"include_usage": True}},
            "Stream options can only be defined when `stream=True`. (parameter=stream_options)",
            "stream_options",
        ),
    ],
)
def test_refusals_in_the_words_of_vllm(body, message, param):
    error = refused(Kind.COMPLETION, {"prompt": "hello", **body})
    assert error.body == {
        "error": {"message": message, "type": "BadRequestError", "param": param, "code": 400}
    }


def test_a_prompt_beyond_the_window_says_how_long_it_is():
    error = refused(Kind.COMPLETION, {"prompt": [1] * 2100})
    assert error.message.startswith(
        "This model's maximum context length is 2048 tokens. However, your prompt contains 2100 input "
        "tokens, which exceeds this limit even without any output tokens."
    )
    assert error.param == "input_tokens"


@pytest.mark.parametrize(
    ("kind", "body", "location", "inner"),
    [
        (
            Kind.COMPLETION,
            {"prompt": "hello", "max_tokens": 7.5},
            "body.max_tokens",
            (
                "{'type': 'int_from_float', 'loc': 'body.max_tokens', 'msg': 'Input should be a valid "
                "integer, got a number with a fractional part', 'input': '7.5'}"
            ),
        ),
        (
            Kind.CHAT,
            {"model": "tiny"},
            "body.messages",
            (
                "{'type': 'missing', 'loc': 'body.messages', 'msg': 'Field required', "
                "'input': '<dict of 1 items>'}"
            ),
        ),
        (
            Kind.MESSAGE,
            {**CHAT},
            "body.max_tokens",
            (
                "{'type': 'missing', 'loc': 'body.max_tokens', 'msg': 'Field required', "
                "'input': '<dict of 1 items>'}"
            ),
        ),
    ],
)
def test_bodies_of_the_wrong_shape(kind, body, location, inner):
    error = refused(kind, body)
    assert (error.status, error.type, error.param) == (400, "Bad Request", location)
    assert error.message == f"1 validation error:\n  {inner}"


@pytest.mark.parametrize(
    "body",
    [
        {"max_tokens": "many"},
        {"max_tokens": [1]},
        {"messages": "hello"},
        {"messages": ["hello"]},
        {"stream": "yes"},
        {"stream": [1]},
        {"temperature": "hot"},
        {"priority": "5"},
        {"priority": 1.5},
        {"truncate_prompt_tokens": 0},
    ],
)
def test_values_of_the_wrong_type_are_a_400(body):
    assert refused(Kind.CHAT, {**CHAT, **body}).status == 400


def test_an_unknown_model_is_a_404_and_none_is_accepted():
    error = refused(Kind.CHAT, {**CHAT, "model": "other"})
    assert error.body == {
        "error": {
            "message": "The model `other` does not exist. Valid aliases: tiny.",
            "type": "NotFoundError",
            "param": "model",
            "code": 404,
        }
    }
    assert read(Kind.CHAT, CHAT).model == "tiny"


def test_errors_of_messages_have_two_shapes():
    assert refused(Kind.MESSAGE, {**CHAT, "max_tokens": 9999}).anthropic_body["type"] == "error"
    assert "error" in refused(Kind.MESSAGE, CHAT).anthropic_body
    assert "type" not in refused(Kind.MESSAGE, CHAT).anthropic_body


def test_token_ids_are_exact_and_texts_begin_with_bos():
    assert read(Kind.COMPLETION, {"prompt": [10, 11, 12]}).choices[0].prompt == (10, 11, 12)
    assert read(Kind.COMPLETION, {"prompt": "abcd"}).prompt_tokens == 2


def test_truncation_keeps_the_end():
    body = {"prompt": list(range(100, 200)), "truncate_prompt_tokens": 16}
    assert read(Kind.COMPLETION, body).choices[0].prompt == tuple(range(184, 200))
    whole = {"prompt": [1] * 3000, "truncate_prompt_tokens": -1}
    assert read(Kind.COMPLETION, whole).prompt_tokens == 2047


def test_everything_that_reaches_the_template_is_counted():
    plain = read(Kind.CHAT, CHAT).prompt_tokens
    tools = [{"type": "function", "function": {"name": "weather", "parameters": {}}}]
    parts = [{"type": "text", "text": "hello the proxy"}]
    image = [*parts, {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 9000}}]
    assert read(Kind.CHAT, {**CHAT, "tools": tools}).prompt_tokens > plain
    assert read(Kind.CHAT, {"messages": [{"role": "user", "content": parts}]}).prompt_tokens == plain
    assert read(Kind.CHAT, {"messages": [{"role": "user", "content": image}]}).prompt_tokens == plain + 64
    assert read(Kind.CHAT, {"messages": [{"role": "user"}]}).prompt_tokens == 4
    assert read(Kind.MESSAGE, {**CHAT, "system": "be kind", "max_tokens": 5}).prompt_tokens == plain + 4
    assert (
        read(Kind.RESPONSE, {"input": CHAT["messages"], "instructions": "be kind"}).prompt_tokens == plain + 4
    )


def test_the_output_length_is_the_headers_the_limits_or_the_models():
    wished = read(Kind.CHAT, {**CHAT, "ignore_eos": True}, x_sim_output_tokens="5").choices[0]
    assert wished.stop_after == 5
    assert read(Kind.CHAT, {**CHAT, "ignore_eos": True}).choices[0].stop_after is None
    natural = read(Kind.CHAT, CHAT).choices[0]
    assert natural.stop_after == output.natural_length(natural.mark)
    assert read(Kind.CHAT, {**CHAT, "min_tokens": 2000}).choices[0].stop_after == 2000
    assert refused(Kind.CHAT, CHAT, x_sim_output_tokens="0").status == 400


def test_priority_comes_from_the_body_or_the_header():
    assert read(Kind.CHAT, {**CHAT, "priority": -5}).priority == -5
    assert read(Kind.CHAT, {**CHAT, "priority": -5}, x_vllm_priority="3").priority == 3
    assert refused(Kind.CHAT, CHAT, x_vllm_priority="soon").status == 400


def test_there_is_one_data_parallel_rank():
    assert read(Kind.CHAT, CHAT, x_data_parallel_rank="0").n == 1
    error = refused(Kind.CHAT, CHAT, x_data_parallel_rank="3")
    assert error.message == "data_parallel_rank 3 is out of range [0, 1)."
    assert read(Kind.RESPONSE, {"input": "hello"}, x_data_parallel_rank="3").n == 1
