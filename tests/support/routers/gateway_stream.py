"""A gateway's side of Envoy's external processing: what Envoy sends, message by message.

It stands in for an Envoy, of which no test can have one. Its messages are made of the same fields.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc
from google.protobuf.json_format import MessageToDict
from google.protobuf.struct_pb2 import Struct

from kvasir.wire.proto.ext_proc.v3 import external_processor_pb2 as pb

PROCESS = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"
DESTINATION = "x-gateway-destination-endpoint"
SUBSET = "x-gateway-destination-endpoint-subset"
CHAT = "/v1/chat/completions"
DUPLEX, BUFFERED = pb.FULL_DUPLEX_STREAMED, pb.BUFFERED


def chat(model: str = "m", **fields: Any) -> bytes:
    """The body of a chat request."""
    messages = [{"role": "user", "content": "hello"}]
    return json.dumps({"model": model, "messages": messages, **fields}).encode()


def header_map(headers: dict[str, str]) -> pb.HeaderMap:
    return pb.HeaderMap(
        headers=[
            pb.HeaderValue(key=key, raw_value=value.encode()) for key, value in headers.items()
        ]
    )


class GatewayStream:
    """One HTTP request of a gateway, as its filter tells of it."""

    def __init__(self, channel: Any, mode: int = DUPLEX) -> None:
        self.mode = mode
        self.call = channel.stream_stream(
            PROCESS,
            request_serializer=pb.ProcessingRequest.SerializeToString,
            response_deserializer=pb.ProcessingResponse.FromString,
        )()

    async def send(self, **parts: Any) -> None:
        await self.call.write(pb.ProcessingRequest(**parts))

    async def receive(self) -> pb.ProcessingResponse | None:
        """The next reply; None when the stream has ended well."""
        reply = await asyncio.wait_for(self.call.read(), 20)
        return None if reply is grpc.aio.EOF else reply

    async def head(
        self,
        headers: dict[str, str] | None = None,
        *,
        path: str = CHAT,
        method: str = "POST",
        last: bool = False,
        subset: Iterable[str] | None = None,
        source: str | None = None,
        config: bool = True,
    ) -> None:
        """Tell of the request's header; `config`: with the modes, as newer gateways do; `source`:
        the attribute `source.address`."""
        pseudo = {":method": method, ":path": path, ":authority": "models.example.com"}
        message = pb.ProcessingRequest(
            request_headers=pb.HttpHeaders(
                headers=header_map({**pseudo, **(headers or {})}), end_of_stream=last
            )
        )
        if config:
            message.protocol_config.request_body_mode = self.mode
            message.protocol_config.response_body_mode = self.mode
        if subset is not None:
            hint = message.metadata_context.filter_metadata["envoy.lb.subset_hint"]
            hint.update({SUBSET: list(subset)})
        if source is not None:
            message.attributes["envoy.filters.http.ext_proc"].update({"source.address": source})
        await self.call.write(message)

    async def body(self, data: bytes, *, last: bool = True) -> None:
        await self.send(request_body=pb.HttpBody(body=data, end_of_stream=last))

    async def ask(self, body: bytes | None = None, **head: Any) -> pb.ProcessingResponse | None:
        """Tell of a whole request; return the reply that says where it goes, or an answer."""
        await self.head(**head)
        if self.mode == BUFFERED:
            first = await self.receive()
            if first is None or first.WhichOneof("response") != "request_headers":
                return first
        await self.body(chat() if body is None else body)
        return await self.receive()

    async def given_back(self) -> bytes:
        """The request's body as it comes back in parts."""
        data = b""
        while (reply := await self.receive()) is not None:
            part = reply.request_body.response.body_mutation.streamed_response
            data += part.body
            if part.end_of_stream:
                break
        return data

    async def answer(
        self,
        status: int = 200,
        kind: str = "application/json",
        *,
        last: bool = False,
        served: str | None = None,
    ) -> Any:
        """Tell of an answer's header, and of the endpoint that has `served`; return the reply."""
        headers = header_map({":status": str(status), "content-type": kind})
        message = pb.ProcessingRequest(
            response_headers=pb.HttpHeaders(headers=headers, end_of_stream=last)
        )
        if served is not None:
            told = message.metadata_context.filter_metadata["envoy.lb"]
            told.update({f"{DESTINATION}-served": served})
        await self.call.write(message)
        return await self.receive()

    async def answer_body(self, data: bytes, *, last: bool = True) -> Any:
        await self.send(response_body=pb.HttpBody(body=data, end_of_stream=last))
        return await self.receive()

    async def end(self) -> None:
        """The gateway has no more to say."""
        with suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError):
            await self.call.done_writing()


@asynccontextmanager
async def gateway_channel(port: int, credentials: Any = None) -> AsyncIterator[Any]:
    address = f"127.0.0.1:{port}"
    options = (("grpc.use_local_subchannel_pool", 1),)
    if credentials is None:
        made = grpc.aio.insecure_channel(address, options=options)
    else:
        made = grpc.aio.secure_channel(address, credentials, options=options)
    async with made as channel:
        yield channel


def destination(reply: pb.ProcessingResponse) -> str:
    """The endpoint that a reply says, in both ways."""
    which = reply.WhichOneof("response")
    assert which in ("request_headers", "request_body"), which
    headers = changed_headers(reply)
    told: Struct = reply.dynamic_metadata
    assert MessageToDict(told) == {"envoy.lb": {DESTINATION: headers[DESTINATION]}}
    return headers[DESTINATION]


def changed_headers(reply: pb.ProcessingResponse) -> dict[str, str]:
    if reply.WhichOneof("response") == "immediate_response":
        mutation = reply.immediate_response.headers
    else:
        mutation = getattr(reply, reply.WhichOneof("response")).response.header_mutation
    overwrites = pb.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
    assert all(each.append_action == overwrites for each in mutation.set_headers)
    return {each.header.key: each.header.raw_value.decode() for each in mutation.set_headers}


def removed_headers(reply: pb.ProcessingResponse) -> list[str]:
    mutation = getattr(reply, reply.WhichOneof("response")).response.header_mutation
    return list(mutation.remove_headers)
