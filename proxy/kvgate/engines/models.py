"""The model cards of `/v1/models`: which names a backend answers to, and the window of its model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@dataclass(frozen=True, slots=True)
class Card:
    """One served name: a base model, an alias of it, or a LoRA adapter (with a `parent`)."""

    id: str
    max_model_len: int | None
    raw: Mapping[str, Any]
    """As the backend printed it."""


class _List(msgspec.Struct):
    data: list[dict[str, Any]]


def read_models(body: bytes) -> tuple[Card, ...]:
    """Read the answer of `GET /v1/models`. Raises ValueError when it is not such a list."""
    try:
        return tuple(_card(raw) for raw in msgspec.json.decode(body, type=_List).data)
    except (msgspec.DecodeError, KeyError) as error:
        raise ValueError(f"/v1/models is not a list of models: {error!r}") from error


def _card(raw: Mapping[str, Any]) -> Card:
    length, name = raw.get("max_model_len"), raw["id"]
    if not isinstance(name, str):
        raise ValueError(f"/v1/models is not a list of models: {name!r} is no name")  # noqa: TRY004  of a body, not of ours
    return Card(name, length if type(length) is int and length > 0 else None, raw)


def window(cards: Iterable[Card]) -> int | None:
    """The `max_model_len` of a backend: the smallest that one of its cards names."""
    return min((card.max_model_len for card in cards if card.max_model_len is not None), default=None)


def merged(lists: Iterable[Iterable[Card]]) -> tuple[Card, ...]:
    """One card per name, the first one seen."""
    cards: dict[str, Card] = {}
    for card in (card for cards_of_one in lists for card in cards_of_one):
        cards.setdefault(card.id, card)
    return tuple(cards.values())


def strangers(served: Mapping[str, frozenset[str]]) -> dict[str, str]:
    """The backends that have no model in common with the pool, each with the reason in words.

    `served` has the names of each backend that told them, in the order of seniority. The pool serves what most
    of them do, and of several the senior one: a verdict that does not depend on who answered first, and in
    which one server that is restarted with another model does not shut out all the others.
    """

    def agreeing(names: frozenset[str]) -> int:
        return sum(1 for others in served.values() if names & others)

    pool = max(served.values(), key=agreeing, default=frozenset[str]())
    return {url: _strange(names, pool) for url, names in served.items() if not names & pool}


def _strange(names: frozenset[str], pool: frozenset[str]) -> str:
    if not names:
        return "lists no model at /v1/models: it is no vLLM server, or has none loaded"
    return f"serves {_names(names)}, the pool serves {_names(pool)}: give it a pool of its own"


def _names(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
