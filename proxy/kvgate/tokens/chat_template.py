"""A model's chat template, rendered as the engine renders it.

Templates are Jinja programs from the model's folder. They run in Jinja's immutable sandbox with what the
`transformers` library gives them: `messages`, `tools`, the special tokens by name, `raise_exception`,
`strftime_now`, `tojson` without HTML escapes, loop controls, and the `generation` block.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from kvgate.tokens.chat_messages import NotRendered, shaped

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jinja2 import Environment
    from jinja2.parser import Parser


REFUSED_ARGUMENTS = frozenset({"messages", "tools", "chat_template", "tokenize"})


class ChatTemplate:
    """One folder's templates: the ordinary one, and perhaps one for requests with tools."""

    def __init__(self, sources: Mapping[str, str], special_tokens: Mapping[str, str]) -> None:
        """Compile. Raises `jinja2.TemplateError` for a template that is not well-formed."""
        environment = _environment()
        functions = {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
        self._templates = {
            name: environment.from_string(source, globals=functions) for name, source in sources.items()
        }
        self._special_tokens = dict(special_tokens)

    def render(self, body: Mapping[str, object]) -> str:
        """The text of a chat body of `POST /tokenize`.

        Raises NotRendered for what only the engine can render, and for a body the template refuses.
        """
        messages, tools = body.get("messages"), body.get("tools")
        if not isinstance(messages, list):
            raise NotRendered("messages are not a list")
        if body.get("continue_final_message") or body.get("chat_template") is not None:
            raise NotRendered("a continued message or a template of the request's own")
        name = "tool_use" if tools and "tool_use" in self._templates else "default"
        if name not in self._templates:
            raise NotRendered(f"the folder has no {name} chat template")
        variables = self._special_tokens | {
            "messages": [shaped(message) for message in messages],
            "tools": tools or None,
            "documents": body.get("documents"),
            "add_generation_prompt": body.get("add_generation_prompt", True),
        }
        return self._run(name, variables | _keyword_arguments(body))

    def _run(self, name: str, variables: Mapping[str, object]) -> str:
        try:
            return self._templates[name].render(variables)
        except Exception as error:
            # A template is a program and the body is the client's: a missing key, a wrong type, its own
            # raise_exception. All mean the same here.
            raise NotRendered(f"{type(error).__name__}: {error}") from error


class _Generation(Extension):
    """`{% generation %} … {% endgeneration %}` marks the assistant's text for training; here it is text."""

    tags = {"generation"}  # noqa: RUF012 - how Jinja declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> Environment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    """Local time, as on the engine; a date is as long in any zone."""
    return datetime.now().astimezone().strftime(pattern)


def _keyword_arguments(body: Mapping[str, object]) -> dict[str, object]:
    """The client's own variables; those that the engine refuses would make the count one of another text."""
    arguments = body.get("chat_template_kwargs")
    if not isinstance(arguments, dict):
        return {}
    if REFUSED_ARGUMENTS & arguments.keys():
        raise NotRendered("chat_template_kwargs replaces what the request gives elsewhere")
    return {str(key): value for key, value in arguments.items()}
