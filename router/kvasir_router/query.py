"""One request as routing and admission see it: its body is looked into once, and only as far as
whoever asks needs."""

from array import array
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import msgspec

from kvasir.text_chain import chain_hashes, chat_pieces, completion_pieces
from kvasir_router.proxy.http import Request

BYTES_PER_TOKEN = 4.0
"""Of a prompt's text, until a model's answers say better."""


class Envelope(msgspec.Struct):
    """The small fields. Only the model's type is checked: the rest is the engine's to refuse."""

    model: str | None = None
    stream: Any = False
    n: Any = 1
    max_tokens: Any = None
    max_completion_tokens: Any = None
    user: Any = None
    priority: Any = None


decode_envelope = msgspec.json.Decoder(Envelope).decode
"""Raises msgspec.ValidationError when `model` is no string, DecodeError when it is no JSON."""


class Query:
    """A request for a known model. Everything beyond the envelope is read when first asked for."""

    def __init__(self, request: Request, envelope: Envelope, *, lora: str = "") -> None:
        self.request = request
        self.envelope = envelope
        self.lora = lora
        """Adapter that the model's name stands for; empty = the model itself."""

    @cached_property
    def body(self) -> Mapping[str, Any]:
        """The parsed body, which is known to be a JSON object."""
        parsed: dict[str, Any] = msgspec.json.decode(self.request.body)
        return parsed

    @cached_property
    def chain(self) -> "array[int]":
        """Chained hashes of the prompt's text blocks (kvasir.text_chain); empty for routes
        without a prompt of text, and for several prompts in one body."""
        if self.request.path.endswith("/chat/completions"):
            return chain_hashes(chat_pieces(self.body, lora=self.lora))
        prompt = self.body.get("prompt") if self.request.path.endswith("/completions") else None
        if isinstance(prompt, str):
            return chain_hashes(completion_pieces(self.body, prompt, lora=self.lora))
        return array("Q")

    @property
    def streams(self) -> bool:
        """Whether the answer is asked for as server-sent events."""
        return self.envelope.stream is True

    def header(self, name: bytes) -> bytes | None:
        """A forwarded header's value by its lower-case name; None if absent."""
        for line in self.request.lines:
            key, _, value = line.partition(b":")
            if key.lower() == name:
                return value.strip()
        return None
