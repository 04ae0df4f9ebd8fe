"""The prompt of a long body of Anthropic's Messages API, read from its outline: the leading part of
the canonical text of the chat that it stands for."""

import msgspec

from kvasir.wire.input_error import InputError
from kvasir.wire.messages_chat.messages_fields import MESSAGES_FIELDS, chat_of_messages
from kvasir.wire.text_chain import chat_text
from kvasir_router.wire.long_bodies.body_scan import BodyError, Outline
from kvasir_router.wire.long_bodies.long_prompt import LongPrompt, read_fields

MAX_DECODED = 1 << 20
"""Bytes of messages that are decoded: about as many as are hashed."""
MAX_VALUES = 24 * 1024
"""JSON values of messages that are decoded: each may take 130 bytes."""

_FIELDS = tuple(name for name in MESSAGES_FIELDS if name != "messages")
_decode_messages = msgspec.json.Decoder(list[object], float_hook=float).decode
_UNREADABLE = (
    InputError,
    BodyError,
    msgspec.MsgspecError,
    UnicodeDecodeError,
    RecursionError,
)


def read_long_messages(body: bytes, outline: Outline, lora: str) -> LongPrompt:
    """Return the prompt of a long body. Its `size` is the body's where not all of it is read."""
    text, whole = b"", False
    try:
        given: dict[str, object] = read_fields(body, outline, _FIELDS)
        messages, whole = _leading_messages(body, outline)
        chat = chat_of_messages({**given, "messages": messages}).fields
        text = chat_text(chat, chat["messages"], lora=lora)
    except _UNREADABLE:
        whole = False
    return LongPrompt(text, len(text) if whole else len(body))


def _leading_messages(body: bytes, outline: Outline) -> tuple[list[object], bool]:
    """Return the messages up to a bound, and whether these are all. Where they are not, they end
    with a user's: an assistant's would be one that is to be continued."""
    begin = end = values = 0
    whole = True
    for each in outline.elements():
        begin = begin or each.start
        values += each.values
        if each.end - begin > MAX_DECODED or values > MAX_VALUES:
            whole = False
            break
        end = each.end
    whole = whole and not body[end : end + 64].lstrip().startswith(b",")
    messages = _decode_messages(b"[%b]" % body[begin:end])
    while not whole and messages and not _is_users(messages[-1]):
        messages.pop()
    return messages, whole


def _is_users(message: object) -> bool:
    return isinstance(message, dict) and message.get("role") == "user"
