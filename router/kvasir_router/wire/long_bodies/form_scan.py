"""The fields of a multipart form that routing needs, found as its bytes come in.

Only the parts' headers and short values are kept (RFC 7578). The parser is the one that engines'
web frameworks use: both find the same fields.
"""

import logging
import re
from typing import TYPE_CHECKING, NamedTuple

from python_multipart import MultipartParser
from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartState, parse_options_header

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

_MAX_PARTS = 64
_MAX_BOUNDARIES = 256
"""Places that look like a boundary at first: where it goes on otherwise, the parser takes a hundred
times what other bytes cost."""
_MAX_PART_HEADER = 4096
_MAX_VALUE = 1024
_MAX_BOUNDARY = 70
_MAX_SEMICOLONS = 32
"""In a header that is split at them: each costs a hundred times what its byte does."""
_EXTENDED_NAME = re.compile(rb";\s*name\*", re.IGNORECASE)

logging.getLogger("python_multipart").setLevel(logging.ERROR)  # it warns of each broken form


class FormError(ValueError):
    """A form that cannot be read; one sentence on why."""


class Form(NamedTuple):
    """Fields of a form."""

    values: dict[bytes, bytes]
    """Values by name; empty ones for files and whatever else is long."""
    model_start: int
    model_end: int
    """Bytes of the body that are the value of `model`."""


class FormScan:
    """One form's, up to its end."""

    def __init__(self, content_type: bytes) -> None:
        """`content_type` names the boundary. What is wrong is told at the end."""
        self._error: FormError | None = None
        self._boundary = b""
        try:
            self._boundary = _boundary_of(content_type)
        except FormError as error:
            self._error = error
        self._fields = _Fields()
        self._parser = MultipartParser(
            self._boundary, self._fields.callbacks, max_header_size=_MAX_PART_HEADER
        )
        self._first = b""
        """Bytes of the body, as many as its first boundary has."""
        self._boundaries = 0

    def feed(self, part: bytes) -> None:
        """Read on."""
        missing = len(self._boundary) + 2 - len(self._first)
        if missing:
            self._first += part[:missing]
        if self._error is not None:
            return
        self._boundaries += part.count(b"\r\n--" + self._boundary)
        if self._boundaries > _MAX_BOUNDARIES:
            self._error = FormError("The form's files hold its boundary; choose another one.")
            return
        self._fields.begin_piece(part)
        try:
            self._parser.write(part)
        except MultipartParseError:
            self._error = _broken()
        except FormError as error:
            self._error = error

    def end(self) -> Form:
        """Return the fields of the whole form. Raises FormError."""
        if self._boundary and self._first != b"--" + self._boundary:
            raise FormError("The form does not begin with its boundary.")
        if self._error is not None:
            raise self._error
        if self._parser.state != MultipartState.END:
            raise _broken()
        return self._fields.found()


class _Fields:
    """Fields as the parser finds them. It tells of names and values in pieces, where the body comes
    in pieces."""

    def __init__(self) -> None:
        self.callbacks: MultipartCallbacks = {
            "on_part_begin": self._begin,
            "on_header_begin": self._header_begin,
            "on_header_field": self._header_field,
            "on_header_value": self._header_value,
            "on_header_end": self._header_end,
            "on_headers_finished": self._headers_finished,
            "on_part_data": self._data,
        }
        self._values: dict[bytes, bytes] = {}
        self._model_start = 0
        self._piece = b""
        self._piece_at = 0
        """Bytes of the body before the piece."""
        self._parts = 0
        self._size = 0
        """Bytes of the part's value that have come."""
        self._header = self._header_content = self._disposition = self._name = b""

    def begin_piece(self, piece: bytes) -> None:
        """Note what the parser is given next."""
        self._piece_at += len(self._piece)
        self._piece = piece

    def found(self) -> Form:
        """Return them, at the end."""
        start = self._model_start
        return Form(self._values, start, start + len(self._values.get(b"model", b"")))

    def _begin(self) -> None:
        self._parts += 1
        if self._parts > _MAX_PARTS:
            raise FormError(f"The form has more than {_MAX_PARTS} parts.")
        self._disposition = b""

    def _header_begin(self) -> None:
        self._header = self._header_content = b""

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._header_content += data[start:end]

    def _header_end(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._disposition = self._header_content

    def _headers_finished(self) -> None:
        if _EXTENDED_NAME.search(self._disposition):  # engines differ in what they make of it
            raise FormError("The form has a field with `name*`; name it by `name` alone.")
        self._name = _parameters(self._disposition, "Content-Disposition").get(b"name", b"")
        if self._name == b"model" and self._name in self._values:
            raise FormError("The form has the field `model` twice.")
        self._values[self._name] = b""
        self._size = 0

    def _data(self, data: bytes, start: int, end: int) -> None:
        if not self._size and self._name == b"model":
            # What looked like a boundary at the last piece's end, and is none, comes by itself.
            is_here = data is self._piece
            self._model_start = self._piece_at + start if is_here else self._piece_at - end
        self._size += end - start
        fits = self._size <= _MAX_VALUE
        self._values[self._name] = self._values[self._name] + data[start:end] if fits else b""


def _boundary_of(content_type: bytes) -> bytes:
    boundary = _parameters(content_type, "Content-Type").get(b"boundary", b"")
    if not 1 <= len(boundary) <= _MAX_BOUNDARY:
        raise FormError("The form's Content-Type must name a boundary of 1 to 70 characters.")
    return boundary


def _parameters(value: bytes, header: str) -> dict[bytes, bytes]:
    """Return the parameters of a header. Raises FormError for too many of them."""
    if value.count(b";") > _MAX_SEMICOLONS:
        raise FormError(f"The form has a {header} with more than {_MAX_SEMICOLONS} semicolons.")
    return parse_options_header(value)[1]


def _broken() -> FormError:
    return FormError("The form breaks off, or a part of it has no header.")
