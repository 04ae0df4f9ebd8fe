"""An event stream on its way to the client: whole events, remembered for as long as it runs."""

from typing import TYPE_CHECKING

from kvasir_router.proxy.client_response import ClientAnswer
from kvasir_router.proxy.failure import Failure, Kind, interrupted
from kvasir_router.proxy.transcript import NO_BUDGET, Transcript
from kvasir_router.wire.responses import Answer
from kvasir_router.wire.sse import EventCutter
from kvasir_router.wire.stream_end import ContractEnd, ForeignEnd, StreamEnd
from kvasir_router.wire.upstream import ResponseHead

if TYPE_CHECKING:
    from kvasir_router.proxy.attempt import UpstreamRequest
    from kvasir_router.proxy.relay import Relay

DONE = b"data: [DONE]\n\n"
_UNFINISHED = Failure("unfinished", Kind.CHARGED)


def waiting_head() -> ResponseHead:
    """Comment sent while a stream waits in the queue."""
    head = ResponseHead()
    head.status = 200
    head.content_type = b"text/event-stream"
    head.lines = [b"Content-Type: text/event-stream\r\n", b"Cache-Control: no-cache\r\n"]
    return head


class EventStream(ClientAnswer):
    """One to the client, though several replicas may have a part in it.

    Per part of the stream: a cut at the last whole event, one look for the end's mark, one append
    to the transcript, one write. Nothing is parsed before the end.
    """

    __slots__ = ("_cutter", "_end", "_mark", "transcript")

    def __init__(self, relay: "Relay", head: ResponseHead) -> None:
        super().__init__(relay, head)
        self.transcript: Transcript | None = Transcript(NO_BUDGET)
        """None once there was no room for it."""

    @property
    def blank(self) -> bool:
        """ClientAnswer.blank: no event of an engine's was passed on."""
        return self.transcript is not None and self.transcript.empty

    def read_from(self, attempt: "UpstreamRequest") -> None:
        """The events of the attempt's replica follow the whole events of the one before."""
        self._cutter = EventCutter()
        contract = attempt.contract
        self._end: StreamEnd = ContractEnd() if contract else ForeignEnd(attempt.asks_for_usage)
        self._mark = self._end.mark
        if self.blank:
            relay = self._relay
            one = relay.query.envelope.n in (None, 1)
            kept = contract and one and relay.request.endpoint.resumed
            self.transcript = Transcript(relay.gateway.transcripts if kept else NO_BUDGET)

    def take(self, data: bytes, last: bool) -> None:
        """Sink.take. Written out for the common part: of a stream this is all that costs."""
        data = self._cutter.whole(data, last)
        if last or self._head or not self._chunked or self._mark in data:
            self._take_slowly(data, last)
        elif data:
            transcript = self.transcript
            if transcript is not None and not transcript.add(data):
                self.transcript = None
            size = len(data)
            self._relay.sent_bytes += size
            self._client.write(b"%x\r\n%b\r\n" % (size, data))

    def finish(self) -> None:
        """Nothing is missing but the word that it is over."""
        said = self.transcript is not None and self.transcript.content().endswith(DONE)
        self._write(b"" if said else DONE, last=True)
        self._relay.answer_ended()

    def beat(self) -> None:
        """Let the client know that its request is still waiting for a replica."""
        self._write(b": waiting\n\n", last=False)

    def end(self, error: Answer) -> None:
        """ClientAnswer.end: with an event that OpenAI's clients raise as an APIError."""
        self._write(b"\n\ndata: %b\n\n" % error.body, last=True)
        self._client.finished(self._relay.request.keep_alive)

    def close(self) -> None:
        """ClientAnswer.close."""
        if self.transcript is not None:
            self.transcript.close()

    def _take_slowly(self, data: bytes, last: bool) -> None:
        """The first part, the last one, and any that tells of the end."""
        if self._mark in data:
            data = self._end.read(data)
            if self._end.interruption:
                self._pass(data)
                self._relay.answer_broken(interrupted(self._end.interruption))
                return
        if last:
            self._take_last(data)
        else:
            self._pass(data)

    def _take_last(self, data: bytes) -> None:
        # An engine with another fleet secret does not know the router and tells it nothing.
        told = self.transcript is not None and b": kvasir" in self.transcript.content() + data
        if (self._end.whole or not told) and not self._lacks_all(data):
            self._relay.usage = self._end.usage
            self._write(data, last=True)
            self._relay.answer_ended()
        else:
            self._pass(data)
            self._relay.answer_broken(_UNFINISHED)

    def _lacks_all(self, last: bytes) -> bool:
        """Return whether not one event has come where some are due."""
        relay = self._relay
        return (
            self.blank
            and not last
            and relay.status == 200
            and relay.request.endpoint.usage == "completion"
        )

    def _pass(self, data: bytes) -> None:
        if self.transcript is not None and not self.transcript.add(data):
            self.transcript = None
        self._write(data, last=False)
