"""A request's canonical text, cut into chained text blocks: how a router without a tokenizer
recognises shared prompts.

Router and engine both make the text from the parsed body alone, so they agree on it:

- chat: a JSON line of what the template is rendered with besides the messages; then for each
  message `[role, {other fields}]` as JSON and its content.
- completions: a JSON line of what else decides the prompt's tokens, then the prompt itself.

Content comes last in its message, so that a text that ends within it knows everything else about
the message; it is plain UTF-8 between bytes that UTF-8 never has, so that it needs no escaping and
no content can pass for the end of itself. LoRA and salt are in the first line: the same messages
under another adapter or salt are another chain. A conversation that goes on has its former text as
a prefix, and so its former blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any

import msgspec
import xxhash

LEVELS: tuple[tuple[int, int], ...] = ((16, 512), (28, 2048), (120, 8192))
"""Blocks and their bytes: 512 up to 8 KiB of text, 2048 up to 64 KiB, 8192 behind. What a long text
shares need not be known to the byte, and a block costs as much to look up as to hash."""
BLOCK_BYTES = LEVELS[0][1]
BLOCK_SIZES = tuple(size for count, size in LEVELS for _ in range(count))
MAX_BLOCKS = len(BLOCK_SIZES)
"""Text behind this many blocks (1 MiB) is not hashed: bounded work for any body."""
MAX_MESSAGES = 4096
"""Messages behind these are not hashed by a router, for the same reason: each costs more than its
bytes do."""

CHAT_FIELDS = (
    "tools",
    "tool_choice",
    "documents",
    "chat_template",
    "chat_template_kwargs",
    "reasoning_effort",
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
    "cache_salt",
)
"""Body fields besides the messages that may change a chat prompt's tokens or their KV."""
COMPLETION_FIELDS = ("add_special_tokens", "cache_salt")

TEXT_CONTENT = b"\xff"
"""Stand before a string content, and behind any content."""
JSON_CONTENT = b"\xfe"
"""Stand before a content of any other type, as JSON."""

_encode = msgspec.json.Encoder().encode
_HEADS = {role: _encode([role, {}]) for role in ("system", "developer", "user", "assistant")}
"""Encoded heads of the most frequent messages, by role."""

BLOCK_ENDS = (0, *accumulate(BLOCK_SIZES))
"""Bytes of text that so many leading blocks hold."""


def chat_pieces(body: Mapping[str, Any], *, lora: str = "") -> list[bytes]:
    """The canonical text of a chat body: its first line and one piece a message.

    Takes any parsed JSON; whether it is a valid body is the engine's to say.
    """
    pieces = [_first_line("chat", body, CHAT_FIELDS, lora)]
    messages = body.get("messages")
    if isinstance(messages, list):
        pieces += [b"".join(_message_parts(message)) for message in messages]
    return pieces


def chat_head(fields: Mapping[str, Any], *, lora: str = "") -> bytes:
    """The first piece of a chat body whose CHAT_FIELDS are `fields`."""
    return _first_line("chat", fields, CHAT_FIELDS, lora)


def chat_text(fields: Mapping[str, Any], messages: Any, *, lora: str = "") -> bytes:
    """The joined `chat_pieces` of a body whose CHAT_FIELDS are `fields`, up to MAX_MESSAGES of its
    messages: its blocks are the leading ones of the whole text."""
    parts = [_first_line("chat", fields, CHAT_FIELDS, lora)]
    if isinstance(messages, list):
        for message in messages if len(messages) <= MAX_MESSAGES else messages[:MAX_MESSAGES]:
            parts += _message_parts(message)
    return b"".join(parts)


def completion_pieces(body: Mapping[str, Any], prompt: str, *, lora: str = "") -> list[bytes]:
    """The canonical text of one string prompt of a completion body: two pieces."""
    first = _first_line("completion", body, COMPLETION_FIELDS, lora)
    return [first, _utf8(prompt)]


def chain_hashes(pieces: Sequence[bytes]) -> list[int]:
    """`text_hashes` of the joined pieces."""
    return text_hashes(b"".join(pieces))


def text_hashes(text: bytes) -> list[int]:
    """The chained 64-bit xxh3 of every full block of the text.

    A block's hash is seeded with that of the block before, so it stands for all the text up to its
    end.
    """
    # Routers do this for every request. Compiled, numbers of 64 bits are slower than any object.
    digest: Any = xxhash.xxh3_64_intdigest
    hashes: list[Any] = []
    parent: Any = 0
    at, size = 0, len(text)
    for count, each in LEVELS:
        last = min(at + count * each, size)
        while at + each <= last:
            parent = digest(text[at : at + each], parent)
            hashes.append(parent)
            at += each
        if at + each > size:
            break
    return hashes


def content_start(piece: bytes, content: str) -> int:
    """Return the byte at which a string content begins in its message's piece; it ends one byte
    before it."""
    return len(piece) - len(TEXT_CONTENT) - len(_utf8(content))


def _first_line(kind: str, body: Mapping[str, Any], fields: Sequence[str], lora: str) -> bytes:
    given = {}
    for name in fields if body else ():
        value = body.get(name)
        if value is not None and value != [] and value != {}:
            given[name] = value
    if "tools" not in given or given.get("tool_choice") == "auto":
        given.pop("tool_choice", None)  # the default
    return _line(kind, lora, given) if given else _plain_line(kind, lora)


def _line(kind: str, lora: str, given: Mapping[str, Any]) -> bytes:
    return _encode([kind, lora, given]) + b"\n"


@lru_cache(maxsize=1024)
def _plain_line(kind: str, lora: str) -> bytes:
    return _line(kind, lora, {})


def _message_parts(message: Any) -> tuple[bytes, ...]:
    if not isinstance(message, dict):
        return JSON_CONTENT, _encode(message), TEXT_CONTENT
    role, content = message.get("role"), message.get("content")
    if len(message) == 2 and type(content) is str and type(role) is str:
        head = _HEADS.get(role) or _encode([role, {}])
        return head, TEXT_CONTENT, content.encode("utf-8", "surrogatepass"), TEXT_CONTENT
    others = {key: value for key, value in message.items() if key not in ("role", "content")}
    head = _encode([role, others])
    if isinstance(content, str):
        return head, TEXT_CONTENT, _utf8(content), TEXT_CONTENT
    return head, JSON_CONTENT, _encode(content), TEXT_CONTENT


def message_head(message: Mapping[str, Any]) -> bytes:
    """The piece of a message up to its content, which may be any."""
    others = {key: value for key, value in message.items() if key not in ("role", "content")}
    role = message.get("role")
    return (not others and type(role) is str and _HEADS.get(role)) or _encode([role, others])


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
