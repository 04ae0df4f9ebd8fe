"""Read what routes a request from its body, and write its replicas' model name into it."""

import time

import msgspec

from kvasir_router.admission.tenant_salt import TenantSalt
from kvasir_router.admission.ticket import Ticket
from kvasir_router.fleet.target import Target, rename
from kvasir_router.wire import responses
from kvasir_router.wire.envelope import (
    OUTLINED,
    DenseBodyError,
    Envelope,
    adapter_problem,
    decode_envelope,
    is_bracketed,
    read_outline,
    refusal,
)
from kvasir_router.wire.form import form_of, form_type, read_form, rename_form
from kvasir_router.wire.http_request import Request
from kvasir_router.wire.long_bodies.body_edit import replace_member
from kvasir_router.wire.long_bodies.body_scan import (
    BodyError,
    BodyScan,
    is_available,
    outline_of,
)
from kvasir_router.wire.long_bodies.form_scan import Form, FormError, FormScan
from kvasir_router.wire.query import Query

_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def read_request(request: Request) -> tuple[Envelope, Form | None]:
    """Read what decides where a request goes, and the fields of a form. Raises RefusalError, also
    for a body that asks engines for an adapter past the name in `model`: whatever its model's
    replicas are now, others may have come by the time that it is sent."""
    envelope, form = _read(request)
    problem = adapter_problem(envelope)
    if problem is not None:
        raise bad_body(*problem)
    return envelope, form


def _read(request: Request) -> tuple[Envelope, Form | None]:
    form_in = form_type(request)
    scan, request.scan = request.scan, None
    try:
        if form_in:
            form = scan.end() if isinstance(scan, FormScan) else form_of(request.body, form_in)
            return read_form(form), form
        outline_scan = scan if isinstance(scan, BodyScan) else None
        if outline_scan is None and not (is_bracketed(request.body) and is_available()):
            return decode_envelope(request.body), None
        outline = outline_scan.end() if outline_scan else outline_of(request.body, OUTLINED)
        request.outline = outline
        return read_outline(request.body, outline), None
    except FormError as error:
        raise bad_body(str(error)) from None
    except BodyError as error:
        raise bad_body(str(error), error.param) from None
    except _UNREADABLE as error:
        raise bad_body(*refusal(request.body, error)) from None


def rename_model(request: Request, form: Form | None, name: str) -> None:
    """Name the model in the body as its replicas do. Raises RefusalError."""
    outline = request.outline
    if form is not None:
        rename_form(request, form, name)
        return
    if outline is not None:
        replace_member(request, outline, "model", msgspec.json.encode(name))
        return
    try:
        request.body = rename(request.body, name)
    except DenseBodyError as error:
        raise bad_body(str(error)) from None
    except _UNREADABLE as error:
        raise bad_body(*refusal(request.body, error)) from None


def add_salt(salt: TenantSalt, request: Request, envelope: Envelope, ticket: Ticket) -> bool:
    """Keep the prompt out of other tenants' caches, if it is one's; return whether it is. Raises
    RefusalError."""
    if not ticket.key_id:
        return False
    try:
        salt.add(request, envelope, ticket.tenant)
    except BodyError as error:
        ticket.settle(0, time.monotonic(), time.time())
        raise bad_body(str(error), error.param) from None
    return True


def query_of_another(query: Query, target: Target, *, keeps: bool) -> Query:
    """Return the query with which another model is asked for the same; its engines find their own
    name in the body. `keeps`: its answer is kept as that of the first one would have been. Raises
    RefusalError."""
    request = query.request
    envelope, form = read_request(request)
    rename_model(request, form, target.adapter or target.model.name)
    request.buffer = None
    other = Query(request, envelope, lora=target.adapter, media=query.media)
    other.salted, other.resumed, other.key_id = query.salted, query.resumed, query.key_id
    other.keeper = query.keeper if keeps else None
    return other


def bad_body(message: str, param: str | None = None) -> responses.RefusalError:
    """Return the refusal of a body that cannot be used as it is; `param`: the field at fault."""
    return responses.RefusalError(responses.error(400, message, "invalid_body", param))
