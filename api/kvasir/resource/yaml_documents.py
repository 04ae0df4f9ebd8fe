"""Read YAML strictly: plain data only, no duplicate keys, no aliases, bounded."""

from __future__ import annotations

from typing import Any

import yaml

MAX_DOCUMENTS = 64


class YAMLDocumentError(ValueError):
    """A document is not acceptable YAML; the message has its line."""


class _StrictLoader(yaml.SafeLoader):
    """SafeLoader that refuses what hides mistakes (a key given twice) or grows without bound."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            mark = self.get_event().start_mark  # type: ignore[no-untyped-call]
            raise _error("an alias (*name) is not supported; write the value out", mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag != "tag:yaml.org,2002:str":
                raise _error("a key must be a string; quote it", key.start_mark)
            if key.value in seen:
                raise _error(f"key {key.value!r} is given twice; remove one", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def read_documents(text: str) -> list[Any]:
    """The documents in `text`, empty ones as None. Raises YAMLDocumentError."""
    documents: list[Any] = []
    try:
        loader = _StrictLoader(text)
        while loader.check_data():  # type: ignore[no-untyped-call]
            documents.append(loader.get_data())
            if len(documents) > MAX_DOCUMENTS:
                raise YAMLDocumentError(f"more than {MAX_DOCUMENTS} documents; split the file")
    except yaml.YAMLError as error:
        raise _from_yaml(error) from None
    except RecursionError:
        raise YAMLDocumentError("the YAML is nested too deeply") from None
    except (ValueError, OverflowError) as error:  # a date or number YAML cannot build
        if isinstance(error, YAMLDocumentError):
            raise
        raise YAMLDocumentError(f"a value is not valid YAML: {error}") from None
    return documents


def _error(problem: str, mark: Any) -> YAMLDocumentError:
    return YAMLDocumentError(f"line {mark.line + 1}: {problem}")


def _from_yaml(error: yaml.YAMLError) -> YAMLDocumentError:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    if mark is None:
        return YAMLDocumentError(f"not valid YAML: {problem}")
    return _error(f"not valid YAML: {problem}", mark)
