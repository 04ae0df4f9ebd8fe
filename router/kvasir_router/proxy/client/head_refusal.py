"""A request that is refused for what its header says, before its body is read."""

from kvasir_router.wire.http_request import Request, RequestError
from kvasir_router.wire.responses import Answer


class HeadRefusedError(RequestError):
    """Refusal of a request, with its answer."""

    def __init__(self, request: Request, answer: Answer) -> None:
        super().__init__(answer.status, "")
        self.request = request
        self.answer = answer
