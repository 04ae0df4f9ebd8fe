"""Decoding of a body's bytes to a checked struct, or to a 400 that says what is wrong."""

from __future__ import annotations

import logging
import re
from typing import TypeVar

import msgspec

from kvasir_engine.server.openai.api_error import ApiError, invalid
from kvasir_engine.server.openai.schema import (
    IGNORED_FIELDS,
    ONLY_OF_CHATS,
    UNSUPPORTED_FIELDS,
)

logger = logging.getLogger(__name__)

_Body = TypeVar("_Body", bound=msgspec.Struct)
_PLACE = re.compile(r" - at (?P<key>`key` in )?`\$\.(?P<where>.*)`$")
_EXPECTED = re.compile(r"Expected `(?P<wanted>[\w| ]+)`, got `(?P<given>\w+)`")
_STEP = re.compile(r"\[(\d+)\]|\.?([^.\[]+)")
_KINDS = {
    "str": "a string",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}
"""JSON's kinds as msgspec calls them, and as people do."""
_MISSING = re.compile(r"missing required field `(?P<field>\w+)`")
_fields_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_MAX_FIELDS = 1024
_MAX_LOGGED_FIELDS = 256
_MAX_FIELD_CHARS = 64
_MAX_SHOWN_CHARS = 60
_logged_fields: set[str] = set()


def parse_body(raw: bytes, kind: type[_Body]) -> _Body:
    """Decode JSON into `kind`. Unknown fields are ignored and logged once a name."""
    try:
        if not raw.isascii():
            raw.decode()  # the JSON decoder does not say where in the body
        known = kind.__struct_fields__
        fields = _fields_decoder.decode(raw)
        if len(fields) > _MAX_FIELDS:
            raise invalid(
                f"The body has {len(fields)} fields, of at most {_MAX_FIELDS}.",
                code="body_too_complex",
            )
        for name, value in fields.items():
            if name not in known:
                _check_foreign(name, value)
        return msgspec.json.decode(raw, type=kind)
    except UnicodeDecodeError as error:
        raise invalid(
            f"The body is not valid UTF-8 (byte {error.start}).", code="invalid_utf8"
        ) from error
    except RecursionError as error:
        raise invalid("The body is nested too deeply.", code="invalid_json") from error
    except msgspec.ValidationError as error:
        raise _validation_error(error, raw) from error
    except msgspec.DecodeError as error:
        if not raw.strip():
            raise invalid("The body is empty; send a JSON object.", code="invalid_json") from error
        raise invalid(
            f"The body is not valid JSON: {error} ({len(raw)} bytes in all). NaN and Infinity are "
            "not JSON either.",
            code="invalid_json",
        ) from error


def _check_foreign(name: str, value: msgspec.Raw) -> None:
    refused = UNSUPPORTED_FIELDS.get(name, ONLY_OF_CHATS.get(name))
    if refused is not None:
        given = msgspec.json.decode(value)
        if given is not None and given not in refused:
            where = "by this server; leave it out"
            if name in ONLY_OF_CHATS:
                where = "here; leave it out, or use /v1/chat/completions"
            raise invalid(f"{name} is not supported {where}.", name, "unsupported")
    elif name not in IGNORED_FIELDS:
        _log_once(name)


def _validation_error(error: msgspec.ValidationError, raw: bytes) -> ApiError:
    """msgspec says "Expected `int`, got `str` - at `$.n`"; the field goes into `param`."""
    what = str(error)
    if match := _PLACE.search(what):
        where, reason = match["where"], what[: match.start()]
        expected = _EXPECTED.fullmatch(reason)
        if expected is None:
            return invalid(f"{where}: {reason}.", where)
        wanted = " or ".join(_KINDS.get(kind, kind) for kind in expected["wanted"].split(" | "))
        if match["key"]:
            return invalid(f"Every key of {where} must be {wanted}.", where)
        given = _shown(raw, where) or _KINDS.get(expected["given"], expected["given"])
        return invalid(f"{where} must be {wanted}, not {given}.", where)
    if match := _MISSING.search(what):
        return invalid(f"{match['field']} is required.", match["field"])
    return invalid("The body must be a JSON object with the request's fields.", code="invalid_json")


def _shown(raw: bytes, where: str) -> str:
    """The value at `where` of a body, as JSON; empty if it cannot be told."""
    try:
        value = msgspec.json.decode(raw)
        for index, name in _STEP.findall(where):
            value = value[int(index)] if index else value[name]
    except (msgspec.DecodeError, LookupError, TypeError, RecursionError):
        return ""
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= _MAX_SHOWN_CHARS else f"{text[:_MAX_SHOWN_CHARS]}..."


def _log_once(name: str) -> None:
    name = name[:_MAX_FIELD_CHARS]
    if name not in _logged_fields and len(_logged_fields) < _MAX_LOGGED_FIELDS:
        _logged_fields.add(name)
        logger.warning("ignoring unknown request field %r", name)
