"""Reads a YAML document that a person wrote, and says where it is wrong without repeating it: it may hold secrets."""

from __future__ import annotations

from typing import Any

import yaml


class _Twice(Exception):
    """A key stands twice in one mapping."""

    def __init__(self, mark: yaml.Mark) -> None:
        super().__init__()
        self.mark = mark


class _Loader(yaml.SafeLoader):
    """YAML takes the last of two equal keys in silence, and whoever wrote the first would never know."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise _Twice(key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def parse_yaml(text: str | bytes) -> Any:
    """Return what a document holds, None for an empty one.

    Raises:
        ValueError: it is not YAML, has a key twice in one mapping, or is nested too deeply.
    """
    try:
        return yaml.load(text, _Loader)
    except _Twice as error:
        raise ValueError(f"it has the same key twice{_place(error.mark)}; leave one out") from None
    except yaml.YAMLError as error:
        raise ValueError(f"it is not YAML{_place(getattr(error, 'problem_mark', None))}") from None
    except ValueError as error:
        raise ValueError(f"a value of it cannot be read: {error}") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _place(mark: yaml.Mark | None) -> str:
    return "" if mark is None else f" at line {mark.line + 1}, column {mark.column + 1}"
