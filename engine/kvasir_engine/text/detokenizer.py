"""Token ids to text, one at a time."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Protocol

from kvasir.text.tokenizer import Tokenizer

PROMPT_CONTEXT_TOKENS = 8
_MAX_PENDING_TOKENS = 16
_WINDOW_TOKENS = 8  # more than a character's 4 bytes
_INCOMPLETE = "\ufffd"


class Detokenizer(Protocol):
    """Give text as soon as it is certain: a character split over tokens waits for its last byte.

    The pieces, with `flush` at the end, join to what decoding all ids at once gives. What comes
    out depends on the ids alone, not on how they were grouped, so that a resumed sample that is
    fed its old ids stands where it stood.
    """

    def push(self, token_id: int) -> str:
        """The text that became certain with this token, often empty."""
        ...

    def flush(self) -> str:
        """The rest, when no token follows: an incomplete character comes out as U+FFFD."""
        ...


def make_detokenizer(
    tokenizer: Tokenizer,
    *,
    prompt_token_ids: Sequence[int] = (),
    skip_special_tokens: bool = True,
) -> Detokenizer:
    """The detokenizer for `tokenizer`. The last tokens of the prompt are context, so that the
    first token continues it as it would in one text."""
    kind = ByteDetokenizer if tokenizer.byte_level else WindowDetokenizer
    context = prompt_token_ids[-PROMPT_CONTEXT_TOKENS:]
    return kind(tokenizer, context, skip_special_tokens=skip_special_tokens)


class ByteDetokenizer:
    """Detokenizer for byte-level tokenizers: tokens are bytes, and only UTF-8 is left to decode."""

    __slots__ = ("_bytes_of", "_decode", "_skip")

    def __init__(
        self, tokenizer: Tokenizer, context: Sequence[int], *, skip_special_tokens: bool
    ) -> None:
        self._bytes_of = tokenizer.token_bytes
        self._skip = tokenizer.special_ids if skip_special_tokens else frozenset[int]()
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        for token_id in context:
            self.push(token_id)

    def push(self, token_id: int) -> str:
        """See Detokenizer."""
        return "" if token_id in self._skip else self._decode(self._bytes_of(token_id))

    def flush(self) -> str:
        """See Detokenizer."""
        return self._decode(b"", True)


class WindowDetokenizer:
    """Detokenizer for every other tokenizer: decodes the last tokens again with each new one.

    The context keeps the first token's leading space, which a decoder would strip at the start of
    a text.
    """

    __slots__ = ("_context", "_decode", "_shown", "_skip", "_skip_special", "_window")

    def __init__(
        self, tokenizer: Tokenizer, context: Sequence[int], *, skip_special_tokens: bool
    ) -> None:
        self._decode = tokenizer.backend.decode
        self._skip_special = skip_special_tokens
        self._skip = tokenizer.special_ids if skip_special_tokens else frozenset[int]()
        self._window = list(context)
        # `_window` = `_context` tokens whose text is out already, then the pending ones.
        self._context = len(self._window)
        self._shown = self._text() if self._window else ""

    def push(self, token_id: int) -> str:
        """See Detokenizer."""
        if token_id in self._skip:
            return ""
        self._window.append(token_id)
        text = self._text()
        if text.endswith(_INCOMPLETE):
            # A long run of invalid bytes must not wait for ever: only its last one can change.
            return self._slide(text, keep_last=True) if self._overdue() else ""
        new = text[len(self._shown) :]
        if new:
            del self._window[: self._context]
            self._context = len(self._window)
            self._shown = self._text()
        elif self._overdue():
            return self._slide(text, keep_last=False)
        return new

    def flush(self) -> str:
        """See Detokenizer."""
        if len(self._window) == self._context:
            return ""
        text = self._text()
        new = text[len(self._shown) :]
        self._context = len(self._window)
        self._shown = text
        return new

    def _text(self) -> str:
        return self._decode(self._window, skip_special_tokens=self._skip_special)

    def _overdue(self) -> bool:
        return len(self._window) - self._context >= _MAX_PENDING_TOKENS

    def _slide(self, text: str, *, keep_last: bool) -> str:
        """Give out all but the last character and go on with a short window."""
        end = len(text) - 1 if keep_last else len(text)
        new = text[len(self._shown) : end]
        del self._window[:-_WINDOW_TOKENS]
        self._context = 0
        tail = self._text()
        self._shown = tail[:-1] if keep_last else tail
        return new
