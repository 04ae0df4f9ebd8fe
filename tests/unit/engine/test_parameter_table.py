"""HTTP bodies, the gRPC message, OpenAPI and the docs page say what the table says."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import get_type_hints

import pytest

from kvasir.wire.proto.engine.v1 import engine_pb2 as pb
from kvasir_engine.parameter import Parameter
from kvasir_engine.sampling_params import PARAMETERS, SamplingParams
from kvasir_engine.server.openai.schema import ChatBody, CompletionBody

ROOT = Path(__file__).parents[3]
TYPES = {each.name: str(each.type) for each in fields(SamplingParams)}
PUBLIC = [name for name, each in PARAMETERS.items() if not (each.internal or each.offline)]
GRPC_TYPES = {
    "float": {"double"},
    "bool": {"bool"},
    "int": {"uint32", "int32", "int64"},
    "str": {"string"},
    "list[str]": {"repeated string"},
    "list[int]": {"repeated uint32", "TokenIds"},
    "dict[int, float]": {"map<uint32, double>"},
}


def grpc_type(field) -> str:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, value = field.message_type.fields
        return f"map<{grpc_type(key)}, {grpc_type(value)}>"
    if field.message_type is not None:
        return field.message_type.name
    names = {1: "double", 3: "int64", 5: "int32", 8: "bool", 9: "string", 13: "uint32"}
    return ("repeated " if field.is_repeated else "") + names[field.type]


def test_the_grpc_message_is_the_table_in_its_order() -> None:
    message = pb.SamplingParams.DESCRIPTOR
    assert {field.name: field.number for field in message.fields} == {
        name: number for number, name in enumerate(PUBLIC, 1)
    }
    for field in message.fields:
        kind = TYPES[field.name].removesuffix(" | None")
        assert grpc_type(field) in GRPC_TYPES[kind], field.name
        if grpc_type(field) == "uint32":
            assert PARAMETERS[field.name].low >= 0 or field.name.endswith("logprobs")


@pytest.mark.parametrize("body", [CompletionBody, ChatBody])
def test_http_bodies_have_the_table_with_its_types(body) -> None:
    hints = {name: str(kind).replace("<class '", "") for name, kind in get_type_hints(body).items()}
    assert set(PUBLIC) - set(body.__struct_fields__) == {"detokenize"}
    for name in set(PUBLIC) & set(body.__struct_fields__) - {"stop", "structured_outputs"}:
        if not (body is ChatBody and name == "logprobs"):
            assert hints[name] == f"{TYPES[name].removesuffix(' | None')} | None", name
    assert hints["stop"] == "str | list[str] | None"
    assert hints["structured_outputs"] == "typing.Any", "an object, checked by its parser"


def test_a_schema_has_the_range() -> None:
    assert PARAMETERS["top_p"].schema["exclusiveMinimum"] == 0
    assert PARAMETERS["top_p"].schema["maximum"] == 1
    assert PARAMETERS["stop"].schema["maxItems"] == 64
    assert Parameter("Means.").schema == {"description": "Means."}


def test_the_docs_pages_are_made_of_the_tables() -> None:
    command = [sys.executable, "scripts/parameter_docs.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
