"""The local counter against the tokenizer it was made from, in a folder as model hubs lay it out."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from kvgate.errors import ConfigError
from kvgate.tokens import counter_for
from kvgate.tokens.backend import BackendCounter
from kvgate.tokens.base import TokenizeFailed
from kvgate.tokens.learned import LearnedCounter
from kvgate.tokens.local import INLINE_BYTES_MAX, LocalCounter
from kvgate.tokens.model_tokenizer import CACHE_MAX, ModelTokenizer
from kvgate_policies.types import Endpoint, InferenceRequest, PromptSize

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

TEMPLATE = """{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}
{%- for call in m.tool_calls or [] %}{{ call.function.arguments | tojson }}{% endfor %}<|end|>{% endfor %}
{%- if tools %}{{ tools | tojson }}{% endif %}
{%- if add_generation_prompt %}<|assistant|>{% endif %}
{%- if thinking %}<think>{% endif %}"""

CORPUS = [
    "the proxy queues what does not fit, and the engine never preempts",
    '{"city": "Oslo", "unit": "C"}',
] * 20


def build_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    specials = ["<s>", "<|user|>", "<|assistant|>", "<|system|>", "<|end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    return tokenizer


TOKENIZER = build_tokenizer()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    TOKENIZER.save(str(tmp_path / "tokenizer.json"))
    write_config(tmp_path, chat_template=TEMPLATE)
    return tmp_path


def write_config(folder: Path, **entries: object) -> None:
    config = {"bos_token": {"content": "<s>", "lstrip": False}, "eos_token": "<|end|>", **entries}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def length(text: str, *, specials: bool = False) -> int:
    return len(TOKENIZER.encode(text, add_special_tokens=specials).ids)


def request_of(*bodies: Mapping[str, object], **changes: object) -> InferenceRequest:
    request = InferenceRequest(
        endpoint=Endpoint.CHAT,
        model="m",
        stream=False,
        prompts=tuple(PromptSize(utf8_bytes=len(json.dumps(body, ensure_ascii=False))) for body in bodies),
        max_tokens=None,
        max_tokens_field="max_tokens",
        tokenize=tuple(dict(body) for body in bodies),
    )
    return replace(request, **changes)  # type: ignore[arg-type]


def chat(*messages: Mapping[str, object], **extra: object) -> InferenceRequest:
    return request_of({"messages": list(messages), **extra})


USER = {"role": "user", "content": "does the proxy fit?"}
RENDERED = "<s><|user|>does the proxy fit?<|end|>"


async def exactly(folder: Path, request: InferenceRequest) -> int:
    count = await LocalCounter(folder).count(request)
    assert count.exact
    return count.total


async def estimated(folder: Path, request: InferenceRequest) -> bool:
    counter = LocalCounter(folder)
    assert await counter.count_exactly(request) is None
    return not (await counter.count(request)).exact


async def test_prompt_is_counted_with_special_tokens(folder: Path) -> None:
    text = "the engine never preempts"
    assert (
        await exactly(folder, request_of({"prompt": text})) == length(text, specials=True) == length(text) + 1
    )
    assert await exactly(folder, request_of({"prompt": text, "add_special_tokens": False})) == length(text)
    assert await exactly(folder, request_of({"prompt": [5, 6, 7]})) == 3


async def test_chat_is_counted_through_the_template(folder: Path) -> None:
    assert await exactly(folder, chat(USER)) == length(RENDERED + "<|assistant|>")
    assert await exactly(folder, chat(USER, add_generation_prompt=False)) == length(RENDERED)


async def test_tools_and_template_arguments_count(folder: Path) -> None:
    tools = [{"type": "function", "function": {"name": "weather", "description": "Wetter für Ort <x>"}}]
    printed = json.dumps(tools, ensure_ascii=False)
    assert await exactly(folder, chat(USER, tools=tools)) == length(RENDERED + printed + "<|assistant|>")
    thinking = chat(USER, chat_template_kwargs={"thinking": True})
    assert await exactly(folder, thinking) == length(RENDERED + "<|assistant|><think>")


async def test_messages_are_shaped_as_the_engine_does(folder: Path) -> None:
    parts = {"role": "user", "content": [{"type": "text", "text": "the"}, {"type": "text", "text": "engine"}]}
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city":   "Oslo"}'}}
    assistant = {"role": "assistant", "content": None, "tool_calls": [call]}
    text = '<s><|user|>the\nengine<|end|><|assistant|>{"city": "Oslo"}<|end|><|assistant|>'
    assert await exactly(folder, chat(parts, assistant)) == length(text)


async def test_template_file_and_named_templates(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{{ eos_token }}{% generation %}fit{% endgeneration %}")
    assert await exactly(folder, chat(USER)) == length("<|end|>fit")
    (folder / "chat_template.jinja").unlink()
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "with tools"}]
    write_config(folder, chat_template=named)
    assert await exactly(folder, chat(USER)) == length("plain")
    assert await exactly(folder, chat(USER, tools=[{"type": "function"}])) == length("with tools")


async def test_template_has_the_helpers_that_models_use(folder: Path) -> None:
    source = "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}x{% endfor %}"
    source += "{{ strftime_now('%Y') | length }}"
    write_config(folder, chat_template=source)
    assert await exactly(folder, chat(USER, USER, USER)) == length("x4")


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[7].content.nothing }}",
        "{{ messages.append(1) }}",
        "{{ ().__class__.__mro__ }}{{ cycler.__init__.__globals__ }}",
        "{{ 1 / 0 }}",
    ],
)
async def test_template_that_refuses_leaves_the_prompt_to_the_estimate(folder: Path, template: str) -> None:
    write_config(folder, chat_template=template)
    assert await estimated(folder, chat(USER))


@pytest.mark.parametrize(
    "body",
    [
        {"messages": "no list"},
        {"messages": ["no object"]},
        {"messages": [{"role": "user", "content": 7}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {"arguments": "{no json"}}]}]},
        {"messages": [USER], "continue_final_message": True},
        {"messages": [USER], "chat_template": "{{ messages }}"},
        {"messages": [USER], "chat_template_kwargs": {"messages": []}},
        {"prompt": "lone surrogate \ud800"},
        {},
    ],
)
async def test_what_only_the_engine_can_count_is_left_to_it(folder: Path, body: dict[str, Any]) -> None:
    request = request_of(body, prompts=(PromptSize(utf8_bytes=50),))
    assert await estimated(folder, request)

    async def tokenize(body: Mapping[str, object]) -> int:
        return 77

    count = await LocalCounter(folder, tokenize).count_exactly(request)
    assert count is not None
    assert count.tokens == (77,)


async def test_folder_without_template_counts_prompts_only(folder: Path) -> None:
    (folder / "tokenizer_config.json").unlink()
    assert await exactly(folder, request_of({"prompt": "fit"})) == length("fit", specials=True)
    assert await estimated(folder, chat(USER))


async def test_settings_of_the_training_run_are_ignored(folder: Path) -> None:
    tokenizer = build_tokenizer()
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=64)
    tokenizer.save(str(folder / "tokenizer.json"))
    text = "the proxy queues what does not fit"
    assert await exactly(folder, request_of({"prompt": text})) == length(text, specials=True) > 4


async def test_long_prompt_is_counted_off_the_loop(folder: Path) -> None:
    text = "the engine never preempts " * (INLINE_BYTES_MAX // 8)
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counter = LocalCounter(folder)
    spinning = asyncio.create_task(turn())
    short = await counter.count(request_of({"prompt": "short"}))
    during_short = turns
    count = await counter.count(request_of({"prompt": text}))
    spinning.cancel()
    assert short.exact
    assert during_short == 0 < turns
    assert (count.total, count.exact) == (length(text, specials=True), True)


async def test_list_of_prompts_and_truncation(folder: Path) -> None:
    request = request_of({"prompt": "fit"}, {"prompt": "the engine never preempts"}, prompt_tokens_max=3)
    counter = LocalCounter(folder)
    whole = await counter.count(replace(request, prompt_tokens_max=None))
    assert whole.tokens == (length("fit", specials=True), length("the engine never preempts", specials=True))
    assert (await counter.count(request)).tokens == tuple(min(n, 3) for n in whole.tokens)


async def test_token_ids_need_no_tokenizer(folder: Path) -> None:
    request = request_of(prompts=(PromptSize(tokens=12),))
    assert await exactly(folder, request) == 12


async def test_usage_teaches_the_estimate_behind_it(folder: Path) -> None:
    request = request_of({"messages": "no list"}, prompts=(PromptSize(utf8_bytes=1000),))
    counter = LocalCounter(folder)
    before = (await counter.count(request)).total
    for _ in range(20):
        counter.learn(request, 250)
    assert 250 <= (await counter.count(request)).total < before


def test_counts_are_remembered_within_bounds(folder: Path) -> None:
    tokenizer = ModelTokenizer(folder)
    counts = [tokenizer.count({"prompt": f"fit {i}"}) for i in range(CACHE_MAX + 50)]
    assert len(tokenizer._counts) == CACHE_MAX
    assert [tokenizer.count({"prompt": f"fit {i}"}) for i in range(100)] == counts[:100]
    # Special tokens are part of what is remembered.
    assert tokenizer.count({"prompt": "fit 9", "add_special_tokens": False}) == counts[9] - 1


def test_folder_that_is_unusable_says_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a folder"):
        LocalCounter(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"tokenizer\.json is missing"):
        LocalCounter(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match="is no tokenizer"):
        LocalCounter(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "is not a JSON object"),
        ('{"chat_template": "{% if %}"}', "chat template is unusable"),
        ('{"chat_template": 7}', "chat template is unusable"),
        ('{"chat_template": [7]}', "chat template is unusable"),
        ('{"chat_template": [{"name": "default"}]}', "chat template is unusable"),
    ],
)
def test_configuration_that_is_unusable_says_what_is_wrong(folder: Path, content: str, message: str) -> None:
    (folder / "tokenizer_config.json").write_text(content)
    with pytest.raises(ConfigError, match=message):
        LocalCounter(folder)


@pytest.mark.parametrize("missing", ["tokenizers", "kvgate.tokens.chat_template"])
def test_missing_extra_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ConfigError, match=r"pip install 'kvgate\[tokenizers\]'"):
        LocalCounter(folder)


async def no_engine(body: Mapping[str, object]) -> int:
    raise TokenizeFailed


def test_setting_chooses_the_counter(folder: Path) -> None:
    assert isinstance(counter_for("learned", no_engine), LearnedCounter)
    assert isinstance(counter_for("backend", no_engine), BackendCounter)
    assert isinstance(counter_for(f"local:{folder}", no_engine), LocalCounter)


@pytest.mark.parametrize("spec", ["", "Learned", "local", "local:", "learned:x", "remote:x"])
def test_unknown_setting_is_refused(spec: str) -> None:
    with pytest.raises(ConfigError, match="expected learned, backend or local:DIR"):
        counter_for(spec, no_engine)
