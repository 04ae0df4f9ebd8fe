"""What the router reads of a request's body, in one pass."""

from typing import Any

import msgspec


class Envelope(msgspec.Struct):
    """The fields that the router looks at. Only the model's type is checked: the rest is the
    engine's to refuse."""

    model: str | None = None
    stream: Any = False
    stream_options: Any = None
    n: Any = 1
    max_tokens: Any = None
    max_completion_tokens: Any = None
    user: Any = None
    priority: Any = None

    # The prompt and what else decides its tokens (kvasir.text_chain). They are decoded with the
    # others: a body's strings have to be gone through anyway, and a second time would cost as much.
    messages: Any = None
    prompt: Any = None
    tools: Any = None
    tool_choice: Any = None
    documents: Any = None
    chat_template: Any = None
    chat_template_kwargs: Any = None
    reasoning_effort: Any = None
    add_generation_prompt: Any = None
    continue_final_message: Any = None
    add_special_tokens: Any = None
    cache_salt: Any = None


decode_envelope = msgspec.json.Decoder(Envelope).decode
"""Raises msgspec.ValidationError when `model` is no string, DecodeError when it is no JSON."""
