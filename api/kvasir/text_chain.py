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

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import xxhash

BLOCK_BYTES = 512
MAX_BLOCKS = 2048
"""Text behind this many blocks (1 MiB) is not hashed: bounded work for any body."""

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

_TEXT = b"\xff"
"""Stands before and behind a string content."""
_JSON = b"\xfe"
"""Stands before a content of any other type, as JSON."""

_encode = msgspec.json.Encoder().encode
_each_block = struct.Struct(f"{BLOCK_BYTES}s").iter_unpack


def chat_pieces(body: Mapping[str, Any], *, lora: str = "") -> list[bytes]:
    """The canonical text of a chat body: its first line and one piece a message.

    Takes any parsed JSON; whether it is a valid body is the engine's to say.
    """
    pieces = [_first_line("chat", body, CHAT_FIELDS, lora)]
    messages = body.get("messages")
    if isinstance(messages, list):
        pieces += [_message_piece(message) for message in messages]
    return pieces


def completion_pieces(body: Mapping[str, Any], prompt: str, *, lora: str = "") -> list[bytes]:
    """The canonical text of one string prompt of a completion body: two pieces."""
    first = _first_line("completion", body, COMPLETION_FIELDS, lora)
    return [first, _utf8(prompt)]


def chain_hashes(pieces: Sequence[bytes]) -> list[int]:
    """The chained 64-bit xxh3 of every full block of BLOCK_BYTES of the joined pieces.

    A block's hash is seeded with that of the block before, so it stands for all the text up to its
    end.
    """
    text = b"".join(pieces)
    end = min(len(text) // BLOCK_BYTES, MAX_BLOCKS) * BLOCK_BYTES
    digest = xxhash.xxh3_64_intdigest
    parent = 0
    # Routers do this for every request: taking the blocks out in C halves its time
    return [parent := digest(block, parent) for (block,) in _each_block(memoryview(text)[:end])]


def content_start(piece: bytes, content: str) -> int:
    """Where in its message's piece a string content begins, bytes; it ends one byte before it."""
    return len(piece) - len(_TEXT) - len(_utf8(content))


def _first_line(kind: str, body: Mapping[str, Any], fields: Sequence[str], lora: str) -> bytes:
    given = {}
    for name in fields:
        value = body.get(name)
        if value is not None and value != [] and value != {}:
            given[name] = value
    if "tools" not in given:
        given.pop("tool_choice", None)
    return _encode([kind, lora, given]) + b"\n"


def _message_piece(message: Any) -> bytes:
    if not isinstance(message, dict):
        return b"".join((_JSON, _encode(message), _TEXT))
    content = message.get("content")
    others = {key: value for key, value in message.items() if key not in ("role", "content")}
    head = _encode([message.get("role"), others])
    if isinstance(content, str):
        return b"".join((head, _TEXT, _utf8(content), _TEXT))
    return b"".join((head, _JSON, _encode(content), _TEXT))


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
