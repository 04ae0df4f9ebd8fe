"""Token usage of a request, read from the end of its answer.

Kvasir engines tell routers: unary answers in the header `x-kvasir-usage`, streams in the comment
`: kvasir {"u":{...}}` before their last event. Other engines put it into a unary answer's body,
and into a stream's last chunk if the request asks; so it is made to, and a client that did not ask
does not get that chunk.
"""

import json
from typing import NamedTuple

import msgspec

from kvasir_router.wire.engine_json import UsageFields, read_usage
from kvasir_router.wire.envelope import is_dense
from kvasir_router.wire.long_bodies.body_scan import Outline

TAIL_BYTES = 1024
"""Length of the end of a unary body that is searched for its usage."""

_INCLUDE = b'"stream_options":{"include_usage":true},'
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_raw_decode = json.JSONDecoder().raw_decode
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class Usage(NamedTuple):
    """Token counts of one request, over all its choices."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None = None
    """Prompt tokens found in the KV cache; None when the engine does not say."""


def usage_of(fields: UsageFields | None) -> Usage | None:
    """Return what an engine's usage object says; None without a prompt's tokens."""
    if fields is None:
        return None
    prompt, output = fields.prompt_tokens, fields.completion_tokens
    details = fields.prompt_tokens_details
    if prompt is None:
        prompt, output = fields.input_tokens, fields.output_tokens
        details = fields.input_tokens_details
    if prompt is None:
        return None
    read, created = fields.cache_read_input_tokens, fields.cache_creation_input_tokens
    if read is not None:  # Anthropic counts neither among the input tokens
        return Usage(prompt + read + (created or 0), output, read)
    return Usage(prompt, output, None if details is None else details.cached_tokens)


def decode_usage(text: bytes) -> Usage | None:
    """Decode an engine's usage object; None for anything else."""
    try:
        return usage_of(read_usage(text))
    except msgspec.MsgspecError:
        return None


def usage_in_body(tail: bytes) -> Usage | None:
    """Find the usage at the end of a unary answer's body."""
    tail = tail[-TAIL_BYTES:]
    at = tail.rfind(b'"usage":')
    if at < 0:
        return None
    rest = tail[at + len(b'"usage":') :]
    usage = decode_usage(rest[:-1]) if rest else None  # as the last field
    if usage is not None:
        return usage
    try:
        text = rest.decode().lstrip()
        return decode_usage(text[: _raw_decode(text)[1]].encode())
    except (ValueError, RecursionError):
        return None


def ask_for_usage(
    body: bytes, stream_options: object, outline: Outline | None = None
) -> bytes | None:
    """The body of a streamed request with `stream_options.include_usage`; None if it has it
    already, if its `stream_options` are nothing an engine would accept, or it cannot be edited."""
    options = {} if stream_options is None else stream_options
    if not isinstance(options, dict) or options.get("include_usage"):
        return None
    at = body.find(b"{") + 1
    if not at or body[: at - 1].strip():
        return None
    asked = msgspec.json.encode({**options, "include_usage": True})
    if outline is not None and "stream_options" in outline.members:
        if stream_options is None and outline.raw(body, "stream_options") != b"null":
            return None  # longer than any that would be read
        return outline.replaced(body, "stream_options", asked)
    if outline is not None or b'"stream_options"' not in body:
        return body[:at] + _INCLUDE + body[at:]
    if is_dense(body):
        return None
    try:
        fields = _decode_fields(body)
    except _UNREADABLE:
        return None
    fields["stream_options"] = msgspec.Raw(asked)
    return msgspec.json.encode(fields)
