"""One request as routing and admission see it: its body is looked into once, and only as far as
whoever asks needs."""

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

import msgspec

from kvasir.wire.input_error import InputError
from kvasir.wire.messages_chat.messages_fields import MESSAGES_FIELDS, chat_of_messages
from kvasir.wire.responses_chat.chat_fields import chat_of_response
from kvasir.wire.text_chain import (
    CHAT_FIELDS,
    COMPLETION_FIELDS,
    MAX_MESSAGES,
    chat_text,
    completion_pieces,
    text_hashes,
)
from kvasir_router.wire.envelope import NOT_GIVEN, UNREAD, Envelope, is_dense
from kvasir_router.wire.http_request import Request
from kvasir_router.wire.long_bodies.body_scan import Outline
from kvasir_router.wire.long_bodies.long_messages import read_long_messages
from kvasir_router.wire.long_bodies.long_prompt import read_long_prompt, token_ids_in
from kvasir_router.wire.long_bodies.media import NONE, Media

BYTES_PER_TOKEN = 4.0
"""Length of a token in a prompt's text, until a model's answers say better."""

_MAX_ITEMS = 1 << 20
"""Bytes of a response's body that is decoded for its text; a longer one is not recognised."""

_UNREADABLE = (InputError, msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_chat_fields = attrgetter(*CHAT_FIELDS)
_NO_CHAT_FIELDS = (None,) * len(CHAT_FIELDS)


class Query:
    """A request for a known model. Everything beyond the envelope is read when first asked for."""

    def __init__(
        self, request: Request, envelope: Envelope, *, lora: str = "", media: Media = NONE
    ) -> None:
        self.request = request
        self.envelope = envelope
        self.streams = envelope.stream is True
        """True when the answer is asked for as server-sent events."""
        self.resumed = len(envelope.resume) > 0
        """True when the client goes on with a stream of its own: what it says of the cache is the
        engine's answer."""
        envelope.resume = NOT_GIVEN
        self.lora = lora
        """Adapter that the model's name stands for; empty = the model itself."""
        self.media = media
        """Images and sound in the body."""
        self.kept: Any = None
        """The `fleet.choice.Kept` made while the request waits, for the fleet alone to read."""
        self.salted = False
        """True when the router has put a tenant's `cache_salt` into the body."""
        self.keeper: Any = None
        """The `kept_responses.Keeper` of its answer, if that is to be kept."""
        self.key_id = ""
        """Id of the API key that it came with; empty = none was asked for."""
        self.to_canary = False
        """True if it is one of those that a canary of its model shall answer."""
        self._chain: Sequence[int] | None = None
        self._text_bytes = 0
        self._body: Mapping[str, Any] | None = None

    @property
    def body(self) -> Mapping[str, Any]:
        """The parsed body, which is known to be a JSON object."""
        if self._body is None:
            self._body = msgspec.json.decode(self.request.body)
        return self._body

    @property
    def chain(self) -> Sequence[int]:
        """Chained hashes of the prompt's text blocks (kvasir.wire.text_chain); empty for routes
        without a prompt of text, and for several prompts in one body."""
        if self._chain is None:
            self._chain = self._read_prompt()
        return self._chain

    @property
    def text_bytes(self) -> int:
        """Length of the prompt's text; of a body without one, a guess of what it would be. Images
        and sound count as a text of as many tokens."""
        if self._chain is None:
            self._chain = self._read_prompt()
        media = self.media
        if not media.size:
            return self._text_bytes
        return max(self._text_bytes - media.size, 0) + int(media.tokens * BYTES_PER_TOKEN)

    def _read_prompt(self) -> Sequence[int]:
        if self.request.outline is not None:
            return self._read_outline(self.request.outline)
        envelope = self.envelope
        text, prompt, messages = self._text(), envelope.prompt, envelope.messages
        if text and not (isinstance(messages, list) and len(messages) > MAX_MESSAGES):
            self._text_bytes = len(text)
        elif isinstance(prompt, list) and prompt and isinstance(prompt[0], int):
            self._text_bytes = int(len(prompt) * BYTES_PER_TOKEN)
        else:
            self._text_bytes = len(self.request.body)
        # As large as the body, and not needed again
        envelope.messages = envelope.prompt = envelope.system = None
        return text_hashes(text)

    def _read_outline(self, outline: Outline) -> Sequence[int]:
        request = self.request
        source = request.endpoint.prompt
        is_short = len(request.body) <= _MAX_ITEMS and not is_dense(request.body)
        if source == "items" and is_short:
            text = self._text_of_chat()
            self._text_bytes = len(text) or len(request.body)
            return text_hashes(text)
        if source == "system":
            prompt = read_long_messages(request.body, outline, self.lora)
        else:
            prompt = read_long_prompt(request.body, outline, source, self.lora)
        ids = token_ids_in(request.body, outline) if source == "prompt" else 0
        self._text_bytes = int(ids * BYTES_PER_TOKEN) or prompt.size
        return text_hashes(prompt.text)

    def _text(self) -> bytes:
        """The canonical text of the prompt; empty if there is none, or it is too dense or nested
        too deeply to be read."""
        if self.envelope.messages is UNREAD:
            return b""
        try:
            return self._canonical_text()
        except RecursionError:  # it was decoded with less of the stack in use
            return b""

    def _canonical_text(self) -> bytes:
        source, envelope = self.request.endpoint.prompt, self.envelope
        if source == "messages":
            given = _chat_fields(envelope)
            fields = {} if given == _NO_CHAT_FIELDS else dict(zip(CHAT_FIELDS, given, strict=True))
            return chat_text(fields, envelope.messages, lora=self.lora)
        if source in ("items", "system"):
            return self._text_of_chat()
        if source == "prompt" and isinstance(envelope.prompt, str):
            fields = {name: getattr(envelope, name) for name in COMPLETION_FIELDS}
            return b"".join(completion_pieces(fields, envelope.prompt, lora=self.lora))
        return b""

    def _text_of_chat(self) -> bytes:
        """The text of the chat that a response's or a message's body stands for."""
        try:
            if self.request.endpoint.prompt == "items":
                fields = chat_of_response(self.body).fields
            else:
                given = {name: getattr(self.envelope, name) for name in MESSAGES_FIELDS}
                fields = chat_of_messages(given).fields
        except _UNREADABLE:
            return b""
        return chat_text(fields, fields["messages"], lora=self.lora)

    def read_prompt(self) -> None:
        """Read the prompt, if that has not been done, and free what it was decoded to: a request
        that waits holds its body alone."""
        if self._chain is None:
            self._chain = self._read_prompt()
        self._body = None

    def release_body(self) -> None:
        """Free what is as large as the body, and the way to replicas: nobody asks for it again."""
        self.request.body = b""
        self.request.buffer = None
        self.request.outline = None
        self._body = None
        self.kept = None
        self.envelope.messages = self.envelope.prompt = self.envelope.system = None

    def header(self, name: bytes) -> bytes | None:
        """A forwarded header's value by its lower-case name; None if absent."""
        for line in self.request.lines:
            key, _, value = line.partition(b":")
            if key.lower() == name:
                return value.strip()
        return None
