"""What is read of a body, and what is refused: as vLLM 0.32 reads and refuses it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgate.api.limits import N_MAX
from kvgate.api.parse import BadRequest, parse
from kvgate.api.prompts import POOLED_MAX, PREVIOUS_RESPONSE_TOKENS, PROMPTS_MAX
from kvgate.api.rewrite import with_max_tokens
from kvgate_policies.types import Endpoint, InferenceRequest, PromptSize

JSON_ENDPOINTS = [endpoint for endpoint in Endpoint if endpoint is not Endpoint.AUDIO]
MESSAGES = [{"role": "user", "content": "hello the proxy"}]


def read(endpoint: Endpoint, **body: Any) -> InferenceRequest:
    request = parse(endpoint, json.dumps(body).encode(), media_tokens=1000)
    assert isinstance(request, InferenceRequest), request
    return request


def refused(endpoint: Endpoint, body: bytes) -> BadRequest:
    answer = parse(endpoint, body)
    assert isinstance(answer, BadRequest), answer
    return answer


def size(endpoint: Endpoint, **body: Any) -> PromptSize:
    (prompt,) = read(endpoint, **body).prompts
    return prompt


class TestBytes:
    @pytest.mark.parametrize(
        ("body", "says"),
        [
            (b"", "empty"),
            (b" \r\n", "empty"),
            (b"[]", "object"),
            (b"null", "object"),
            (b'"x"', "object"),
            (b'{"model": "tiny", ', "truncated"),
            (b'{"model": "tiny"} x', "byte 19"),
            (b'{"n": NaN}', "malformed"),
            (b'{"prompt": "\xff"}', "UTF-8"),
            (b'{"other": "\xff"}', "UTF-8"),
            (b'{"\xff": 1}', "UTF-8"),
            ('{"prompt": "x"}'.encode("utf-16"), "UTF-8"),
            (b'\xef\xbb\xbf{"prompt": "x"}', "malformed"),
            (b'{"prompt": "\\ud800"}', "JSON"),
            (b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "deep"),
            (b'{"other": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001, "deep"),
            (b'{"n": ' + b"9" * 5000 + b"}", "out of range"),
            (b'{"max_tokens": 1e999}', "out of range"),
        ],
    )
    def test_what_is_no_json_object_is_refused_and_says_why(self, body: bytes, says: str):
        for endpoint in JSON_ENDPOINTS:
            assert says in refused(endpoint, body).message

    def test_the_last_of_equal_keys_counts_however_it_is_written(self):
        body = b'{"prompt": "x", "max_tokens": 5, "max_tok\\u0065ns": 900}'
        request = parse(Endpoint.COMPLETIONS, body)
        assert isinstance(request, InferenceRequest)
        assert request.max_tokens == json.loads(body)["max_tokens"] == 900

    def test_unknown_fields_are_stepped_over(self):
        assert read(Endpoint.COMPLETIONS, prompt="x", no_such_field=[{"deep": 1}]).prompts[0].utf8_bytes == 1


class TestLimits:
    @pytest.mark.parametrize(
        ("endpoint", "body", "field", "limit"),
        [
            (Endpoint.CHAT, {"max_tokens": 6}, "max_tokens", 6),
            (Endpoint.CHAT, {"max_completion_tokens": 2, "max_tokens": 6}, "max_completion_tokens", 2),
            (Endpoint.CHAT, {"max_completion_tokens": None, "max_tokens": 6}, "max_tokens", 6),
            (Endpoint.CHAT, {"max_completion_tokens": 0, "max_tokens": 6}, "max_completion_tokens", 0),
            (Endpoint.CHAT, {}, "max_completion_tokens", None),
            (Endpoint.CHAT_BATCH, {"max_tokens": 6}, "max_tokens", 6),
            (Endpoint.COMPLETIONS, {"max_tokens": 6, "max_completion_tokens": 2}, "max_tokens", 6),
            (Endpoint.COMPLETIONS, {"max_tokens": None}, "max_tokens", None),
            (Endpoint.RESPONSES, {"max_output_tokens": 3, "max_tokens": 9}, "max_output_tokens", 3),
            (Endpoint.MESSAGES, {"max_tokens": 3}, "max_tokens", 3),
            (
                Endpoint.GENERATE,
                {"sampling_params": {"max_tokens": 3}, "max_tokens": 9},
                "sampling_params.max_tokens",
                3,
            ),
            (Endpoint.GENERATE, {"sampling_params": {}}, "sampling_params.max_tokens", None),
        ],
    )
    def test_the_ruling_field(self, endpoint: Endpoint, body: dict[str, Any], field: str, limit: int | None):
        request = read(endpoint, **body)
        assert (request.max_tokens_field, request.max_tokens) == (field, limit)

    @pytest.mark.parametrize(
        ("value", "read_as"),
        [
            ("7", 7),
            (" 7 ", 7),
            ("+7", 7),
            ("7.0", 7),
            ("1_0", 10),
            (7.0, 7),
            (True, 1),
            (False, 0),
            (-1, -1),
            (10**30, 10**30),
        ],
    )
    def test_numbers_as_pydantic_reads_them(self, value: object, read_as: int):
        assert read(Endpoint.COMPLETIONS, prompt="x", max_tokens=value).max_tokens == read_as

    @pytest.mark.parametrize("value", [7.5, "x", "", "7.5", [], {}, [5], "9" * 30, "1__0", "0x10", "7e1"])
    def test_what_is_no_number_is_refused_rather_than_replaced(self, value: object):
        for endpoint, name in (
            (Endpoint.COMPLETIONS, "max_tokens"),
            (Endpoint.CHAT, "max_completion_tokens"),
        ):
            answer = refused(endpoint, json.dumps({name: value}).encode())
            assert answer.param == name
            assert name in answer.message

    @pytest.mark.parametrize("endpoint", [Endpoint.CHAT, Endpoint.COMPLETIONS])
    @pytest.mark.parametrize(
        ("n", "sequences"), [(None, 1), (3, 3), ("3", 3), (0, 1), (-5, 1), (N_MAX, N_MAX)]
    )
    def test_n(self, endpoint: Endpoint, n: object, sequences: int):
        assert read(endpoint, n=n, best_of=9).n == sequences

    @pytest.mark.parametrize("n", [N_MAX + 1, 10**100, 2.5, "many", []])
    def test_absurd_n_is_refused(self, n: object):
        assert refused(Endpoint.CHAT, json.dumps({"n": n}).encode()).param == "n"
        generate = json.dumps({"sampling_params": {"n": n}}).encode()
        assert refused(Endpoint.GENERATE, generate).param == "sampling_params.n"

    def test_n_of_endpoints_that_have_none_is_not_read(self):
        assert read(Endpoint.MESSAGES, n=5, messages=MESSAGES).n == 1
        assert read(Endpoint.GENERATE, n=5, sampling_params={"n": 2}).n == 2

    def test_beam_search_costs_n_sequences(self):
        assert read(Endpoint.COMPLETIONS, prompt="x", use_beam_search=True, n=3).n == 3

    @pytest.mark.parametrize(
        ("value", "most"), [(16, 16), (-1, -1), (-2, None), (0, None), (None, None), ("x", None)]
    )
    def test_truncation(self, value: object, most: int | None):
        assert read(Endpoint.COMPLETIONS, prompt="x", truncate_prompt_tokens=value).prompt_tokens_max == most

    def test_what_tightens_the_length(self):
        request = read(Endpoint.CHAT, min_tokens=5, ignore_eos=True)
        assert (request.min_tokens, request.ignore_eos) == (5, True)
        nested = read(Endpoint.GENERATE, sampling_params={"min_tokens": 2, "ignore_eos": True})
        assert (nested.min_tokens, nested.ignore_eos) == (2, True)

    @pytest.mark.parametrize("value", [None, [], "x", 3])
    def test_generate_without_sampling_params_is_refused(self, value: object):
        body = json.dumps({"token_ids": [1], "sampling_params": value}).encode()
        assert refused(Endpoint.GENERATE, body).param == "sampling_params"

    @pytest.mark.parametrize(
        ("value", "stream"),
        [
            (True, True),
            ("true", True),
            ("on", True),
            (1, True),
            (False, False),
            (None, False),
            ("no", False),
            ([], False),
        ],
    )
    def test_stream(self, value: object, stream: bool):
        assert read(Endpoint.CHAT, stream=value).stream is stream

    def test_model(self):
        assert read(Endpoint.CHAT, model="tiny").model == "tiny"
        assert read(Endpoint.CHAT).model is None
        assert refused(Endpoint.CHAT, b'{"model": 5}').param == "model"


class TestCompletions:
    @pytest.mark.parametrize(
        ("prompt", "sizes"),
        [
            ("hello", [PromptSize(utf8_bytes=5)]),
            (["hello", "the proxy"], [PromptSize(utf8_bytes=5), PromptSize(utf8_bytes=9)]),
            ([10, 11, 12], [PromptSize(tokens=3)]),
            ([[1, 2], [3]], [PromptSize(tokens=2), PromptSize(tokens=1)]),
            (None, [PromptSize()]),
            ([], [PromptSize()]),
            ("", [PromptSize()]),
        ],
    )
    def test_each_prompt_is_measured(self, prompt: object, sizes: list[PromptSize]):
        assert list(read(Endpoint.COMPLETIONS, prompt=prompt).prompts) == sizes

    def test_dense_scripts_are_told_apart(self):
        text = "aé ж 漢字 🙂 ไทย שלום"
        dense = sum(len(char.encode()) for char in text if ord(char) >= 0x540)
        assert size(Endpoint.COMPLETIONS, prompt=text) == PromptSize(
            utf8_bytes=len(text.encode()), dense_bytes=dense
        )

    @given(st.text())
    def test_dense_bytes_are_those_from_u0540_on(self, text: str):
        measured = size(Endpoint.COMPLETIONS, prompt="x" + text)
        assert measured.dense_bytes == sum(len(char.encode()) for char in text if ord(char) >= 0x540)

    @pytest.mark.parametrize("many", [["x"] * (PROMPTS_MAX + 1), [[1]] * (PROMPTS_MAX + 1)])
    def test_too_many_prompts_are_refused(self, many: list[object]):
        assert refused(Endpoint.COMPLETIONS, json.dumps({"prompt": many}).encode()).param == "prompt"

    def test_many_token_ids_are_one_prompt(self):
        assert size(Endpoint.COMPLETIONS, prompt=[1] * 5000) == PromptSize(tokens=5000)

    def test_embeds_are_never_priced_as_text_and_never_at_nothing(self):
        request = read(Endpoint.COMPLETIONS, prompt="x", prompt_embeds=["A" * 4096, "A" * 8])
        assert [prompt.media_tokens for prompt in request.prompts] == [0, 6, 1]
        assert request.tokenize == ()

    def test_bodies_for_tokenize(self):
        request = read(Endpoint.COMPLETIONS, model="tiny", prompt=["a", "b"], add_special_tokens=False)
        assert request.tokenize == (
            {"model": "tiny", "prompt": "a", "add_special_tokens": False},
            {"model": "tiny", "prompt": "b", "add_special_tokens": False},
        )
        assert read(Endpoint.COMPLETIONS, prompt="a").tokenize == ({"prompt": "a"},)
        assert read(Endpoint.COMPLETIONS, prompt=[1, 2]).tokenize == ()


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 100_000}}
TOOL = {
    "type": "function",
    "function": {
        "name": "crop",
        "description": "Crops.",
        "parameters": {
            "type": "object",
            "properties": {"image_url": {"type": "string", "description": "d" * 500}},
        },
    },
}


class TestChat:
    def test_text_and_messages(self):
        chat = [{"role": "system", "content": "be brief"}, *MESSAGES]
        assert size(Endpoint.CHAT, messages=chat) == PromptSize(utf8_bytes=8 + 15, messages=2)

    @pytest.mark.parametrize(
        "part",
        [
            IMAGE,
            {"image_url": "data:image/png;base64," + "A" * 100_000},
            {"type": "input_audio", "input_audio": {"data": "A" * 100_000, "format": "wav"}},
            {"type": "video_url", "video_url": {"url": "https://x/" + "y" * 5000}},
            {"type": "unheard_of", "thing": "data:application/x;base64," + "A" * 100_000},
            {"type": "file", "file": {"file_data": "A" * 100_000}},
        ],
    )
    def test_media_have_a_flat_charge_and_their_base64_is_no_text(self, part: dict[str, object]):
        measured = size(
            Endpoint.CHAT, messages=[{"role": "user", "content": [{"type": "text", "text": "see"}, part]}]
        )
        assert measured.media_tokens == 1000
        assert 3 <= measured.utf8_bytes < 50

    def test_all_that_reaches_the_template_counts(self):
        plain = size(Endpoint.CHAT, messages=MESSAGES)
        assistant = {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"function": {"arguments": "a" * 300}}],
        }
        result = {"role": "tool", "tool_call_id": "c", "content": "r" * 200}
        with_calls = size(Endpoint.CHAT, messages=[*MESSAGES, assistant, result])
        assert with_calls.utf8_bytes >= plain.utf8_bytes + 500
        for field in ("tools", "functions", "documents", "chat_template_kwargs", "chat_template"):
            more = size(Endpoint.CHAT, messages=MESSAGES, **{field: [{"text": "d" * 700}]})
            assert more.utf8_bytes >= plain.utf8_bytes + 700, field

    def test_a_tool_about_images_is_text(self):
        measured = size(Endpoint.CHAT, messages=MESSAGES, tools=[TOOL])
        assert measured.media_tokens == 0
        assert measured.utf8_bytes >= len(json.dumps(TOOL, separators=(",", ":")))

    def test_text_cannot_hide_behind_a_media_key_of_its_message(self):
        for field in ("content", "reasoning", "tool_calls"):
            message = {"role": "user", field: "t" * 5000, "image_url": "x"}
            assert size(Endpoint.CHAT, messages=[message]).utf8_bytes >= 5000, field

    def test_nested_content_is_bounded_in_depth_and_still_counts(self):
        content: object = "t" * 5000
        for _ in range(300):
            content = [{"content": content}]
        assert size(Endpoint.CHAT, messages=[{"role": "user", "content": content}]).utf8_bytes >= 5000

    def test_body_for_tokenize(self):
        (body,) = read(
            Endpoint.CHAT,
            model="tiny",
            messages=MESSAGES,
            tools=[TOOL],
            add_generation_prompt=False,
            continue_final_message=True,
            chat_template_kwargs={"thinking": True},
            max_tokens=5,
        ).tokenize
        assert body == {
            "model": "tiny",
            "messages": MESSAGES,
            "tools": [TOOL],
            "add_generation_prompt": False,
            "continue_final_message": True,
            "chat_template_kwargs": {"thinking": True},
        }

    @pytest.mark.parametrize(
        "other",
        [
            {"documents": [{"text": "x"}]},
            {"reasoning_effort": "low"},
            {"messages": [{"role": "user", "content": [IMAGE]}]},
            {"messages": []},
        ],
    )
    def test_no_body_where_tokenize_would_count_something_else(self, other: dict[str, object]):
        assert read(Endpoint.CHAT, **{"messages": MESSAGES, **other}).tokenize == ()

    def test_a_batch_is_one_prompt_for_each_conversation(self):
        request = read(Endpoint.CHAT_BATCH, model="t", messages=[MESSAGES, MESSAGES * 2])
        assert [prompt.messages for prompt in request.prompts] == [1, 2]
        assert request.tokenize == (
            {"model": "t", "messages": MESSAGES},
            {"model": "t", "messages": MESSAGES * 2},
        )
        many = json.dumps({"messages": [[]] * (PROMPTS_MAX + 1)}).encode()
        assert refused(Endpoint.CHAT_BATCH, many).param == "messages"


class TestResponses:
    def test_a_string(self):
        request = read(Endpoint.RESPONSES, model="t", input="hello", instructions="be brief")
        assert request.prompts == (PromptSize(utf8_bytes=13, messages=2),)
        assert request.tokenize == (
            {
                "model": "t",
                "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}],
                "add_special_tokens": True,
            },
        )

    def test_items(self):
        items = [
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "t" * 100},
                    {"type": "input_image", "image_url": "A" * 9999},
                ],
            },
            {"type": "function_call", "name": "f", "arguments": "a" * 100},
            {"type": "function_call_output", "call_id": "c", "output": "o" * 100},
            {"type": "reasoning", "encrypted_content": "A" * 9999, "summary": []},
        ]
        request = read(Endpoint.RESPONSES, input=items)
        (prompt,) = request.prompts
        assert prompt.media_tokens == 1000
        assert 300 <= prompt.utf8_bytes < 400
        assert prompt.messages == len(items) + 2
        assert request.tokenize == ()

    def test_a_previous_response_has_a_charge(self):
        request = read(Endpoint.RESPONSES, input="x", previous_response_id="resp_1")
        assert request.prompts[0].media_tokens == PREVIOUS_RESPONSE_TOKENS
        assert request.tokenize == ()

    def test_work_that_goes_on_after_the_answer_is_refused(self):
        assert refused(Endpoint.RESPONSES, b'{"input": "x", "background": true}').param == "background"
        assert read(Endpoint.RESPONSES, input="x", background=False).prompts


class TestMessages:
    def test_system_blocks_tools_and_results(self):
        chat = [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "t" * 100},
                    {"type": "image", "source": {"type": "base64", "data": "A" * 9999}},
                ],
            },
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {"image_url": "i" * 100}}],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "1",
                        "content": [
                            {"type": "text", "text": "r" * 100},
                            {"type": "image", "source": {"type": "base64", "data": "A" * 9999}},
                        ],
                    },
                    {"type": "document", "source": {"type": "text", "data": "d" * 100}},
                ],
            },
        ]
        request = read(
            Endpoint.MESSAGES, system=[{"type": "text", "text": "s" * 100}], messages=chat, tools=[TOOL]
        )
        (prompt,) = request.prompts
        tool_bytes = len(json.dumps(TOOL, separators=(",", ":")))
        assert prompt.media_tokens == 2000
        assert prompt.messages == 4
        assert 500 + tool_bytes <= prompt.utf8_bytes < 800 + 2 * tool_bytes
        assert request.tokenize == ()

    def test_body_for_tokenize(self):
        (body,) = read(
            Endpoint.MESSAGES, model="t", system="be brief", messages=MESSAGES, max_tokens=3
        ).tokenize
        assert body == {"model": "t", "messages": [{"role": "system", "content": "be brief"}, *MESSAGES]}


def test_generate_is_exact():
    request = read(Endpoint.GENERATE, token_ids=[10, 11, 12], sampling_params={})
    assert request.prompts == (PromptSize(tokens=3),)
    media = read(Endpoint.GENERATE, token_ids=[10], sampling_params={}, content_parts=[IMAGE])
    assert media.prompts == (PromptSize(media_tokens=1001),)


class TestPooling:
    @pytest.mark.parametrize(
        ("body", "byte_counts"),
        [
            ({"input": "hello"}, [5]),
            ({"input": ["a", "bcd"]}, [1, 3]),
            ({"text_1": "ab", "text_2": ["c", "def"]}, [3, 5]),
            ({"text_1": ["ab", "a"], "text_2": ["c", "def"]}, [3, 4]),
            ({"queries": "ab", "documents": ["c"]}, [3]),
            ({"query": "ab", "documents": ["c", "def"]}, [3, 5]),
            ({}, [0]),
        ],
    )
    def test_one_prompt_for_each_pass(self, body: dict[str, object], byte_counts: list[int]):
        assert [prompt.utf8_bytes for prompt in read(Endpoint.POOLING, **body).prompts] == byte_counts

    def test_ids_chats_and_batches_of_chats(self):
        assert read(Endpoint.POOLING, input=[[1, 2], [3]]).prompts == (
            PromptSize(tokens=2),
            PromptSize(tokens=1),
        )
        for field in ("messages", "input"):
            assert [p.messages for p in read(Endpoint.POOLING, **{field: MESSAGES}).prompts] == [1]
            batch = read(Endpoint.POOLING, **{field: [MESSAGES, MESSAGES * 2]})
            assert [p.messages for p in batch.prompts] == [1, 2]

    @pytest.mark.parametrize(
        "body", [{"input": ["x"] * (POOLED_MAX + 1)}, {"query": "x", "documents": ["x"] * (POOLED_MAX + 1)}]
    )
    def test_too_many(self, body: dict[str, object]):
        assert str(POOLED_MAX) in refused(Endpoint.POOLING, json.dumps(body).encode()).message


FORM_TYPE = 'multipart/form-data; boundary="b0undary"'


def form(*parts: tuple[str, bytes]) -> bytes:
    pieces = [
        b"--b0undary\r\nContent-Disposition: form-data; " + head.encode() + b"\r\n\r\n" + value + b"\r\n"
        for head, value in parts
    ]
    return b"".join(pieces) + b"--b0undary--\r\n"


class TestAudio:
    FILE = (
        'name="file"; filename="a.wav"\r\nContent-Type: audio/wav',
        b'\r\n\r\nname="model"\r\n\r\nevil' * 50_000,
    )

    def test_the_form(self):
        body = form(
            ('name="model"', b"whisper"),
            self.FILE,
            ('name="stream"', b"true"),
            ('name="n"', b"2"),
            ('name="prompt"', "é".encode()),
        )
        request = parse(Endpoint.AUDIO, body, FORM_TYPE, media_tokens=1500)
        assert request == InferenceRequest(
            endpoint=Endpoint.AUDIO,
            model="whisper",
            stream=True,
            prompts=(PromptSize(utf8_bytes=2, media_tokens=1500),),
            max_tokens=None,
            max_tokens_field="max_completion_tokens",
            n=2,
        )

    def test_the_limit_and_the_last_of_equal_names(self):
        body = form(
            self.FILE, ('name="max_completion_tokens"', b"9"), ('name="max_completion_tokens"', b"12")
        )
        request = parse(Endpoint.AUDIO, body, FORM_TYPE)
        assert isinstance(request, InferenceRequest)
        assert request.max_tokens == 12

    def test_what_looks_like_a_field_in_a_file_is_none(self):
        request = parse(Endpoint.AUDIO, form(self.FILE, ('name="model"; filename="m"', b"evil")), FORM_TYPE)
        assert isinstance(request, InferenceRequest)
        assert request.model is None

    @pytest.mark.parametrize(
        ("body", "content_type"),
        [
            (b"", FORM_TYPE),
            (b"{}", "application/json"),
            (form(("name=model", b"x")), ""),
            (b"x" * 100, FORM_TYPE),
            (b"--x", "multipart/form-data"),
        ],
    )
    def test_what_is_no_form_is_refused(self, body: bytes, content_type: str):
        answer = parse(Endpoint.AUDIO, body, content_type)
        assert isinstance(answer, BadRequest)
        assert "multipart/form-data" in answer.message

    def test_a_bad_limit_is_refused(self):
        answer = parse(Endpoint.AUDIO, form(('name="max_completion_tokens"', b"x")), FORM_TYPE)
        assert isinstance(answer, BadRequest)
        assert answer.param == "max_completion_tokens"

    @given(st.binary(max_size=200), st.text(max_size=60))
    def test_never_raises(self, noise: bytes, content_type: str):
        for body in (
            noise,
            b"--b0undary\r\n" + noise + b"\r\n--b0undary--",
            form((noise.decode("latin-1"), noise)),
        ):
            for kind in (content_type, FORM_TYPE):
                assert isinstance(parse(Endpoint.AUDIO, body, kind), InferenceRequest | BadRequest)


KEYS = st.sampled_from(
    [
        *(
            "model",
            "stream",
            "n",
            "max_tokens",
            "max_completion_tokens",
            "prompt",
            "prompt_embeds",
            "messages",
        ),
        *("role", "content", "type", "text", "image_url", "tools", "input", "instructions", "system"),
        *("token_ids", "sampling_params", "query", "documents", "text_1", "text_2", "source", "data"),
    ]
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(KEYS | st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=20,
)


class TestAnything:
    @given(st.sampled_from(JSON_ENDPOINTS), st.dictionaries(KEYS, VALUES, max_size=8) | VALUES)
    def test_any_json_is_a_request_or_refused(self, endpoint: Endpoint, value: Any):
        body = json.dumps(value).encode()
        request = parse(endpoint, body)
        if isinstance(request, BadRequest):
            assert request.message
            return
        assert request.prompts
        assert request.n >= 1
        assert len(request.tokenize) in {0, len(request.prompts)}
        assert json.loads(with_max_tokens(body, request.max_tokens_field, 5))

    @given(st.sampled_from(Endpoint), st.binary(max_size=100))
    def test_any_bytes_are_a_request_or_refused(self, endpoint: Endpoint, body: bytes):
        assert isinstance(parse(endpoint, body), InferenceRequest | BadRequest)
