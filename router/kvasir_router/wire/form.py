"""Multipart forms: audio and image uploads name their model in a field.

The body is sent on as it came, but for a canary's name.
"""

from kvasir_router.wire.envelope import ADAPTER_FIELDS, Envelope
from kvasir_router.wire.http_request import Request
from kvasir_router.wire.long_bodies.body_edit import replace_bytes
from kvasir_router.wire.long_bodies.form_scan import Form, FormError, FormScan


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


def form_of(body: bytes, content_type: bytes) -> Form:
    """Return the fields of a whole form. Raises FormError."""
    scan = FormScan(content_type)
    scan.feed(body)
    return scan.end()


def read_form(form: Form) -> Envelope:
    """Return the envelope of a form's fields. Raises FormError."""
    model = form.values.get(b"model")
    try:
        name = None if model is None else model.decode()
    except UnicodeDecodeError:
        raise FormError("The form's field `model` is not UTF-8.") from None
    envelope = Envelope(model=name, stream=form.values.get(b"stream", b"").lower() == b"true")
    for field in ADAPTER_FIELDS:
        value = form.values.get(field.encode())
        if value is not None:
            setattr(envelope, field, value.decode(errors="replace"))
    return envelope


def rename_form(request: Request, form: Form, name: str) -> None:
    """Give a form another `model`, which it has."""
    replace_bytes(request, form.model_start, form.model_end, name.encode())
