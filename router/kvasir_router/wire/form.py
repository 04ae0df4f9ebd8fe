"""The fields of a multipart form that routing needs: audio and image uploads name their model so.

Only the parts' headers and small values are read (RFC 7578); the body is sent on as it came.
"""

import re

from kvasir_router.wire.envelope import Envelope
from kvasir_router.wire.http_request import Request

_MAX_PARTS = 64
_MAX_PART_HEADER = 4096
_MAX_VALUE = 1024

_BOUNDARY = re.compile(
    rb"""multipart/form-data\s*;(?:[^"]*;)?\s*boundary=(?:"([^"\r\n]{1,70})"|([^\s;"]{1,70}))""",
    re.IGNORECASE,
)
_NAME = re.compile(
    rb"""^content-disposition\s*:\s*form-data\s*;(?:[^"]*;)?\s*name="?([^";\r\n]*)"?""",
    re.IGNORECASE | re.MULTILINE,
)


class FormError(ValueError):
    """A form that cannot be read; one sentence on why."""


def form_type(request: Request) -> bytes | None:
    """Return the content type of a form on a route that takes forms; None for any other request."""
    if request.endpoint.body != "form":
        return None
    for line in request.lines:
        name, _, value = line.partition(b":")
        if name.lower() == b"content-type":
            value = value.strip()
            return value if value[:19].lower() == b"multipart/form-data" else None
    return None


def read_form(body: bytes, content_type: bytes) -> Envelope:
    """The envelope of a form's fields. Raises FormError."""
    found = _BOUNDARY.match(content_type)
    if found is None:
        raise FormError("The form's Content-Type must name a boundary of 1 to 70 characters.")
    values = _small_values(body, b"--" + (found[1] or found[2]))
    model = values.get(b"model")
    try:
        name = None if model is None else model.decode()
    except UnicodeDecodeError:
        raise FormError("The form's field `model` is not UTF-8.") from None
    return Envelope(model=name, stream=values.get(b"stream", b"").lower() == b"true")


def _small_values(body: bytes, delimiter: bytes) -> dict[bytes, bytes]:
    """Fields of at most 1024 bytes; files and longer ones are skipped over."""
    values: dict[bytes, bytes] = {}
    if not body.startswith(delimiter):
        raise FormError("The form does not begin with its boundary.")
    between = b"\r\n" + delimiter
    start = len(delimiter)
    for _ in range(_MAX_PARTS):
        if body.startswith(b"--", start):
            return values
        end = body.find(between, start)
        head_end = body.find(b"\r\n\r\n", start, start + _MAX_PART_HEADER)
        if end < 0 or not start <= head_end <= end:
            raise FormError("The form breaks off, or a part of it has no header.")
        name = _NAME.search(body, start, head_end)
        if name is not None and end - head_end - 4 <= _MAX_VALUE:
            if name[1] in values and name[1] == b"model":
                raise FormError("The form has the field `model` twice.")
            values[name[1]] = body[head_end + 4 : end]
        start = end + len(between)
    raise FormError(f"The form has more than {_MAX_PARTS} parts.")
