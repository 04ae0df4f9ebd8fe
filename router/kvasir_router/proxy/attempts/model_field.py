"""`model` of a request's body as the engine that gets it takes it: the relay and the endpoint
picker send the same."""

import msgspec

from kvasir_router.discovery.specs import EngineKind
from kvasir_router.fleet.target import rename
from kvasir_router.wire.form import form_of, form_type
from kvasir_router.wire.http_request import Request
from kvasir_router.wire.long_bodies.body_scan import Outline
from kvasir_router.wire.query import Query


def named_for(
    engine: EngineKind, query: Query, body: bytes, model: str
) -> tuple[bytes, Outline | None]:
    """Return `body`, the query's own or one that goes on with it, as an engine of the fleet takes
    it, and its outline if it has one; `model`: the name of its model."""
    outline = query.request.outline
    name = _name_for(engine, query, model)
    return (body, outline) if name is None else renamed(query.request, body, name, outline)


def _name_for(engine: EngineKind, query: Query, model: str) -> str | None:
    """Return the name in the place of the body's; None if that will do.

    SGLang answers to any name with the model itself, unless it is MODEL:ADAPTER, where it reads no
    more of MODEL than up to its first colon; so an alias with a colon would be an adapter.
    """
    if engine is not EngineKind.SGLANG:
        return None
    if query.lora:
        return f"{model.partition(':')[0]}:{query.lora}"
    given = query.envelope.model
    return model if given is not None and ":" in given and given != model else None


def takes_the_same(query: Query, one: EngineKind, other: EngineKind) -> bool:
    """Return whether engines of two kinds take the same body."""
    sglang = EngineKind.SGLANG
    return (one is sglang) == (other is sglang) or _name_for(sglang, query, "") is None


def renamed(
    request: Request, body: bytes, name: str, outline: Outline | None
) -> tuple[bytes, Outline | None]:
    """Return a request's `body` with another name of the model, and its outline if it has one."""
    content_type = form_type(request)
    if content_type is not None:
        form = form_of(body, content_type)
        return b"".join((body[: form.model_start], name.encode(), body[form.model_end :])), None
    if outline is None:
        return rename(body, name), None
    value = msgspec.json.encode(name)
    return outline.replaced(body, "model", value), outline.after_replacing("model", len(value))
