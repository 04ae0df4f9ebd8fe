"""instructor: its answers are structured outputs, streamed ones, too."""

from __future__ import annotations

import instructor
import openai
import pytest
from instructor.core import InstructorRetryException
from questions import (
    ANNA,
    EXTRACT,
    MODEL,
    UNKNOWN,
    V1,
    Person,
    user,
)


def connect(mode: instructor.Mode = instructor.Mode.JSON_SCHEMA) -> instructor.Instructor:
    client = openai.OpenAI(base_url=V1, api_key="none", max_retries=0)
    return instructor.from_openai(client, mode=mode)


def test_structured_output(run_example) -> None:
    assert run_example("instructor") == "Anna is 31"


def test_structured_output_as_a_call() -> None:
    # Its arguments are what is asked for; what is in them this model does not know.
    found = connect(instructor.Mode.TOOLS).create(
        model=MODEL, response_model=Person, messages=user(EXTRACT), max_retries=0
    )
    assert isinstance(found, Person)


def test_stream() -> None:
    found = list(
        connect().create_partial(model=MODEL, response_model=Person, messages=user(EXTRACT))
    )
    assert len(found) > 3
    assert found[-1].model_dump() == ANNA.model_dump()


def test_responses() -> None:
    found = connect(instructor.Mode.RESPONSES_TOOLS).create(
        model=MODEL, response_model=Person, messages=user(EXTRACT), max_retries=0
    )
    assert isinstance(found, Person)


def test_errors() -> None:
    with pytest.raises(InstructorRetryException, match=UNKNOWN):
        connect().create(model="nope", response_model=Person, messages=user(EXTRACT), max_retries=0)
