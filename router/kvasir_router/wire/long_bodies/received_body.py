"""Body of the request that a connection receives."""

from io import BytesIO

from kvasir_router.wire.envelope import OUTLINED
from kvasir_router.wire.form import form_type
from kvasir_router.wire.http_request import BodyBudget, Request
from kvasir_router.wire.long_bodies.body_scan import SCANNED_BYTES, BodyScan, is_available
from kvasir_router.wire.long_bodies.form_scan import FormScan


class ReceivedBody:
    """Body of one request after the other. A long one is joined and read as it comes: at its end
    either would take long at once.

    Bytes that are held count in a budget until they are given back, which may be after the next
    body has begun.
    """

    def __init__(self, budget: BodyBudget) -> None:
        """`budget` is that of all connections of the process."""
        self.budget = budget
        self._held = 0
        self._scans = is_available()
        self.begin()

    def begin(self) -> None:
        """Let another request's body come."""
        self.size = 0
        self._parts: list[bytes | memoryview] = []
        self._long: BytesIO | None = None
        """A body of more than SCANNED_BYTES, instead of its parts."""

    def add(self, part: bytes | memoryview, request: Request) -> None:
        """Take the next part; `request` gets the scan of a body that is long. Raises
        RequestError."""
        self.size += len(part)
        self._held += len(part)
        self.budget.take(len(part), self.size)
        if self._long is not None:
            _add_long(self._long, part, request)
            return
        self._parts.append(part)
        if self.size > SCANNED_BYTES:
            self._long = BytesIO()
            request.scan = self._new_scan(request)
            for each in self._parts:
                _add_long(self._long, each, request)
            self._parts.clear()

    def _new_scan(self, request: Request) -> BodyScan | FormScan | None:
        form = form_type(request)
        if form:
            return FormScan(form)
        return BodyScan(OUTLINED) if self._scans else None

    def finish(self, request: Request) -> None:
        """Give the whole body to its request."""
        parts = self._parts
        if self._long is not None:
            request.buffer = self._long
            request.body = self._long.getvalue()  # its own bytes, not a copy
            self._long = None
        else:
            request.body = bytes(parts[0]) if len(parts) == 1 else b"".join(parts)
        self._parts = []

    def abandon(self, request: Request) -> None:
        """Drop what has come, also of bodies that were to be given back."""
        self._parts.clear()
        self._long = None
        request.scan = None
        self.give_back(self._held)

    def hold_more(self, size: int) -> None:
        """Count so many bytes more, which a body has grown by. Raises RequestError."""
        self.budget.check(size)
        self.budget.used += size
        self._held += size

    def give_back(self, size: int) -> None:
        """Count so many bytes no longer."""
        self._held -= size
        self.budget.give_back(size)


def _add_long(long: BytesIO, part: bytes | memoryview, request: Request) -> None:
    long.write(part)
    if request.scan is not None:
        request.scan.feed(bytes(part))
