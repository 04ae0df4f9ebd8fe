"""A long unary answer that is kept before its client has the end of it."""

from functools import partial

from kvasir_router.kept_responses.kept_responses import Keeper
from kvasir_router.proxy.client_response import AnswerObserver, Client, ClientAnswer
from kvasir_router.wire.http_request import Request
from kvasir_router.wire.upstream import ResponseHead


class KeptAnswer(ClientAnswer):
    """Pass an answer on as it comes, but for its last part."""

    __slots__ = ("_keeper", "_parts")

    def __init__(
        self,
        observer: AnswerObserver,
        client: Client,
        request: Request,
        head: ResponseHead,
        keeper: Keeper,
    ) -> None:
        super().__init__(observer, client, request, head)
        self._keeper = keeper
        self._parts: list[bytes] | None = []
        """All of it; None once nobody waits for it."""

    def take(self, data: bytes, last: bool) -> None:
        """Sink.take."""
        if self._parts is None:
            return
        self._parts.append(data)
        if last:
            self._keeper.keep_body(b"".join(self._parts), partial(self._give_last, data))
        else:
            super().take(data, False)

    def close(self) -> None:
        """ClientAnswer.close."""
        self._parts = None

    def _give_last(self, data: bytes) -> None:
        if self._parts is not None:
            super().take(data, True)
