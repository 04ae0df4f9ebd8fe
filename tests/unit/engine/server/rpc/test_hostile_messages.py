"""Whatever a message holds, its call ends with a status and a sentence, and the next is served."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import FieldDescriptor
from grpc_health.v1 import health_pb2
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kvasir.wire.proto.engine.v1 import engine_pb2 as pb
from kvasir_engine.server.rpc.small_messages import MAX_SMALL_BYTES

ENGINE, HEALTH = "/kvasir.engine.v1.Engine/", "/grpc.health.v1.Health/"
GOOD: dict[str, Any] = {
    ENGINE + "Generate": pb.GenerateRequest(text="hello", sampling=pb.SamplingParams(n=1)),
    ENGINE + "Abort": pb.AbortRequest(request_id="r"),
    ENGINE + "WatchLoad": pb.WatchLoadRequest(),
    ENGINE + "WatchPrompts": pb.WatchPromptsRequest(),
    HEALTH + "Check": health_pb2.HealthCheckRequest(service=""),
    HEALTH + "Watch": health_pb2.HealthCheckRequest(service=""),
}
UNARY = (ENGINE + "Abort", HEALTH + "Check")
REFUSALS = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
)
uint32s = st.one_of(st.integers(0, 2**32 - 1), st.sampled_from([0, 1, 2, 300, 2**31]))
int64s = st.integers(-(2**63), 2**63 - 1)
doubles = st.floats()
texts = st.text(max_size=6)
lists = st.lists(uint32s, max_size=4)
_VALUES: dict[int, st.SearchStrategy[Any]] = {
    FieldDescriptor.TYPE_UINT32: uint32s,
    FieldDescriptor.TYPE_INT32: st.integers(-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_INT64: int64s,
    FieldDescriptor.TYPE_DOUBLE: doubles,
    FieldDescriptor.TYPE_STRING: texts,
    FieldDescriptor.TYPE_BOOL: st.booleans(),
}


def fields(message: Any) -> dict[str, st.SearchStrategy[Any]]:
    """Return a strategy for each of a message's scalar and repeated fields."""
    return {
        field.name: st.lists(_VALUES[field.type], max_size=4)
        if field.is_repeated
        else _VALUES[field.type]
        for field in message.DESCRIPTOR.fields
        if field.type in _VALUES
    }


@st.composite
def generate_requests(draw: st.DrawFn) -> bytes:
    """A Generate call's message whose fields have any value of their type."""

    def some(kind: Any) -> dict[str, Any]:
        given = {name: st.none() | values for name, values in fields(kind).items()}
        return {k: v for k, v in draw(st.fixed_dictionaries(given)).items() if v is not None}

    made = some(pb.GenerateRequest)
    if draw(st.booleans()):
        made.pop("text", None)
        made["token_ids"] = pb.TokenIds(ids=draw(lists))
    sampling = some(pb.SamplingParams)
    sampling["logit_bias"] = draw(st.dictionaries(uint32s, doubles, max_size=2))
    if draw(st.booleans()):
        sampling["allowed_token_ids"] = pb.TokenIds(ids=draw(lists))
    resume = pb.Resume(**some(pb.Resume)) if draw(st.booleans()) else None
    sampling = {name: value for name, value in sampling.items() if draw(st.integers(0, 3)) == 0}
    message = pb.GenerateRequest(sampling=pb.SamplingParams(**sampling), resume=resume, **made)
    return bytes(message.SerializeToString())


@st.composite
def mutated(draw: st.DrawFn) -> tuple[str, bytes]:
    """A method and a message for it: of any fields, changed in some bytes, or too long."""
    method = draw(st.sampled_from(sorted(GOOD)))
    raw = GOOD[method].SerializeToString()
    if method.endswith("Generate") and draw(st.booleans()):
        raw = draw(generate_requests())
    if draw(st.booleans()):
        at = draw(st.integers(0, len(raw)))
        raw = raw[:at] + draw(st.binary(max_size=8)) + raw[at + draw(st.integers(0, 3)) :]
    if draw(st.integers(0, 9)) == 0:
        raw += b"\xf8\x07\x01" * MAX_SMALL_BYTES
    return method, raw


async def call(rig: Any, method: str, raw: bytes) -> tuple[grpc.StatusCode, str]:
    """Return the status and the sentence that a call ends with; an endless stream is cancelled."""
    make = rig.channel.unary_unary if method in UNARY else rig.channel.unary_stream
    made = make(method)(raw)
    async with asyncio.timeout(20):
        if method.endswith("Generate"):
            while await _read(made) is not None:
                pass
        elif method not in UNARY:
            await made.initial_metadata()
            made.cancel()
        return await made.code(), await made.details()


async def _read(stream: Any) -> bytes | None:
    try:
        answer = await stream.read()
    except grpc.aio.AioRpcError:
        return None
    return None if answer is grpc.aio.EOF else answer


async def answer_all(core: Any) -> None:
    """End every sample that is submitted."""
    while True:
        stream = await core.submitted.get()
        for sample in range(stream.request.params.n):
            stream.send(40, sample=sample, finish_reason="stop")


@pytest.fixture
async def rig(start_rig: Any) -> Any:
    made = await start_rig()
    answering = asyncio.create_task(answer_all(made.core))
    yield made
    answering.cancel()


@pytest.mark.slow
@pytest.mark.timeout(900)  # of a deep search
@settings(
    max_examples=settings.default.max_examples,
    suppress_health_check=list(HealthCheck),  # the server is the same for every example
)
@given(mutated())
@example((ENGINE + "Abort", b"\x0a\x01\xff"))
@example((ENGINE + "WatchLoad", b"\xf8\x07\x01" * MAX_SMALL_BYTES))
@example((HEALTH + "Check", b"\x0a\xff"))
@example((ENGINE + "Generate", pb.GenerateRequest(text="x" * 2**17).SerializeToString()))
async def test_no_message_is_answered_with_a_server_error(
    rig: Any, drawn: tuple[str, bytes]
) -> None:
    method, raw = drawn
    code, details = await call(rig, method, raw)
    if code not in (grpc.StatusCode.OK, grpc.StatusCode.CANCELLED):
        # What is in a large message is read by a worker, which this rig has none of.
        assert code in REFUSALS or "could not read the body" in details, (code, details)
        if (
            code is not grpc.StatusCode.NOT_FOUND
        ):  # of the health service, whose names are no fields
            assert details.endswith("."), details
    assert (await call(rig, ENGINE + "Generate", GOOD[ENGINE + "Generate"].SerializeToString()))[
        0
    ] is grpc.StatusCode.OK


async def test_a_small_method_refuses_a_large_message(rig: Any) -> None:
    code, details = await call(rig, ENGINE + "Abort", b"\xf8\x07\x01" * MAX_SMALL_BYTES)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert f"at most {MAX_SMALL_BYTES} bytes" in details
