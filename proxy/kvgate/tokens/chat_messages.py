"""Chat messages in the form in which vLLM passes them to a template.

Parts of text are joined by line breaks, and the arguments of tool calls, JSON in a string on the wire, become
objects.
"""

from __future__ import annotations

import json

TEXT_PARTS = frozenset({"text", "input_text", "output_text"})


class NotRendered(Exception):
    """The template cannot render this body the way the engine would; the message says why."""


def shaped(message: object) -> dict[str, object]:
    """One message as a template gets it. Raises NotRendered for what only the engine can shape."""
    if not isinstance(message, dict):
        raise NotRendered("a message is not an object")
    shape = {str(key): value for key, value in message.items()}
    shape["content"] = _content(message.get("content"))
    calls = message.get("tool_calls")
    if isinstance(calls, list):
        shape["tool_calls"] = [_tool_call(call) for call in calls]
    return shape


def _content(content: object) -> str:
    """Text as it is; parts of text joined by line breaks; nothing as the empty text."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise NotRendered("content is neither text nor parts")
    return "\n".join(_part(part) for part in content)


def _part(part: object) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, dict) and part.get("type") in TEXT_PARTS and isinstance(part.get("text"), str):
        return str(part["text"])
    raise NotRendered("a part of the content is not text")


def _tool_call(call: object) -> object:
    """A tool call with its arguments as an object: templates print them with `tojson`."""
    function = call.get("function") if isinstance(call, dict) else None
    arguments = function.get("arguments") if isinstance(function, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict) or not isinstance(arguments, str):
        return call
    try:
        parsed = json.loads(arguments) if arguments else {}
    except ValueError as error:
        raise NotRendered("the arguments of a tool call are not JSON") from error
    return call | {"function": function | {"arguments": parsed}}
