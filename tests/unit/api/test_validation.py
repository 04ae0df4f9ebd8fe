"""Findings as sentences: the field, what it must be, what it is."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from kvasir.validation import sentences


class StrictModel(BaseModel):
    model_config = ConfigDict(extra="forbid")

    port: int = Field(default=1, ge=1, alias="Port")
    names: tuple[str, ...] = ()

    @field_validator("names")
    @classmethod
    def _short(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if any(len(name) > 3 for name in value):
            raise ValueError("a name has at most 3 letters")
        return value


class Whole(BaseModel):
    model_config = ConfigDict(extra="forbid")

    parts: list[StrictModel]


def found(content: Any, *, quote: bool = True) -> list[str]:
    with pytest.raises(ValidationError) as refusal:
        Whole.model_validate(content)
    return list(sentences(refusal.value, Whole, whole="the file", quote=quote))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({}, "parts is missing"),
        (7, "the file must be a mapping, not 7"),
        ({"parts": "x"}, "parts must be a list, not 'x'"),
        ({"parts": [5]}, "parts[0] must be a mapping, not 5"),
        ({"parts": [{"Port": 0}]}, "parts[0].Port must be greater than or equal to 1, not 0"),
        ({"parts": [{"Port": "x"}]}, "parts[0].Port must be a valid integer, not 'x'"),
        ({"parts": [{"names": 1}]}, "parts[0].names must be a list, not 1"),
        ({"parts": [{"names": ["long"]}]}, "parts[0].names: a name has at most 3 letters"),
        ({"parts": [{"Prt": 1}]}, "parts[0].Prt is not a known field; did you mean Port?"),
        ({"parts": [{"x": 1}]}, "parts[0].x is not a known field; known are Port, names"),
        ({"parts": "x" * 999}, f"parts must be a list, not '{'x' * 79}..."),
    ],
)
def test_each_finding_is_one_sentence(content: Any, sentence: str) -> None:
    assert found(content) == [sentence]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"parts": "secret"}, "parts must be a list"),
        ({"parts": [{"Port": "secret"}]}, "parts[0].Port must be a valid integer"),
        ({"parts": [{"Port": 0}]}, "parts[0].Port must be greater than or equal to 1, not 0"),
        ({"parts": [{"names": [123]}]}, "parts[0].names[0] must be a valid string"),
    ],
)
def test_what_may_be_secret_is_not_repeated(content: Any, sentence: str) -> None:
    assert found(content, quote=False) == [sentence]


def test_every_field_is_told_of() -> None:
    assert len(found({"parts": [{"Port": 0, "names": 1, "x": 2}], "y": 3})) == 4
