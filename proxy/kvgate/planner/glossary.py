"""The words of the planner's report, for whoever meets them the first time. Only those that were used are shown."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

GLOSSARY = (
    (("session", "sessions"), "one request while it runs, prompt and answer; vLLM calls it a sequence"),
    (("token", "tokens"), "a piece of text as the model reads and writes it, about four letters of English"),
    (
        ("KV cache",),
        "keys and values, which attention keeps of every token so that they are not computed again",
    ),
    (("heads", "KV heads"), "the parallel parts of attention, each with a key and a value for each token"),
    (("block", "blocks"), "the unit in which vLLM deals out KV cache: a fixed number of tokens"),
    (("null block",), "the first block, which vLLM sets aside and never fills"),
    (
        ("KV groups",),
        "layers that vLLM keeps a common list of blocks for; a model with windows or states has several",
    ),
    (
        ("latent attention", "compressed key-and-value vector"),
        "attention that stores one small vector per token",
    ),
    (("sliding window",), "attention that looks back a fixed number of tokens only"),
    (("recurrent state",), "what a layer keeps that sums the past up in a constant size"),
    (("index key",), "a small key by which sparse attention picks the tokens it looks at"),
    (("float16", "fp16"), "numbers of 16 bits"),
    (("bfloat16", "bf16"), "numbers of 16 bits with a wider range and fewer digits"),
    (("float32", "fp32"), "numbers of 32 bits"),
    (("fp8",), "numbers of 8 bits"),
    (("nvfp4",), "numbers of 4 bits with a scale for every 16 of them"),
    (("KiB",), "1024 bytes"),
    (("MiB",), "1024² = 1,048,576 bytes"),
    (("GiB",), "1024³ = 1,073,741,824 bytes"),
    (("TiB",), "1024⁴ = 1,099,511,627,776 bytes"),
    (("MB",), "1000² = 1,000,000 bytes"),
    (("GB",), "1000³ = 1,000,000,000 bytes"),
    (("TB",), "1000⁴ = 1,000,000,000,000 bytes"),
    (("weights",), "the model's parameters in GPU memory"),
    (("overhead",), "GPU memory for everything else: intermediate results, recorded work, buffers"),
    (("TP",), "tensor parallelism: one engine over several GPUs, each with a part of every layer"),
    (("stages",), "pipeline parallelism: one engine over several GPUs, each with some of the layers"),
    (("copies",), "data parallelism: several engines, each with the whole model"),
    (("engine", "engines"), "one vLLM scheduler with its KV cache"),
    (("max_model_len", "--max-model-len"), "vLLM's limit on the tokens of a session"),
    (("max_num_seqs", "--max-num-seqs"), "vLLM's limit on sessions that run at once"),
    (
        ("gpu_memory_utilization", "--gpu-memory-utilization"),
        "the share of a GPU's memory that vLLM may take",
    ),
    (("max_tokens",), "the limit on the tokens of an answer"),
)


def words_in(text: str) -> Iterator[tuple[str, str]]:
    """The entries whose words are in the text, each under those of its spellings that are."""
    for spellings, meaning in GLOSSARY:
        found = [one for one in spellings if re.search(rf"(?<![\w-]){re.escape(one)}(?![\w-])", text)]
        if found:
            yield ", ".join(found), meaning
