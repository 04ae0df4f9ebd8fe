"""The fields of a multipart form that routing needs: audio and image uploads name their model so.

Only the parts' headers and two small values are kept (RFC 7578); the body is sent on as it came,
but for a canary's name.
The parser is the one that engines' web frameworks use: both find the same fields.
"""

import logging
import re
from contextlib import suppress
from typing import TYPE_CHECKING

from python_multipart import MultipartParser
from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartState, parse_options_header

from kvasir_router.wire.envelope import Envelope
from kvasir_router.wire.http_request import Request

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

_MAX_PARTS = 64
_MAX_PART_HEADER = 4096
_MAX_VALUE = 1024
_MAX_BOUNDARY = 70
_MAX_SEMICOLONS = 32
"""In a header that is split at them: each costs a hundred times what its byte does."""
_EXTENDED_NAME = re.compile(rb";\s*name\*", re.IGNORECASE)

logging.getLogger("python_multipart").setLevel(logging.ERROR)  # it warns of each broken form


class FormError(ValueError):
    """A form that cannot be read; one sentence on why."""


def form_type(request: Request) -> bytes | None:
    """Return the content type of a form on a route that takes forms; None for other requests."""
    if request.endpoint.body != "form":
        return None
    for line in request.lines:
        name, _, value = line.partition(b":")
        if name.lower() == b"content-type":
            value = value.strip()
            return value if value[:19].lower() == b"multipart/form-data" else None
    return None


def read_form(body: bytes, content_type: bytes) -> Envelope:
    """Return the envelope of a form's fields. Raises FormError."""
    values = _fields_of(body, content_type).values
    model = values.get(b"model")
    try:
        name = None if model is None else model.decode()
    except UnicodeDecodeError:
        raise FormError("The form's field `model` is not UTF-8.") from None
    return Envelope(model=name, stream=values.get(b"stream", b"").lower() == b"true")


def rename_form(body: bytes, content_type: bytes, name: str) -> bytes:
    """Return a form that `read_form` has read with another `model`."""
    start, end = _fields_of(body, content_type).model
    return b"".join((body[:start], name.encode(), body[end:]))


def _fields_of(body: bytes, content_type: bytes) -> "_Fields":
    boundary = _parameters(content_type, "Content-Type").get(b"boundary", b"")
    if not 1 <= len(boundary) <= _MAX_BOUNDARY:
        raise FormError("The form's Content-Type must name a boundary of 1 to 70 characters.")
    if not body.startswith(b"--" + boundary):
        raise FormError("The form does not begin with its boundary.")
    fields = _Fields()
    parser = MultipartParser(boundary, fields.callbacks, max_header_size=_MAX_PART_HEADER)
    with suppress(MultipartParseError):
        parser.write(body)
    if parser.state != MultipartState.END:
        raise FormError("The form breaks off, or a part of it has no header.")
    return fields


class _Fields:
    """Values by name, as the parser finds them; empty ones for files and whatever else is long."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}
        self.model = (0, 0)
        """Bytes of the body that are the model's name."""
        self.callbacks: MultipartCallbacks = {
            "on_part_begin": self._begin,
            "on_header_field": self._header_field,
            "on_header_value": self._header_value,
            "on_headers_finished": self._headers_finished,
            "on_part_data": self._data,
        }
        self._parts = 0
        self._header = self._disposition = self._name = b""

    def _begin(self) -> None:
        self._parts += 1
        if self._parts > _MAX_PARTS:
            raise FormError(f"The form has more than {_MAX_PARTS} parts.")
        self._disposition = b""

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._header = data[start:end].lower()

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        if self._header == b"content-disposition":
            self._disposition = data[start:end]

    def _headers_finished(self) -> None:
        if _EXTENDED_NAME.search(self._disposition):  # engines differ in what they make of it
            raise FormError("The form has a field with `name*`; name it by `name` alone.")
        self._name = _parameters(self._disposition, "Content-Disposition").get(b"name", b"")
        if self._name == b"model" and self._name in self.values:
            raise FormError("The form has the field `model` twice.")
        self.values[self._name] = b""

    def _data(self, data: bytes, start: int, end: int) -> None:
        if end - start <= _MAX_VALUE:
            self.values[self._name] = data[start:end]
            if self._name == b"model":
                self.model = start, end


def _parameters(value: bytes, header: str) -> dict[bytes, bytes]:
    """Return the parameters of a header. Raises FormError for too many of them."""
    if value.count(b";") > _MAX_SEMICOLONS:
        raise FormError(f"The form has a {header} with more than {_MAX_SEMICOLONS} semicolons.")
    return parse_options_header(value)[1]
