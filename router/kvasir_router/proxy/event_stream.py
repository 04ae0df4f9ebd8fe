"""An event stream on its way to the client: whole events, remembered for as long as it runs."""

import re
from functools import partial

from kvasir_router.kept_responses.kept_responses import Keeper
from kvasir_router.proxy.attempts.attempt import UpstreamRequest
from kvasir_router.proxy.client_response import AnswerObserver, Client, ClientAnswer
from kvasir_router.proxy.failures.failure import Failure, Kind, interrupted
from kvasir_router.proxy.transcript import NO_BUDGET, Transcript, TranscriptBudget
from kvasir_router.wire.query import Query
from kvasir_router.wire.responses import Answer, error_event
from kvasir_router.wire.sse import EventCutter
from kvasir_router.wire.stream_end import ContractEnd, ForeignEnd, StreamEnd
from kvasir_router.wire.upstream import ResponseHead

_COMMENT = b": kvasir "
_COMMENTS = re.compile(rb"^: kvasir [^\n]*\n", re.MULTILINE)

_NUMBER = b'"sequence_number":'
"""Stand before an event's number. JSON strings escape quotes, so no text looks like it."""
_DIGITS = re.compile(rb"\d{1,18}")

DONE = b"data: [DONE]\n\n"
_UNFINISHED = Failure("unfinished", Kind.CHARGED)


def without_comments(events: bytes) -> bytes:
    """Return whole events without what their engine tells the router alone: token ids, the seed."""
    if events.startswith(_COMMENT) and b"\n: kvasir " not in events:
        return events[events.find(b"\n") + 1 :]
    return _COMMENTS.sub(b"", events) if _COMMENT in events else events


def waiting_head() -> ResponseHead:
    """Return the head of a stream that waits in the queue."""
    head = ResponseHead()
    head.status = 200
    head.content_type = b"text/event-stream"
    head.lines = [b"Content-Type: text/event-stream\r\n", b"Cache-Control: no-cache\r\n"]
    return head


class EventStream(ClientAnswer):
    """One to the client, though several replicas may have a part in it.

    Per part of the stream: a cut at the last whole event, one look for the end's mark, one append
    to the transcript, a cut behind the engine's comment, one write. Nothing is parsed before the
    end.
    """

    __slots__ = (
        *("_contract", "_cutter", "_end", "_held", "_keeper", "_mark", "_query", "_transcripts"),
        "transcript",
    )

    def __init__(
        self,
        observer: AnswerObserver,
        client: Client,
        query: Query,
        head: ResponseHead,
        transcripts: TranscriptBudget,
    ) -> None:
        super().__init__(observer, client, query.request, head)
        self._query = query
        self._transcripts = transcripts
        self._contract = False
        self._keeper: Keeper | None = query.keeper
        self._held: list[bytes] | None = None
        """The last event, held back until it is whole and kept."""
        self.transcript: Transcript | None = Transcript(NO_BUDGET)
        """None once there was no room for it."""

    @property
    def blank(self) -> bool:
        """ClientAnswer.blank: no event of an engine's was passed on."""
        return self.transcript is not None and self.transcript.empty

    def read_from(self, attempt: UpstreamRequest) -> None:
        """Let the events of the attempt's replica follow the whole events of the one before."""
        self._cutter = EventCutter()
        self._held = None
        self._contract = contract = attempt.contract
        self._end: StreamEnd = ContractEnd() if contract else ForeignEnd(attempt.asks_for_usage)
        self._mark = self._end.mark
        if self.blank:
            one = self._query.envelope.n in (None, 1)
            kept = contract and one and self._query.request.endpoint.resumed
            self.transcript = Transcript(self._transcripts if kept else NO_BUDGET)

    def take(self, data: bytes, last: bool) -> None:
        """Sink.take. Written out for the common part: of a stream this is all that costs."""
        data = self._cutter.whole(data, last)
        held = self._held is not None
        if last or self._head or held or not self._chunked or self._mark in data:
            self._take_slowly(data, last)
        elif data:
            transcript = self.transcript
            if transcript is not None and not transcript.add(data):
                self.transcript = None
            if self._contract:
                data = without_comments(data)
            size = len(data)
            if not size:
                return
            self.sent_bytes += size
            self._client.write(b"%x\r\n%b\r\n" % (size, data))

    def finish(self) -> None:
        """End a stream that lacks nothing but the word that it is over."""
        said = self.transcript is not None and self.transcript.content().endswith(DONE)
        owed = self._query.request.endpoint.events == "completion" and not said
        self._write(DONE if owed else b"", last=True)
        self._observer.answer_ended(None)

    def beat(self) -> None:
        """Let the client know that its request is still waiting for a replica."""
        self._write(b": waiting\n\n", last=False)

    def end(self, error: Answer) -> bool:
        """ClientAnswer.end: with an event that the protocol's clients raise as an APIError."""
        event = error_event(self._query.request.endpoint, error, self._next_number())
        self._write(b"\n\n" + event, last=True)
        return True

    def _next_number(self) -> int:
        """Return the number of the next event, where events have numbers."""
        told = b"" if self.transcript is None else self.transcript.content()
        at = told.rfind(_NUMBER)
        found = _DIGITS.match(told, at + len(_NUMBER)) if at >= 0 else None
        return 0 if found is None else int(found[0]) + 1

    def close(self) -> None:
        """ClientAnswer.close."""
        self._held = None
        if self.transcript is not None:
            self.transcript.close()

    def _take_slowly(self, data: bytes, last: bool) -> None:
        """Take the first part, the last one, or any that tells of the end."""
        if self._held is not None:
            self._hold(data, last)
            return
        if self._mark in data:
            data = self._end.read(data)
            if self._end.interruption:
                self._pass(data)
                self._observer.answer_broken(interrupted(self._end.interruption))
                return
            if self._keeper is not None and self._end.whole:
                at = data.rfind(self._mark)
                self._pass(data[:at])
                self._held = []
                self._hold(data[at:], last)
                return
        if last:
            self._take_last(data)
        else:
            self._pass(data)

    def _hold(self, data: bytes, last: bool) -> None:
        """Hold the last event back until the response in it is kept: its client may go on with it
        at once."""
        held, keeper = self._held, self._keeper
        if held is None or keeper is None:
            return
        held.append(data)
        if last:
            events = b"".join(held)
            keeper.keep_event(events, partial(self._give_held, held, events))

    def _give_held(self, held: list[bytes], events: bytes) -> None:
        """Give the client the last event, unless another replica makes it anew by now."""
        if self._held is held:
            self._held = None
            self._write_events(events, last=True)
            self._observer.answer_ended(self._end.usage)

    def _take_last(self, data: bytes) -> None:
        # An engine with another fleet secret does not know the router and tells it nothing.
        told = self.transcript is not None and b": kvasir" in self.transcript.content() + data
        if (self._end.whole or not told) and not self._lacks_all(data):
            self._write_events(data, last=True)
            self._observer.answer_ended(self._end.usage)
        else:
            self._pass(data)
            self._observer.answer_broken(_UNFINISHED)

    def _lacks_all(self, last: bytes) -> bool:
        """Return whether not one event has come where some are due."""
        return (
            self.blank
            and not last
            and self._status == 200
            and self._query.request.endpoint.usage == "completion"
        )

    def _pass(self, data: bytes) -> None:
        if self.transcript is not None and not self.transcript.add(data):
            self.transcript = None
        self._write_events(data, last=False)

    def _write_events(self, data: bytes, last: bool) -> None:
        self._write(without_comments(data) if self._contract else data, last)
