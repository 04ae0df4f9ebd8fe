"""One stream of a gateway: the parts of an HTTP request and of its answer, and the replies.

The order of what is told is the protocol's: for the request, and then for its answer, header, body,
trailers. In the mode FULL_DUPLEX_STREAMED nothing is told before the whole body is here, and each
part of a body is given back. In the mode BUFFERED each message gets one, the body's with the
destination, and a body that was not changed is left where it is.
"""

from collections.abc import Callable, Mapping, Sequence
from math import ceil

from google.protobuf.duration_pb2 import Duration
from google.protobuf.struct_pb2 import Struct

from kvasir.wire.proto.ext_proc.v3 import external_processor_pb2 as pb
from kvasir_router.discovery.specs import EngineKind
from kvasir_router.fleet.replica import Replica
from kvasir_router.options.picker_settings import PickerSettings
from kvasir_router.picker.answer_usage import AnswerUsage
from kvasir_router.picker.gateway_address import source_of
from kvasir_router.picker.picker_client import PickerClient
from kvasir_router.picker.picker_output import PickerOutput
from kvasir_router.picker.pool import Pool, endpoint_of_replica, endpoints_in
from kvasir_router.picker.replies import NAMESPACE, body_parts, destination, immediate
from kvasir_router.proxy.attempts.model_field import named_for
from kvasir_router.proxy.gateway import Gateway
from kvasir_router.wire import responses
from kvasir_router.wire.http_request import Request
from kvasir_router.wire.query import Query
from kvasir_router.wire.usage import ask_for_usage

SUBSET_NAMESPACE = "envoy.lb.subset_hint"
SUBSET = "x-gateway-destination-endpoint-subset"

SERVED = "x-gateway-destination-endpoint-served"
"""Key of metadata, in the namespace of destinations."""
_SLACK_SECONDS, _MAX_TIMEOUT_SECONDS = 1.0, 3600.0
"""Time for an answer behind the wait's end; the most that Envoy may be set up to take."""

_MODES = (pb.BUFFERED, pb.FULL_DUPLEX_STREAMED)


class ProcessingError(Exception):
    """Messages that make no sense; one sentence on why."""


