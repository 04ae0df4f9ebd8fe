"""The prompt of a long body, read from its outline: the leading part of its canonical text
(kvasir.wire.text_chain), of which no more is decoded than is hashed, and little at a time.

Whatever would take far more memory than its bytes ends the text: what stands before it is hashed.
"""

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from kvasir.wire.text_chain import (
    BLOCK_ENDS,
    CHAT_FIELDS,
    COMPLETION_FIELDS,
    JSON_CONTENT,
    TEXT_CONTENT,
    chat_head,
    chat_text,
    completion_pieces,
    message_head,
)
from kvasir_router.wire.long_bodies.body_scan import BodyError, Element, Outline, ValueSpan

_MAX_TEXT = BLOCK_ENDS[-1]
_MAX_VALUES = 8192
"""JSON values that are decoded at once: each may take 130 bytes."""
_MAX_DECODED_MESSAGES = 24 * 1024
"""JSON values of all messages that are decoded."""
_MAX_BATCH = 1024
"""JSON values of several messages that are decoded at once."""
_MAX_DECODED = 64 * 1024
"""Bytes of JSON that are decoded at once."""
_MAX_FIELD = 256 * 1024
_MAX_WIDE = 96 * 1024
"""The same for a list of parts that is not ASCII: each of its characters may take four bytes."""
_MAX_ESCAPES = 128 * 1024
"""Backslashes of a string that is decoded: each takes as long as 50 plain bytes."""

_decode = msgspec.json.Decoder(float_hook=float).decode  # msgspec takes 9 us for a 1e308
_HIGH_SURROGATE = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}\Z")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_CLOSING = bytes.maketrans(b"[{", b"]}")
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, BodyError)


class LongPrompt:
    """A long prompt, as far as it was read."""

    def __init__(self, text: bytes, size: int) -> None:
        self.text = text
        """Leading part of the canonical text."""
        self.size = size
        """Bytes of text that the whole prompt is worth."""


def read_long_prompt(body: bytes, outline: Outline, source: str, lora: str) -> LongPrompt:
    """Return the prompt of a body; `source` is its endpoint's `prompt`. Its `size` is the body's
    where the prompt is not read to its end."""
    text, whole = b"", False
    try:
        if source == "messages":
            text, whole = _chat(body, outline, lora)
        elif source == "prompt":
            text, whole = _completion(body, outline, lora)
    except _UNREADABLE:
        text = b""
    return LongPrompt(text[:_MAX_TEXT], len(text) if whole else len(body))


def token_ids_in(body: bytes, outline: Outline) -> int:
    """Return the number of token ids that are the prompt of a completion; 0 if it is a text."""
    span = outline.members.get("prompt")
    if span is None or body[span.start] != ord("["):
        return 0
    first = body[span.start + 1 : span.start + 64].lstrip()[:1]
    return span.values - 1 if first.isdigit() else 0


def read_fields(body: bytes, outline: Outline, names: tuple[str, ...]) -> dict[str, Any]:
    """Decode the members of these names that a body has. Raises BodyError for too much of it."""
    spans = {name: outline.members[name] for name in names if name in outline.members}
    values = sum(span.values for span in spans.values())
    if values > _MAX_VALUES or any(span.end - span.start > _MAX_FIELD for span in spans.values()):
        raise BodyError
    return {name: _decode(body[span.start : span.end]) for name, span in spans.items()}


def _completion(body: bytes, outline: Outline, lora: str) -> tuple[bytes, bool]:
    span = outline.members.get("prompt")
    if span is None or body[span.start] != ord('"'):
        return b"", False
    pieces = completion_pieces(read_fields(body, outline, COMPLETION_FIELDS), "", lora=lora)
    text, whole = string_text(body, span, _MAX_TEXT)
    return b"".join((*pieces, text)), whole


def _chat(body: bytes, outline: Outline, lora: str) -> tuple[bytes, bool]:
    parts = [chat_head(read_fields(body, outline, CHAT_FIELDS), lora=lora)]
    room = _MAX_TEXT - len(parts[0])
    messages = outline.members.get("messages")
    if messages is None or body[messages.start] != ord("["):
        return b"".join(parts), True
    last = messages.start + 1
    values = 0
    for span in _batches(outline):
        values += span.values
        if room <= 0 or values > _MAX_DECODED_MESSAGES:
            return b"".join(parts), False
        added, whole = _messages(body, span, room)
        parts += added
        if not whole:
            return b"".join(parts), False
        room -= sum(map(len, added))
        last = span.end
    return b"".join(parts), not body[last : last + 64].lstrip().startswith(b",")


def _batches(outline: Outline) -> Iterator[Element]:
    """Yield the messages, short ones several at a time: each by itself costs several times what it
    costs among others."""
    batch: Element | None = None
    for span in outline.elements():
        if batch is not None:
            together = Element(batch.start, span.end, batch.values + span.values, 0, 0, 0)
            if together.values <= _MAX_BATCH and _is_short(together):
                batch = together
                continue
            yield batch
        batch = span
    if batch is not None:
        yield batch


