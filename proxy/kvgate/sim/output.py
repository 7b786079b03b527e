"""What the simulated model says, and when it stops by itself.

Both follow from the prompt, the index of the sequence and the server's seed alone, so a run can be repeated.
The words have three letters and a blank: each is exactly one token of `tokenizer`, and what a client counts
in a text is what the engine generated.
"""

from __future__ import annotations

from array import array
from hashlib import blake2b
from math import exp
from random import Random

LENGTH_MEDIAN = 128
LENGTH_SIGMA = 0.8
"""Natural output lengths are log-normal: median 128 tokens, mean 176, one in a hundred above 820 (assumed: a
long tail like that of chat). A test that needs a length sets `x-sim-output-tokens` or `ignore_eos`."""

_WORDS = (
    " the and for not you all can her was one our out day get has him"
    " his how man new now old see two way who boy did its let put say"
    " she too use air arm art ask bad bag bed big box car cup cut dog"
    " dry eat end eye far few fly gas got hot ice job key law leg lot"
)
_TOKENS = tuple(_WORDS[start : start + 4] for start in range(0, len(_WORDS), 4))


def fingerprint(prompt: tuple[int, ...], seed: int) -> int:
    """64 bits that stand for a prompt."""
    digest = blake2b(array("Q", prompt).tobytes(), digest_size=8, key=b"%d" % seed)
    return int.from_bytes(digest.digest())


def sibling(mark: int, index: int) -> int:
    """The mark of the index-th sequence of a request (the multiplier is that of Fibonacci hashing)."""
    return (mark + index * 0x9E3779B97F4A7C15) % 2**64


def natural_length(mark: int) -> int:
    """Tokens until the model would stop by itself, the end-of-sequence token included."""
    draw = Random(mark).gauss(0.0, LENGTH_SIGMA)  # noqa: S311 -- repeatable, not secret
    return max(1, round(LENGTH_MEDIAN * exp(draw)))


def words(mark: int, start: int, stop: int) -> str:
    """The text of output tokens `start` to `stop` of the sequence with this fingerprint."""
    return "".join([_TOKENS[(mark + step * (1 + mark % 13)) % len(_TOKENS)] for step in range(start, stop)])
