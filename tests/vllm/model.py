"""Write a tiny Llama that vLLM loads offline: configuration, tokenizer, chat template; weights are random.

About 3.8 million parameters, enough for a real scheduler, a real paged KV cache and a real HTTP server. The
folder is the same bytes every time, and every id below the vocabulary's size decodes to something.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

VOCABULARY = 1024
PAD, BOS, EOS = "<|pad|>", "<|bos|>", "<|eos|>"
SPECIAL = (PAD, BOS, EOS, "<|user|>", "<|assistant|>", "<|system|>")
POSITIONS_MAX = 4096

WORDS = (  # noqa: SIM905 (a sentence reads better as one)
    "a proxy reserves blocks of key and value cache before it forwards what a client asks and holds back the "
    "rest in a queue so that no engine preempts a stream while others arrive one after another all day long"
).split()

CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "<|{{ message['role'] }}|>{{ message['content'] }}{{ eos_token }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "hidden_act": "silu",
    "max_position_embeddings": POSITIONS_MAX,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "initializer_range": 0.02,
    "torch_dtype": "float32",
}


def write_model(folder: Path) -> None:
    """Write the model's files into `folder`, which is made when missing."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = _tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    ids = {
        "pad_token_id": tokenizer.token_to_id(PAD),
        "bos_token_id": tokenizer.token_to_id(BOS),
        "eos_token_id": tokenizer.token_to_id(EOS),
    }
    special = {"pad_token": PAD, "bos_token": BOS, "eos_token": EOS}
    _write(folder / "config.json", CONFIG | ids)
    _write(folder / "generation_config.json", ids)
    _write(folder / "special_tokens_map.json", special)
    _write(folder / "tokenizer_config.json", _tokenizer_config() | special)


def _tokenizer_config() -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": POSITIONS_MAX,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }


def _tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_text(), trainer)
    missing = VOCABULARY - tokenizer.get_vocab_size()
    tokenizer.add_tokens([f" filler{number}" for number in range(missing)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, tokenizer.token_to_id(BOS))]
    )
    return tokenizer


def _text() -> Iterator[str]:
    """A few thousand words in ever other orders, for the tokenizer to learn its pairs from."""
    for line in range(400):
        stride = 1 + line % 5
        words = (WORDS[(line * 3 + place * stride) % len(WORDS)] for place in range(6 + line % 9))
        yield f"{' '.join(words).capitalize()}, {line * 37 % 1000}."


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n", encoding="utf-8")
