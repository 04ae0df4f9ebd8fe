"""Pydantic's findings as sentences for people: the field, what it must be, and what it is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, get_args

from pydantic import BaseModel, ValidationError

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_MAX_SHOWN = 80


def sentences(
    error: ValidationError, root: type[BaseModel], *, whole: str, quote: bool = True
) -> Iterator[str]:
    """Yield the errors of a `root`, a sentence for each field. `whole` is what it is called where
    no field is to blame. Without `quote` only what is a number, as its field wants, is repeated:
    the content may be secret."""
    for problem in error.errors(include_url=False):
        location, kind = problem["loc"], problem["type"]
        path = path_of(location) or whole
        if kind == "extra_forbidden":
            yield _unknown_field(root, location)
        elif kind == "missing":
            yield f"{path} is missing"
        elif kind == "value_error":
            yield f"{path}: {reason_of(problem)}" if location else reason_of(problem)
        else:
            value = problem["input"]
            is_shown = quote or (isinstance(value, int | float) and kind != "string_type")
            yield f"{path} {reason_of(problem)}" + (f", not {_show(value)}" if is_shown else "")


def reason_of(problem: ErrorDetails) -> str:
    """Return what a value must be, without the value: "must be a valid integer". Where a validator
    of our own found it, that one's sentence."""
    kind, message = problem["type"], problem["msg"]
    if kind == "value_error":
        return message.removeprefix("Value error, ")
    if kind in ("model_type", "dict_type"):
        return "must be a mapping"
    if kind in ("list_type", "tuple_type"):
        return "must be a list"
    return re.sub(r"^\w+ should ", "must ", message).partition(", unable to ")[0]


def path_of(location: tuple[int | str, ...]) -> str:
    """Return the path as a file's reader would write it: `models[0].name`."""
    path = ""
    for step in location:
        path += f"[{step}]" if isinstance(step, int) else f".{step}"
    return path.removeprefix(".")


def _unknown_field(root: type[BaseModel], location: tuple[int | str, ...]) -> str:
    name, known = str(location[-1]), _fields_at(root, location[:-1])
    close = get_close_matches(name, known, n=1)
    remedy = f"did you mean {close[0]}?" if close else f"known are {', '.join(known)}"
    return f"{path_of(location)} is not a known field; {remedy}"


def _fields_at(root: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    """The fields of the part at `location`, under the names a file uses."""
    part = root
    for step in location:
        for name, field in part.model_fields.items():
            if (field.alias or name) == step:
                part = next(t for t in (field.annotation, *_inner(field.annotation)) if _is_part(t))
                break
    return [field.alias or name for name, field in part.model_fields.items()]


def _inner(annotation: Any) -> Iterator[Any]:
    for argument in get_args(annotation):
        yield argument
        yield from _inner(argument)


def _is_part(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."
