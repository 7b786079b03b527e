"""What is known of a model's tokenizer without having it: tokens per byte of text, learned from exact counts.

* One ratio for each model, script class and size of text. *Latin* and *dense* scripts differ by a factor of
  two to four, and short texts are another kind of text than long ones (chat beside documents and code). A
  class and size that few exact counts have taught takes the highest of what the class's other sizes say and
  the start value.
* A ratio is a high quantile of the last exact counts: the mean would be too low for half of the prompts,
  and what is too low is room that was never reserved.
* Every text is taken as `TEMPLATE_BYTES` longer than it is, in learning and estimating alike: the chat
  template adds a fixed piece, which would otherwise turn "hi" into a ratio of fifteen tokens a byte.
* Memory is bounded: `MODELS_MAX` models, least recently used first out, and `SAMPLES_MAX` counts for each
  kind.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvgate_policies.types import PromptSize

QUANTILE = 0.95
SAMPLES_MAX = 256
"""Exact counts remembered for each kind of text: enough for the quantile, few enough to follow a change."""
SAMPLES_MIN = 8
"""Below this many a quantile says nothing."""
COUNTED_FIRST = 50
"""Prompts of each model and script that are counted exactly at first: the estimate is sound after that."""
COUNTED_EVERY = 100
"""Later one in so many, since most streams never say how long their prompt was."""
MODELS_MAX = 64
"""A pool serves a handful of names; the rest of the room is for adapters."""
MESSAGE_TOKENS = 4
"""Role and delimiters around one chat message, in the common templates."""
TEMPLATE_BYTES = 128
"""About thirty tokens: what the common templates put before the first message."""
SIZE_EDGES_BYTES = (512, 4096, 32768)


class Script(StrEnum):
    """Writing systems by the bytes that a token of them holds."""

    LATIN = "latin"
    DENSE = "dense"


START_RATIO = {Script.LATIN: 0.5, Script.DENSE: 1.0}
"""Tokens per byte before anything was learned: dense digits and code reach a half, and a byte-level tokenizer
never makes more than one token of a byte."""


@dataclass(slots=True)
class _Samples:
    """The last exact ratios of one kind of text, in order of age and of size."""

    recent: deque[float] = field(default_factory=deque[float])
    ordered: list[float] = field(default_factory=list[float])

    def add(self, ratio: float) -> None:
        if len(self.recent) == SAMPLES_MAX:
            del self.ordered[bisect_left(self.ordered, self.recent.popleft())]
        self.recent.append(ratio)
        insort(self.ordered, ratio)

    def quantile(self) -> float | None:
        """None while there are too few."""
        if len(self.ordered) < SAMPLES_MIN:
            return None
        return self.ordered[math.ceil(QUANTILE * len(self.ordered)) - 1]


@dataclass(slots=True)
class _Kind:
    """One model's texts of one script and size: what they taught, and how many there were."""

    samples: _Samples = field(default_factory=_Samples)
    seen: int = 0


class ModelRatios:
    """What one model's exact counts have taught."""

    def __init__(self) -> None:
        sizes = range(len(SIZE_EDGES_BYTES) + 1)
        self._kinds = {script: [_Kind() for _ in sizes] for script in Script}

    def notice(self, prompt: PromptSize) -> bool:
        """Count the prompt as seen; whether it is one of those to be counted exactly.

        These are the first of a script, the first of a size, and then one in `COUNTED_EVERY`. A count that
        fails is not repeated: an engine that cannot count would be asked, and waited for, every time.
        """
        of_script = sum(kind.seen for kind in self._kinds[script_of(prompt)])
        kind = self._kind(prompt)
        kind.seen += 1
        return of_script < COUNTED_FIRST or kind.seen <= SAMPLES_MIN or kind.seen % COUNTED_EVERY == 0

    def ratio(self, script: Script, size: int) -> float:
        """Tokens per byte, rather too many than too few."""
        kinds = self._kinds[script]
        own = kinds[size].samples.quantile()
        if own is not None:
            return own
        others = [q for kind in kinds if (q := kind.samples.quantile()) is not None]
        return max([START_RATIO[script], *others])

    def estimate(self, prompt: PromptSize) -> int:
        """Tokens of a prompt, media and template included."""
        return math.ceil(self._text_tokens(prompt)) + _fixed_tokens(prompt)

    def learn(self, prompts: tuple[PromptSize, ...], tokens: int) -> None:
        """An exact count of the prompts together; it teaches about the kind of the largest one.

        What a mixed text teaches is credited to the script of its larger part, as the ratio that would have
        made the estimate right.
        """
        text_tokens = tokens - sum(map(_fixed_tokens, prompts))
        if text_tokens <= 0 or not prompts:
            return
        correction = text_tokens / sum(map(self._text_tokens, prompts))
        largest = max(prompts, key=lambda prompt: prompt.utf8_bytes)
        self._kind(largest).samples.add(self.ratio(script_of(largest), _size(largest)) * correction)

    def _kind(self, prompt: PromptSize) -> _Kind:
        return self._kinds[script_of(prompt)][_size(prompt)]

    def _text_tokens(self, prompt: PromptSize) -> float:
        size = _size(prompt)
        latin_bytes, dense_bytes = prompt.utf8_bytes - prompt.dense_bytes, prompt.dense_bytes
        if script_of(prompt) is Script.DENSE:
            dense_bytes += TEMPLATE_BYTES
        else:
            latin_bytes += TEMPLATE_BYTES
        latin = self.ratio(Script.LATIN, size) * latin_bytes if latin_bytes else 0.0
        dense = self.ratio(Script.DENSE, size) * dense_bytes if dense_bytes else 0.0
        return latin + dense


class Ratios:
    """`ModelRatios` by model name, bounded."""

    def __init__(self) -> None:
        self._models: OrderedDict[str, ModelRatios] = OrderedDict()

    def __len__(self) -> int:
        return len(self._models)

    def of(self, model: str | None) -> ModelRatios:
        """The ratios of a model; new ones for a name not met lately. None is the one the pool serves."""
        name = model or ""
        known = self._models.get(name)
        if known is None:
            known = self._models[name] = ModelRatios()
        self._models.move_to_end(name)
        if len(self._models) > MODELS_MAX:
            self._models.popitem(last=False)
        return known


def script_of(prompt: PromptSize) -> Script:
    """The script of the larger part."""
    return Script.DENSE if 2 * prompt.dense_bytes > prompt.utf8_bytes else Script.LATIN


def _size(prompt: PromptSize) -> int:
    return bisect_left(SIZE_EDGES_BYTES, prompt.utf8_bytes + 1)


def _fixed_tokens(prompt: PromptSize) -> int:
    return prompt.media_tokens + MESSAGE_TOKENS * prompt.messages
