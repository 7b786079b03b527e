"""What is offered to a pool: requests with all that decides how they fare, whoever wrote them down. Pure.

Of a log's requests not everything is known: who was refused, or left, has no length. Then the rules are

1. An answer that was not seen to its end is as long as that of some request that was: one of the same tenant if there
   is any, drawn by the seed. If that one ran into its limit, this one runs into its own.
2. Who left while it waited leaves at the same time after its arrival, unless it has been answered by then. Who left
   after its grant had seen enough: it leaves as long after its grant as it did.
3. What was refused for its own sake (no such model, no key, a body that is none, larger than any engine) would be
   refused by every policy and is left out, as is what costs no output tokens.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvgate_policies.types import Endpoint, Outcome, PriorityClass

if TYPE_CHECKING:
    from kvgate.telemetry.request_line import LoggedRequest

LEFT_OUT = frozenset(
    {
        Outcome.REJECTED_BAD_REQUEST,
        Outcome.REJECTED_UNKNOWN_MODEL,
        Outcome.REJECTED_UNAUTHORIZED,
        Outcome.UPSTREAM_REFUSED,
        Outcome.INTERNAL_ERROR,
    }
)
"""Rule 3, of the outcomes; `rejected_never_fits` has no prompt either, and is left out for that."""
SAMPLES_MAX = 20_000
"""Answers of a tenant that are drawn from: more would not change a percentile."""
ANYONE = ""
_ENDPOINTS = {endpoint.value: endpoint for endpoint in Endpoint if endpoint is not Endpoint.AUDIO}
_CLASSES = {priority.value: priority for priority in PriorityClass}


@dataclass(frozen=True, slots=True)
class Offered:
    """One request."""

    arrived_s: float
    tenant: str
    prompt_tokens: int
    """Of each prompt."""
    output_tokens: int
    """Of each sequence, if nothing cuts it."""
    max_tokens: int | None = None
    """The client's own limit for a sequence."""
    min_tokens: int = 0
    """Of a sequence, that the client asked for at least."""
    ignore_eos: bool = False
    """Only the limit ends a sequence."""
    counted_tokens: int | None = None
    """What the price is computed from; None: the prompt itself."""
    exact: bool = True
    """Whether that is the engine's own count."""
    prompts: int = 1
    n: int = 1
    stream: bool = True
    endpoint: Endpoint = Endpoint.CHAT
    priority: PriorityClass | None = None
    """The class it asks for; None: its tenant's."""
    deadline_s: float | None = None
    """The longest wait it asks for."""
    patience_s: float | None = None
    """From arrival: then it leaves, unless its answer has begun."""
    seen_enough_s: float | None = None
    """From the grant: then it leaves, unless its answer is complete."""


@dataclass(slots=True)
class Taken:
    """What came of a log: its requests in the order of their arrival, from 0 s on, and what is not among them."""

    requests: list[Offered] = field(default_factory=list[Offered])
    left_out: int = 0
    """By rule 3."""
    guessed: int = 0
    """Lengths by rule 1."""
    out_of_order: int = 0
    """Requests of a file that came before the one above them; they are put in their place."""


def take(logged: Iterable[LoggedRequest], *, seed: int = 1, is_log: bool = True) -> Taken:
    """The requests of a log or trace. A log has its lines in the order of the ends, which is not worth a word."""
    kept: list[LoggedRequest] = []
    taken, before_s = Taken(), float("-inf")
    for one in logged:
        if _endpoint(one) is None or one.outcome in LEFT_OUT or not _prompt(one):
            taken.left_out += 1
            continue
        taken.out_of_order += not is_log and one.arrived < before_s
        before_s = one.arrived
        kept.append(one)
    kept.sort(key=lambda one: one.arrived)
    lengths = Lengths(kept, random.Random(f"{seed} lengths"))  # noqa: S311  so that it can be repeated
    first_s = kept[0].arrived if kept else 0.0
    taken.requests = list(_offered(kept, first_s, lengths, taken))
    return taken


def _offered(
    kept: Iterable[LoggedRequest], first_s: float, lengths: Lengths, taken: Taken
) -> Iterator[Offered]:
    for one in kept:
        known = lengths.of(one)
        taken.guessed += known is None
        left = one.outcome == Outcome.CLIENT_GONE
        prompts, counted = max(one.prompts, 1), one.prompt_tokens_counted
        yield Offered(
            arrived_s=one.arrived - first_s,
            tenant=one.tenant,
            prompt_tokens=_part(_prompt(one), prompts),
            output_tokens=lengths.guess(one) if known is None else known,
            max_tokens=one.max_tokens_asked,
            min_tokens=one.min_tokens,
            ignore_eos=one.ignore_eos,
            counted_tokens=None if counted is None else _part(counted, prompts),
            exact=one.prompt_tokens_exact,
            prompts=prompts,
            n=max(one.n, 1),
            stream=one.stream,
            endpoint=_endpoint(one) or Endpoint.CHAT,
            priority=_priority(one.class_asked),
            deadline_s=one.deadline_s,
            patience_s=one.total_s if left and one.queue_s is None else None,
            seen_enough_s=None if not left or one.queue_s is None else max(one.total_s - one.queue_s, 0.0),
        )


class Lengths:
    """Answers that were seen to their end, to guess others by (rule 1)."""

    def __init__(self, logged: Iterable[LoggedRequest], source: random.Random) -> None:
        self._source = source
        self._samples: dict[str, list[int | None]] = {}
        for one in logged:
            known = self.of(one)
            if known is not None:
                limit = one.max_tokens_charged or one.max_tokens_asked
                sample = None if limit is not None and known >= limit else known
                for name in (one.tenant, ANYONE):
                    samples = self._samples.setdefault(name, [])
                    if len(samples) < SAMPLES_MAX:
                        samples.append(sample)

    @staticmethod
    def of(one: LoggedRequest) -> int | None:
        """Tokens of each sequence of a whole answer; None of any other."""
        if one.outcome != Outcome.SERVED or not one.completion_tokens:
            return None
        return _part(one.completion_tokens, max(one.prompts, 1) * max(one.n, 1))

    def guess(self, one: LoggedRequest) -> int:
        """Drawn; its own limit where that is what the drawn one ran into, or must come to, and never above it."""
        limit = one.max_tokens_asked or one.max_tokens_charged
        if one.ignore_eos and limit:
            return limit
        samples = self._samples.get(one.tenant) or self._samples.get(ANYONE)
        drawn = self._source.choice(samples) if samples else None
        known = [tokens for tokens in (drawn, limit) if tokens is not None]
        return max(min(known, default=1), 1)


def _prompt(one: LoggedRequest) -> int:
    """Tokens of all its prompts; 0 where nobody counted them."""
    return one.prompt_tokens or one.prompt_tokens_counted or 0


def _part(tokens: int, parts: int) -> int:
    """Of each, rounded up."""
    return max(-(-tokens // parts), 1)


def _endpoint(one: LoggedRequest) -> Endpoint | None:
    """None for what has no place in a replay: an endpoint of a later version, and audio, whose prompt nobody knows."""
    return _ENDPOINTS.get(one.endpoint)


def _priority(name: str | None) -> PriorityClass | None:
    return None if name is None else _CLASSES.get(name)
