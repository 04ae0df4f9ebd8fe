"""Replies to gateways, as messages of Envoy's external processing protocol.

A destination is said twice, as a request header and as dynamic metadata: so the endpoint picker
protocol asks for it (version 1.0, proposal 004 of
https://github.com/kubernetes-sigs/gateway-api-inference-extension).
"""

from collections.abc import Iterable, Iterator

from kvasir.wire.proto.ext_proc.v3 import external_processor_pb2 as pb
from kvasir_router.wire import responses
from kvasir_router.wire.http_request import Request

DESTINATION = "x-gateway-destination-endpoint"
"""Header and key of metadata: IP:PORT, or several with commas between them, the best first."""
NAMESPACE = "envoy.lb"
"""Namespace of that key."""

CHUNK_BYTES = 62_000
"""Maximum of one part of a body that is given back: some gateways take no more than 64 KiB."""


def destination(
    endpoint: str, request: Request, came: Iterable[str], size: int
) -> tuple[pb.HeaderMutation, dict[str, dict[str, str]]]:
    """Return how the header changes, and the metadata. `came`: names of the headers that came, in
    lower case; `size`: bytes of the body that is sent on."""
    kept = {line.split(b":", 1)[0].lower().decode("latin-1") for line in request.lines}
    mutation = pb.HeaderMutation(
        set_headers=[
            _header(DESTINATION, endpoint.encode()),
            _header("content-length", b"%d" % size),
            _header("x-request-id", request.request_id),
        ],
        # The client's key is for this router, and nobody but routers says what engines believe
        remove_headers=sorted(
            name
            for name in set(came) - kept
            if name in ("authorization", "x-api-key") or name.startswith("x-kvasir-")
        ),
    )
    return mutation, {NAMESPACE: {DESTINATION: endpoint}}


def body_parts(body: bytes, *, last: bool) -> Iterator[pb.BodyResponse]:
    """Yield a body, or a part of one, in the parts in which it is sent on; `last`: with its end."""
    for at in range(0, max(len(body), 1), CHUNK_BYTES):
        part = body[at : at + CHUNK_BYTES]
        ends = last and at + CHUNK_BYTES >= len(body)
        streamed = pb.StreamedBodyResponse(body=part, end_of_stream=ends)
        yield pb.BodyResponse(
            response=pb.CommonResponse(body_mutation=pb.BodyMutation(streamed_response=streamed))
        )


def immediate(answer: responses.Answer, request: Request | None) -> pb.ProcessingResponse:
    """Return an answer that the gateway gives the client itself."""
    lines = answer.lines + (request.answer_lines if request is not None else b"")
    headers = [_header("content-type", answer.content_type)]
    for line in lines.splitlines():
        name, _, value = line.partition(b":")
        headers.append(_header(name.decode("latin-1").lower(), value.strip()))
    if request is not None:
        headers.append(_header("x-request-id", request.request_id))
    head_only = request is not None and request.method == b"HEAD"
    return pb.ProcessingResponse(
        immediate_response=pb.ImmediateResponse(
            status=pb.HttpStatus(code=answer.status),
            headers=pb.HeaderMutation(set_headers=headers),
            body=b"" if head_only else answer.body,
            details="kvasir_router",
        )
    )


def _header(name: str, value: bytes) -> pb.HeaderValueOption:
    return pb.HeaderValueOption(
        header=pb.HeaderValue(key=name, raw_value=value),
        append_action=pb.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD,
    )
