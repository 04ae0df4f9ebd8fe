"""Token usage of a request, read from the end of its answer.

Kvasir engines tell routers: unary answers in the header `x-kvasir-usage`, streams in the comment
`: kvasir {"u":{...}}` before their last event. Other engines put it into a unary answer's body,
and into a stream's last chunk if the request asks; so it is made to, and a client that did not ask
does not get that chunk.
"""

import json
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from kvasir_router.wire.engine_json import read_usage
from kvasir_router.wire.envelope import is_dense

TAIL_BYTES = 1024
"""Length of the end of a unary body that is searched for its usage."""

_INCLUDE = b'"stream_options":{"include_usage":true},'
_NEWER = "input_tokens", "output_tokens"
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_raw_decode = json.JSONDecoder().raw_decode
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class Usage(NamedTuple):
    """Token counts of one request, over all its choices."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None = None
    """Prompt tokens found in the KV cache; None when the engine does not say."""


def usage_of(content: object) -> Usage | None:
    """Read OpenAI's usage object; None for anything else."""
    if not isinstance(content, Mapping):
        return None
    old = "prompt_tokens" in content  # the names of completions; newer endpoints have others
    name, output = ("prompt_tokens", "completion_tokens") if old else _NEWER
    details = content.get(f"{name}_details")
    cached = details.get("cached_tokens") if isinstance(details, Mapping) else None
    prompt, completion = content.get(name), content.get(output, 0)
    if not isinstance(prompt, int) or not isinstance(completion, int):
        return None
    return Usage(prompt, completion, cached if isinstance(cached, int) else None)


def decode_usage(text: bytes) -> Usage | None:
    """Decode a Kvasir engine's usage object; None for anything else."""
    try:
        usage = read_usage(text)
    except msgspec.MsgspecError:
        return None
    details = usage.prompt_tokens_details
    cached = None if details is None else details.cached_tokens
    return Usage(usage.prompt_tokens, usage.completion_tokens, cached)


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
        return usage_of(_raw_decode(rest.decode().lstrip())[0])
    except (ValueError, RecursionError):
        return None


def ask_for_usage(body: bytes, stream_options: object) -> bytes | None:
    """The body of a streamed request with `stream_options.include_usage`; None if it has it
    already, if its `stream_options` are nothing an engine would accept, or it cannot be edited."""
    options = {} if stream_options is None else stream_options
    if not isinstance(options, dict) or options.get("include_usage"):
        return None
    at = body.find(b"{") + 1
    if not at or body[: at - 1].strip():
        return None
    if b'"stream_options"' not in body:
        return body[:at] + _INCLUDE + body[at:]
    if is_dense(body):
        return None
    try:
        fields = _decode_fields(body)
    except _UNREADABLE:
        return None
    fields["stream_options"] = msgspec.Raw(msgspec.json.encode({**options, "include_usage": True}))
    return msgspec.json.encode(fields)
