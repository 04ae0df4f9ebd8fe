"""The messages are Envoy's, as far as they go: names, numbers and kinds of fields."""

import re
from pathlib import Path

import pytest
from google.protobuf.descriptor import FieldDescriptor

from harness.errors import HarnessError
from harness.go_modules import ENVOY_API, module_directory
from kvasir.wire.proto.ext_proc.v3 import external_processor_pb2 as pb
from kvasir_router.picker.replies import CHUNK_BYTES, body_parts

SOURCES = {
    "service/ext_proc/v3/external_processor.pb.go": (
        *("ProtocolConfiguration", "ProcessingRequest", "ProcessingResponse", "HttpHeaders"),
        *("HttpBody", "HttpTrailers", "HeadersResponse", "BodyResponse", "TrailersResponse"),
        *("CommonResponse", "ImmediateResponse", "HeaderMutation", "StreamedBodyResponse"),
        "BodyMutation",
    ),
    "config/core/v3/base.pb.go": ("HeaderValue", "HeaderMap", "HeaderValueOption", "Metadata"),
    "type/v3/http_status.pb.go": ("HttpStatus",),
}
_FIELD = re.compile(r'protobuf:"(\w+),(\d+),\w+,name=(\w+)')
_VARINTS = (FieldDescriptor.TYPE_BOOL, FieldDescriptor.TYPE_INT32, FieldDescriptor.TYPE_ENUM)


@pytest.fixture(scope="module")
def envoy() -> Path:
    try:
        return module_directory(*ENVOY_API)
    except HarnessError as error:
        pytest.fail(str(error), pytrace=False)


def fields(source: str, message: str) -> set[tuple[str, int, str]]:
    """Name, number and wire type of a message's fields in Go's stubs, those of its oneofs too."""
    found = set()
    for body in re.findall(rf"^type {message}(?:_\w+)? struct {{$(.*?)^}}", source, re.M | re.S):
        for kind, number, name in _FIELD.findall(body):
            found.add((name, int(number), kind))
    return found


@pytest.mark.parametrize(
    ("file", "message"), [(file, name) for file, names in SOURCES.items() for name in names]
)
def test_messages_are_a_part_of_envoys(envoy, file, message) -> None:
    theirs = fields((envoy / file).read_text(), message)
    ours = {
        (each.name, each.number, "varint" if each.type in _VARINTS else "bytes")
        for each in pb.DESCRIPTOR.message_types_by_name[message].fields
    }
    assert ours
    assert ours <= theirs


def test_every_message_is_compared() -> None:
    compared = {name for names in SOURCES.values() for name in names}
    assert compared == set(pb.DESCRIPTOR.message_types_by_name)


def test_enums_are_envoys(envoy) -> None:
    modes = (envoy / "extensions/filters/http/ext_proc/v3/processing_mode.pb.go").read_text()
    for name, number in pb.BodySendMode.items():
        assert re.search(rf"ProcessingMode_{name} +ProcessingMode_BodySendMode = {number}\n", modes)
    actions = (envoy / "config/core/v3/base.pb.go").read_text()
    for name, number in pb.HeaderValueOption.HeaderAppendAction.items():
        declared = rf"HeaderValueOption_{name} +HeaderValueOption_HeaderAppendAction = {number}\n"
        assert re.search(declared, actions)


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES])
@pytest.mark.parametrize("last", [True, False])
def test_parts_of_a_body(size, last) -> None:
    body = b"x" * size
    parts = [each.response.body_mutation.streamed_response for each in body_parts(body, last=last)]
    assert b"".join(each.body for each in parts) == body
    assert [each.end_of_stream for each in parts] == [False] * (len(parts) - 1) + [last]
    assert all(len(each.body) <= CHUNK_BYTES for each in parts)
