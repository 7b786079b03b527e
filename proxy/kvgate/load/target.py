"""What is asked of a URL before anything is sent to it: does it answer, and which model has it?"""

from __future__ import annotations

from dataclasses import dataclass

import httpx

from kvgate.engines.models import read_models, window
from kvgate.errors import ConfigError

ANSWER_S_MAX = 10.0


@dataclass(frozen=True, slots=True)
class Target:
    url: str
    model: str
    max_model_len: int | None
    """None where it does not tell."""


def base_url(option: str, text: str) -> str:
    """A URL as it was given, without a slash or `/v1` at its end. Raises ConfigError."""
    url = text.strip().rstrip("/").removesuffix("/v1")
    if not url.startswith(("http://", "https://")) or len(url.split("//", 1)[1]) == 0 or " " in url:
        raise ConfigError(f"{option}: {text!r} is not allowed; allowed: a URL such as http://127.0.0.1:8080")
    return url


async def look_at(url: str, model: str | None, key: str | None) -> Target:
    """Ask for its models. Raises ConfigError when it gives no answer, or does not have `model`."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    try:
        async with httpx.AsyncClient(timeout=ANSWER_S_MAX, trust_env=False) as http:
            answer = await http.get(f"{url}/v1/models", headers=headers)
            cards = read_models(answer.raise_for_status().content)
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        hint = " (a key: --tenant NAME:KEY:1)" if "401" in str(error) else ""
        why = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ConfigError(f"{url}/v1/models gave no list of models: {why}{hint}") from error
    if not cards:
        raise ConfigError(f"{url} has no model: nothing is at /v1/models")
    names = [card.id for card in cards]
    if model is not None and model not in names:
        raise ConfigError(f"--model: {url} has no {model!r}; it has {', '.join(names)}")
    return Target(url, model or names[0], window(card for card in cards if card.id == (model or names[0])))
