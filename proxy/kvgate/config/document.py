"""Reading a YAML file and saying precisely what is wrong in it.

Promises: bounded size and depth, also of what is written once and meant in many places (`*alias`), no key twice,
only plain values; every error names the file and the line or the path.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

import yaml

from kvgate.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

BYTES_MAX = 1024 * 1024
"""Ten thousand tenants fit; more is another file, given by mistake."""
VALUES_MAX = 500_000
"""With each alias counted as what it stands for; without any, a file of that size can hardly have as many. A dozen
lines of aliases of aliases stand for more than a machine can hold."""


class _StrictLoader(yaml.SafeLoader):
    """The safe loader, but a key that is there twice is an error instead of the last one winning."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable) or key in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"the key {key!r} is there twice", problem_mark=key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> object:
    """The document in a file. Raises ConfigError."""
    try:
        with path.open("rb") as file:
            data = file.read(BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    if len(data) > BYTES_MAX:
        raise ConfigError(f"{path}: larger than {BYTES_MAX} bytes; a policy file is a few kilobytes")
    return parse_yaml(data, str(path))


def parse_yaml(data: bytes, source: str) -> object:
    """The document in `data`; `source` names it in errors. Raises ConfigError."""
    try:
        return _loaded(data)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "somewhere"
        raise ConfigError(f"{source}: {where}: {error.problem or error.context}") from error
    except (yaml.YAMLError, ValueError) as error:  # ValueError: such as a date that does not exist
        raise ConfigError(f"{source}: not YAML: {error}") from error
    except RecursionError as error:
        raise ConfigError(f"{source}: nested too deeply") from error


def _loaded(data: bytes) -> object:
    loader = _StrictLoader(data)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _count(node, {})
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _count(node: yaml.Node, counted: dict[int, int]) -> int:
    """How many values a node stands for, with those in it. `counted`: of each node, 0 while it is being counted.

    Raises yaml.MarkedYAMLError for more than `VALUES_MAX`, and for a node that is in itself.
    """
    known = counted.get(id(node))
    if known is not None:
        if not known:
            raise yaml.MarkedYAMLError(problem="it is a part of itself", problem_mark=node.start_mark)
        return known
    counted[id(node)] = 0
    total = 1 + sum(_count(part, counted) for part in _parts(node))
    if total > VALUES_MAX:
        problem = f"with its aliases it stands for more than {VALUES_MAX} values"
        raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
    counted[id(node)] = total
    return total


def _parts(node: yaml.Node) -> list[yaml.Node]:
    match node:
        case yaml.MappingNode():
            return [part for pair in node.value for part in pair]
        case yaml.SequenceNode():
            return list(node.value)
        case _:
            return []