class Processing(PickerOutput):
    """From `take` of the first message to `left`. What is told goes to `tell`, None at the end."""

    def __init__(
        self,
        gateway: Gateway,
        settings: PickerSettings,
        pool: Pool,
        tell: Callable[[pb.ProcessingResponse | None], None],
        gateway_address: str = "",
    ) -> None:
        self._client = PickerClient(gateway, pool, self, gateway_address)
        self._tell = tell
        full_duplex = settings.body_mode == "full_duplex"
        self._gives_back_request = full_duplex
        self._gives_back_answer = full_duplex
        self._came: list[str] = []
        """Names of the request's headers."""
        self._sent_size = 0
        """Bytes of its body, as it came."""
        self._whole = False
        """True when its body is here."""
        self._has_trailers = False
        """True if trailers of it wait for their turn."""
        self._started = self._is_over = False
        self._asked_for_time = False
        self._asks_for_usage = False
        """True if the router asked for usage that the client did not ask for."""
        self._usage: AnswerUsage | None = None
        self._client.opened()

    def take(self, message: pb.ProcessingRequest) -> None:
        """Take the next message. Raises ProcessingError."""
        if message.observability_mode:
            raise ProcessingError(
                "a picker cannot only observe: set the filter's observability_mode to false"
            )
        kind = message.WhichOneof("request")
        if self._is_over:
            return
        if kind == "request_headers":
            self._take_head(message)
        elif not self._started:
            raise ProcessingError(
                "the request's header has not come: set request_header_mode to SEND"
            )
        elif kind == "request_body":
            self._take_body(message.request_body)
        elif kind == "request_trailers":
            self._take_trailers()
        elif kind == "response_headers":
            self._take_answer_head(message)
        elif kind == "response_body":
            self._take_answer_body(message.response_body)
        elif kind == "response_trailers":
            self._take_answer_trailers()

    def left(self) -> None:
        """The stream is at its end, or broken; called once, whatever came before."""
        self._is_over = True
        self._client.left()

    # PickerOutput

    def told_wait(self, seconds: float) -> None:
        """PickerOutput.told_wait. In the mode FULL_DUPLEX_STREAMED Envoy sets no timer; in BUFFERED
        it can be told once of a longer one."""
        if not (self._gives_back_request or self._asked_for_time):
            self._asked_for_time = True
            longer = Duration(seconds=ceil(min(seconds + _SLACK_SECONDS, _MAX_TIMEOUT_SECONDS)))
            self._tell(pb.ProcessingResponse(override_message_timeout=longer))

    def told_endpoints(self, replicas: Sequence[Replica], query: Query, model: str) -> None:
        """PickerOutput.told_endpoints."""
        request, endpoint = query.request, ",".join(map(endpoint_of_replica, replicas))
        body = self._body_for(replicas[0].spec.engine, query, model)
        mutation, metadata = destination(endpoint, request, self._came, len(body))
        common = pb.CommonResponse(header_mutation=mutation, clear_route_cache=True)
        reply = pb.ProcessingResponse(dynamic_metadata=_struct(metadata))
        if self._gives_back_request:
            reply.request_headers.response.CopyFrom(common)
            self._tell(reply)
            for part in body_parts(body, last=not self._has_trailers):
                self._tell(pb.ProcessingResponse(request_body=part))
        else:
            common.body_mutation.body = body
            reply.request_body.response.CopyFrom(common)
            self._tell(reply)
        if self._has_trailers:
            self._tell(pb.ProcessingResponse(request_trailers=pb.TrailersResponse()))

    def told_answer(self, answer: responses.Answer, request: Request | None) -> None:
        """PickerOutput.told_answer."""
        self._is_over = True
        self._tell(immediate(answer, request))
        self._tell(None)

    def told_end(self) -> None:
        """PickerOutput.told_end."""
        if not self._is_over:
            self._is_over = True
            self._tell(None)

    # The request

    def _body_for(self, engine: EngineKind, query: Query, model: str) -> bytes:
        """Return the body as the engine takes it, which asks for a stream's usage too where the
        extra event of that can be taken out of the answer."""
        body, outline = named_for(engine, query, query.request.body, model)
        if not (self._gives_back_answer and query.streams):
            return body
        if query.request.endpoint.usage != "completion":
            return body
        asking = ask_for_usage(body, query.envelope.stream_options, outline)
        self._asks_for_usage = asking is not None
        return body if asking is None else asking

    def _take_head(self, message: pb.ProcessingRequest) -> None:
        if self._started:
            raise ProcessingError("a second request's header came in one stream")
        self._started = True
        head = message.request_headers
        if message.HasField("protocol_config"):
            self._take_modes(message.protocol_config, has_body=not head.end_of_stream)
        self._client.offers(_subset(message.metadata_context))
        headers = [_header(each) for each in head.headers.headers]
        self._came = [name.decode("latin-1").lower() for name, _ in headers]
        self._whole = head.end_of_stream
        self._client.head(headers, last=head.end_of_stream, source=source_of(message))
        if not (self._is_over or self._gives_back_request):
            self._tell(pb.ProcessingResponse(request_headers=pb.HeadersResponse()))

    def _take_modes(self, config: pb.ProtocolConfiguration, *, has_body: bool) -> None:
        mode = config.request_body_mode
        if has_body and mode not in _MODES:
            raise ProcessingError(
                f"request_body_mode is {pb.BodySendMode.Name(mode)}: a picker has to see the whole "
                "body before the request goes on; use FULL_DUPLEX_STREAMED or BUFFERED"
            )
        self._gives_back_request = mode == pb.FULL_DUPLEX_STREAMED
        self._gives_back_answer = config.response_body_mode == pb.FULL_DUPLEX_STREAMED

    def _take_body(self, part: pb.HttpBody) -> None:
        if self._whole:
            raise ProcessingError("a part of the request's body came after its end")
        # A buffered body is one message, whether trailers follow or not
        self._whole = part.end_of_stream or not self._gives_back_request
        self._client.body(part.body, last=self._whole)

    def _take_trailers(self) -> None:
        if self._whole:
            self._tell(pb.ProcessingResponse(request_trailers=pb.TrailersResponse()))
            return
        self._whole = self._has_trailers = True
        self._client.body(b"", last=True)

    # Its answer

    def _take_answer_head(self, message: pb.ProcessingRequest) -> None:
        head = message.response_headers
        found = dict(map(_header, head.headers.headers))
        status = found.get(b":status", b"")
        served = _served(message.metadata_context)
        self._client.answer_began(int(status) if status.isdigit() else 0, served)
        events = found.get(b"content-type", b"").startswith(b"text/event-stream")
        self._usage = AnswerUsage(events=events, strip=self._asks_for_usage)
        if head.end_of_stream:
            self._end_answer()
        self._tell(pb.ProcessingResponse(response_headers=pb.HeadersResponse()))

    def _take_answer_body(self, part: pb.HttpBody) -> None:
        if self._usage is None:
            raise ProcessingError(
                "the answer's header has not come: set response_header_mode to SEND"
            )
        body = self._usage.take(part.body, part.end_of_stream)
        if part.end_of_stream:
            self._end_answer()
        if not self._gives_back_answer:
            self._tell(pb.ProcessingResponse(response_body=pb.BodyResponse()))
            return
        if not (body or part.end_of_stream):
            return
        for reply in body_parts(body, last=part.end_of_stream):
            self._tell(pb.ProcessingResponse(response_body=reply))

    def _take_answer_trailers(self) -> None:
        rest = self._usage.take(b"", True) if self._usage is not None else b""
        self._end_answer()
        if rest:
            for reply in body_parts(rest, last=False):
                self._tell(pb.ProcessingResponse(response_body=reply))
        self._tell(pb.ProcessingResponse(response_trailers=pb.TrailersResponse()))

    def _end_answer(self) -> None:
        usage = self._usage
        if usage is not None:
            self._client.answer_is_over(usage.found, usage.size)


def _header(each: pb.HeaderValue) -> tuple[bytes, bytes]:
    return each.key.encode("latin-1", "replace"), each.raw_value or each.value.encode()


def _subset(metadata: pb.Metadata) -> frozenset[str] | None:
    """Return the endpoints that the gateway offers: a list, or one text with commas."""
    if SUBSET_NAMESPACE not in metadata.filter_metadata:
        return None
    fields = metadata.filter_metadata[SUBSET_NAMESPACE].fields
    if SUBSET not in fields:
        return None
    value = fields[SUBSET]
    if value.WhichOneof("kind") == "list_value":
        return endpoints_in(each.string_value for each in value.list_value.values)
    return endpoints_in((value.string_value,))


def _served(metadata: pb.Metadata) -> str:
    """Return the endpoint that the gateway says has answered; empty if it says none."""
    if NAMESPACE not in metadata.filter_metadata:
        return ""
    fields = metadata.filter_metadata[NAMESPACE].fields
    return fields[SERVED].string_value if SERVED in fields else ""


def _struct(content: Mapping[str, Mapping[str, str]]) -> Struct:
    made = Struct()
    made.update({name: dict(inner) for name, inner in content.items()})
    return made
