"""A YAML (or JSON) file that is checked as a whole when it is read."""

from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from kvasir.regular_files import read_regular_file
from kvasir.validation import sentences

Schema = TypeVar("Schema", bound=BaseModel)

MAX_DEPTH = 64
"""Levels of a file: libyaml's composer recurses in C, and the stack of a process ends it."""


_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class YamlFileError(Exception):
    """The file cannot be used; one sentence on what to correct."""


def read_yaml(
    path: Path,
    what: str,
    schema: type[Schema],
    max_bytes: int,
    *,
    quote: bool = False,
    context: object = None,
) -> Schema:
    """The file's content; `what` it is begins each message ("key file"). Raises YamlFileError,
    which quotes what is wrong only if told to: the file may hold secrets. `context` is for the
    schema's validators."""
    try:
        text = read_regular_file(path, max_bytes)
    except OSError as error:
        raise YamlFileError(f"cannot read {what} {path}: {error.strerror}") from None
    if len(text) > max_bytes:
        raise YamlFileError(f"{what} {path} is larger than {max_bytes} bytes")
    try:
        return _checked(text, f"{what} {path}", schema, quote, context)
    except (ValueError, RecursionError) as error:  # PyYAML's own, as of a date that is none
        where = f": {error}" if quote else " (a value that cannot be read, as a date that is none)"
        raise YamlFileError(f"{what} {path} is not YAML{where}") from None


def _is_deep(text: bytes) -> bool:
    """Return True if lists and mappings are nested more than MAX_DEPTH levels. The parser of events
    does not recurse. Raises yaml.YAMLError."""
    depth = 0
    for event in yaml.parse(text, Loader=_LOADER):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                return True
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
    return False


def _checked(text: bytes, file: str, schema: type[Schema], quote: bool, context: object) -> Schema:
    try:
        if _is_deep(text):
            raise YamlFileError(f"{file} is nested too deeply: more than {MAX_DEPTH} levels")
        content: Any = yaml.load(text, Loader=_LOADER)  # noqa: S506
        return schema.model_validate(content, context=context)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" (line {mark.line + 1})" if mark is not None else ""
        if quote:
            where = f": {' '.join(str(error).split())}"
        raise YamlFileError(f"{file} is not YAML{where}") from None
    except ValidationError as error:
        problem = next(sentences(error, schema, whole="the file", quote=quote))
        raise YamlFileError(f"{file}: {problem}") from None
