"""From the bytes of a body to a checked struct, or to a 400 that says what is wrong."""

from __future__ import annotations

import logging
import re
from typing import Any, TypeVar

import msgspec
from starlette.types import Receive, Scope

from kvasir_engine.server.errors import ApiError, invalid
from kvasir_engine.server.schema import IGNORED_FIELDS, UNSUPPORTED_FIELDS

logger = logging.getLogger(__name__)

_Body = TypeVar("_Body", bound=msgspec.Struct)
_PLACE = re.compile(r"^(?P<what>.*?)(?: - at `\$\.?(?P<where>.*)`)?$", re.DOTALL)
_MAX_LOGGED_FIELDS = 256
_MAX_FIELD_CHARS = 64
_logged_fields: set[str] = set()


class ClientGoneError(Exception):
    """The client closed the connection before its body was complete."""


async def read_body(scope: Scope, receive: Receive, limit: int) -> bytes:
    """The whole body; a 413 as soon as it is known to be larger than `limit` bytes."""
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and int(value) > limit:
            raise _too_large(limit)
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > limit:
            raise _too_large(limit)
        chunks.append(chunk)
        if not message.get("more_body", False):
            return b"".join(chunks)


def _too_large(limit: int) -> ApiError:
    return ApiError(
        413,
        f"The body is larger than {limit} bytes; the server's --max-body-bytes raises the limit.",
        code="body_too_large",
        headers={"connection": "close"},
    )


def parse_body(raw: bytes, kind: type[_Body]) -> _Body:
    """Decode JSON into `kind`. Unknown fields are ignored and logged once a name."""
    fields = _decode(raw)
    known = kind.__struct_fields__
    for name, value in fields.items():
        if name in known:
            continue
        if name in UNSUPPORTED_FIELDS:
            if value is not None and value not in UNSUPPORTED_FIELDS[name]:
                raise invalid(
                    f"{name} is not supported by this server; leave it out.", name, "unsupported"
                )
        elif name not in IGNORED_FIELDS:
            _log_once(name)
    try:
        return msgspec.convert(fields, kind, str_keys=True)
    except msgspec.ValidationError as error:
        raise _validation_error(error) from error


def _decode(raw: bytes) -> dict[str, Any]:
    try:
        fields = msgspec.json.decode(raw)
    except UnicodeDecodeError as error:
        raise invalid(
            f"The body is not valid UTF-8 (byte {error.start}).", code="invalid_utf8"
        ) from error
    except RecursionError as error:
        raise invalid("The body is nested too deeply.", code="invalid_json") from error
    except msgspec.DecodeError as error:
        raise invalid(
            f"The body is not valid JSON: {error}. NaN and Infinity are not JSON either.",
            code="invalid_json",
        ) from error
    if not isinstance(fields, dict):
        raise invalid("The body must be a JSON object.", code="invalid_json")
    return fields


def _validation_error(error: msgspec.ValidationError) -> ApiError:
    """msgspec says "Expected `int`, got `str` - at `$.n`"; the field goes into `param`."""
    match = _PLACE.match(str(error))
    if match is None or match["where"] is None:
        missing = re.search(r"missing required field `(\w+)`", str(error))
        if missing:
            return invalid(f"{missing[1]} is required.", missing[1])
        return invalid(f"{error}.")
    return invalid(f"{match['where']}: {match['what']}.", match["where"])


def _log_once(name: str) -> None:
    name = name[:_MAX_FIELD_CHARS]
    if name not in _logged_fields and len(_logged_fields) < _MAX_LOGGED_FIELDS:
        _logged_fields.add(name)
        logger.warning("ignoring unknown request field %r", name)
