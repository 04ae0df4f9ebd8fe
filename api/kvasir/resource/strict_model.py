"""Strict models, of which the resource is made: cross-field rules are written twice, as a Python
validator for files and as a CEL rule for API servers, side by side."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

RULES = "x-kubernetes-validations"


class StrictModel(BaseModel):
    """A part of the resource: camelCase fields, nothing unknown, no silent conversion."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        extra="forbid",
        frozen=True,
        strict=True,
        use_attribute_docstrings=True,
    )


def rule(expression: str, message: str, *, message_expression: str | None = None) -> dict[str, str]:
    """A CEL rule as an API server takes it; `message` is used where the expression fails."""
    one = {"rule": expression, "message": message}
    return one if message_expression is None else {**one, "messageExpression": message_expression}


def rules(*those: dict[str, str]) -> ConfigDict:
    """The `model_config` of a part with CEL rules."""
    extra: dict[str, Any] = {RULES: list(those)}
    return ConfigDict(json_schema_extra=extra)


def list_map(key: str) -> dict[str, Any]:
    """The `json_schema_extra` of a list of which several may apply a part each: items are told
    apart by their `key`, which no two may share.
    https://kubernetes.io/docs/reference/using-api/server-side-apply/#merge-strategy"""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}


class ExactlyOne:
    """Rule that exactly one of some optional fields is given, for files and for API servers."""

    def __init__(self, owner: str, what: str, *fields: str) -> None:
        """`owner`: the field whose part they are, which names one `what`; `fields` as in YAML."""
        self._fields = fields
        choice = f"either {' or '.join(fields)}"
        if len(fields) > 2:
            choice = f"exactly one of {', '.join(fields)}"
        self.message = f"{owner} names one {what}: give {choice}"

    @property
    def rule(self) -> dict[str, str]:
        """The CEL rule."""
        given = [f"has(self.{field})" for field in self._fields]
        if len(given) == 2:
            return rule(" != ".join(given), self.message)
        return rule(f"[{', '.join(given)}].filter(it, it).size() == 1", self.message)

    def check(self, part: StrictModel) -> None:
        """Raises ValueError if the part has none of the fields, or several."""
        names = [name for name in type(part).model_fields if to_camel(name) in self._fields]
        if sum(getattr(part, name) is not None for name in names) != 1:
            raise ValueError(self.message)


_Model = TypeVar("_Model", bound=BaseModel)


def read_known(model: type[_Model], content: Mapping[str, Any]) -> tuple[_Model, tuple[str, ...]]:
    """Return the model of `content` without the fields that it does not know, and their paths.
    Raises pydantic.ValidationError for content that is wrong in any other way."""
    unknown: list[str] = []
    while True:
        try:
            return model.model_validate(content), tuple(sorted(unknown))
        except ValidationError as error:
            places = [it["loc"] for it in error.errors() if it["type"] == "extra_forbidden"]
            if not places:
                raise
            content = copy.deepcopy(dict(content))
            for place in places:
                _remove(content, place)
            unknown += map(_path, places)


def _remove(content: Any, place: Sequence[str | int]) -> None:
    for step in place[:-1]:
        content = content[step]
    del content[place[-1]]


def _path(place: Sequence[str | int]) -> str:
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in place)
    return "".join(steps).removeprefix(".")
