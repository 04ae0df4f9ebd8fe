"""Strict models, of which the resource is made: cross-field rules are written twice, as a Python
validator for files and as a CEL rule for API servers, side by side."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict
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