def _is_short(span: Element) -> bool:
    return span.end - span.start <= _MAX_DECODED and span.values <= _MAX_VALUES


def _messages(body: bytes, span: Element, room: int) -> tuple[list[bytes], bool]:
    """Return the text of short messages or of a long one, and whether it is all of it."""
    if _is_short(span):
        listed = _decode(b"[%b]" % body[span.start : span.end])
        return [chat_text({}, listed).removeprefix(_NO_FIELDS)], True
    content = ValueSpan(span.content_start, span.content_end, span.content_values)
    if not content.end:
        raise BodyError
    rest = body[span.start : content.start] if content.start - span.start <= _MAX_DECODED else b""
    rest += b'""' + body[content.end : min(span.end, content.end + _MAX_DECODED)]
    if span.values - content.values > _MAX_VALUES:
        raise BodyError
    head = message_head(_decode(rest))  # raises if some of it is missing
    if body[content.start] == ord('"'):
        text, whole = string_text(body, content, room)
        return [head, TEXT_CONTENT, text, *([TEXT_CONTENT] if whole else [])], whole
    return _content_list(body, content, head)


def _content_list(body: bytes, content: ValueSpan, head: bytes) -> tuple[list[bytes], bool]:
    if content.values > _MAX_VALUES:
        return [head, JSON_CONTENT], False
    raw = body[content.start : min(content.end, content.start + _MAX_TEXT)]
    is_plain = raw.isascii() and not (b"\\" in raw and b"\\u" in raw)  # one byte is found faster
    limit = _MAX_TEXT if is_plain else _MAX_WIDE
    if content.end - content.start > limit:
        return [head, JSON_CONTENT, _leading_json(raw, limit)], False
    return [head, JSON_CONTENT, msgspec.json.encode(_decode(raw)), TEXT_CONTENT], True


def _leading_json(raw: bytes, limit: int) -> bytes:
    """Return the canonical form of the first `limit` bytes or so of a JSON list, up to within a
    string; empty if there is none. An image is hashed so far, however large it is."""
    cut = raw[: _whole_characters(raw, limit)]
    unescaped = cut
    if b"\\" in cut:
        unescaped = cut.replace(b"\\\\", b"__").replace(b'\\"', b"__")
    last_quote = max(unescaped.rfind(b'"'), 0)
    before = unescaped[:last_quote]
    if before.count(b'"') % 2:  # it is the end of a string
        cut = cut[:last_quote]
        before = before[: before.rfind(b'"')]
    opened = b"".join(before.split(b'"')[::2]).translate(None, _NO_BRACKETS)
    while (fewer := opened.replace(b"[]", b"").replace(b"{}", b"")) != opened:
        opened = fewer
    closed = b'"' + opened[::-1].translate(_CLOSING)
    try:
        return msgspec.json.encode(_decode(cut + closed)).removesuffix(closed)
    except msgspec.DecodeError:  # it is cut within a name
        return b""


def string_text(body: bytes | memoryview, span: ValueSpan, limit: int) -> tuple[bytes, bool]:
    """Return the first `limit` bytes or so of a JSON string's text, and whether that is all."""
    start, end = span.start + 1, span.end - 1
    raw = bytes(body[start : min(end, start + limit)])
    if b"\\" not in raw:
        return raw, len(raw) == end - start
    parts, at, escapes = [], 0, 0
    while at < len(raw):
        stop = min(at + _MAX_DECODED, len(raw))
        if start + stop != end:
            stop = _whole_characters(raw, stop)
        escapes += raw.count(b"\\", at, stop)
        if stop <= at or escapes > _MAX_ESCAPES:
            break
        parts.append(_decode(b'"%b"' % raw[at:stop]).encode())
        at = stop
    return b"".join(parts), start + at == end


def _whole_characters(raw: bytes, stop: int) -> int:
    """Return the last place up to `stop` at which no character of a JSON string is cut."""
    for at in range(stop - 1, max(stop - 7, -1), -1):
        if raw[at] == ord("\\"):
            before = raw[max(at - 4096, 0) : at]
            if (len(before) - len(before.rstrip(b"\\"))) % 2 == 0:
                stop = at
                break
    for back in range(1, min(4, stop + 1)):
        lead = raw[stop - back]
        if lead >= 0xC0:  # of 2, 3 or 4 bytes
            stop -= back if back < 2 + (lead >= 0xE0) + (lead >= 0xF0) else 0
            break
        if lead < 0x80:
            break
    if _HIGH_SURROGATE.search(raw, max(stop - 6, 0), stop):
        stop -= 6
    return stop


_NO_FIELDS = chat_head({}, lora="")
