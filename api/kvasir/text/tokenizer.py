"""A model directory's tokenizer, read with the `tokenizers` library alone."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend
from tokenizers import decoders

from kvasir.text.json_files import TokenizerError, read_json
from kvasir.text.tokenizer_conversion import converted_tokenizer_file

SPECIAL_TOKEN_NAMES = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
_BYTE_FALLBACK = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_METASPACE = "▁"


def _byte_level_alphabet() -> dict[str, int]:
    """GPT-2's table of printable characters that stand for the 256 bytes, inverted."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    table = {chr(byte): byte for byte in printable}
    table.update({chr(256 + i): byte for i, byte in enumerate(others)})
    return table


_BYTE_OF_CHAR = _byte_level_alphabet()


class Tokenizer:
    """Text to token ids and back.

    Which special tokens an encoding gets (BOS, EOS) is what tokenizer.json's post-processor says.
    The special tokens' names come from tokenizer_config.json and special_tokens_map.json.
    """

    def __init__(self, backend: Backend, special_tokens: dict[str, str]) -> None:
        self.backend = backend
        self.special_tokens = special_tokens
        backend.no_padding()
        backend.no_truncation()

    @classmethod
    def load(cls, directory: Path | str, *, trust_remote_code: bool = False) -> Tokenizer:
        """Read `directory`; one without tokenizer.json is converted once and cached.

        Raises TokenizerError with one sentence when there is no tokenizer or it does not parse.
        """
        directory = Path(directory)
        path = directory / "tokenizer.json"
        if not path.is_file():
            path = converted_tokenizer_file(directory, trust_remote_code=trust_remote_code)
        try:
            backend = Backend.from_file(str(path))
        except Exception as error:  # the library raises plain Exception
            raise TokenizerError(f"{path} is not a readable tokenizer.json: {error}.") from error
        return cls(backend, read_special_tokens(directory))

    @property
    def knows_text(self) -> bool:
        """False for a stand-in that has no vocabulary."""
        return True

    @cached_property
    def vocab_size(self) -> int:
        """Number of ids, added tokens included: one above the largest id."""
        vocab = self.backend.get_vocab(with_added_tokens=True)
        return max(vocab.values(), default=-1) + 1

    @cached_property
    def longest_token_chars(self) -> int:
        """Characters of the longest token: bounds how few tokens a text can have."""
        return max((len(token) for token in self.backend.get_vocab(True)), default=1)

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Ids that `skip_special_tokens` leaves out of the text."""
        added = self.backend.get_added_tokens_decoder()
        return frozenset(token_id for token_id, token in added.items() if token.special)

    def special_id(self, name: str) -> int | None:
        """The id of a special token by its name ("eos_token"), None when the model has none."""
        token = self.special_tokens.get(name)
        return None if token is None else self.backend.token_to_id(token)

    def token(self, token_id: int) -> str | None:
        """Return how the vocabulary spells a token; None for an id that it lacks."""
        return self.backend.id_to_token(token_id) if 0 <= token_id < 2**32 else None

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`. Raises ValueError for text that is not valid Unicode."""
        try:
            # The batch form is the one that releases the interpreter lock while it works.
            encoding = self.backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        except (UnicodeEncodeError, TypeError) as error:
            raise ValueError(
                "the text holds a lone surrogate, which is not valid Unicode"
            ) from error
        return encoding[0].ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of a whole sequence."""
        # The batch form is the one that releases the interpreter lock while it works.
        [text] = self.backend.decode_batch([token_ids], skip_special_tokens=skip_special_tokens)
        return text

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that one token adds to a text: they may be a part of a character.

        Ids outside of the vocabulary (a model may have padded rows) give b"".
        """
        cached = self._token_bytes.get(token_id)
        if cached is None:
            cached = self._token_bytes[token_id] = self._make_token_bytes(token_id)
        return cached

    def token_text(self, token_id: int) -> str:
        """Return one token as a log-probability entry shows it; parts of a character become
        U+FFFD."""
        return self.token_bytes(token_id).decode("utf-8", "replace")

    @cached_property
    def _token_bytes(self) -> dict[int, bytes]:
        """Bounded by the vocabulary: `_make_token_bytes` refuses no id, but ids come from it."""
        return {}

    @cached_property
    def _added_ids(self) -> frozenset[int]:
        return frozenset(self.backend.get_added_tokens_decoder())

    @cached_property
    def byte_level(self) -> bool:
        """True when a text is the plain concatenation of its tokens' bytes (GPT-2's scheme)."""
        return isinstance(self.backend.decoder, decoders.ByteLevel)

    @cached_property
    def _byte_alphabet(self) -> bool:
        """True when tokens are spelt in GPT-2's alphabet, whatever else their decoder does."""
        return "ByteLevel(" in repr(self.backend.decoder)

    def _make_token_bytes(self, token_id: int) -> bytes:
        token = self.backend.id_to_token(token_id)
        if token is None:
            return b""
        if self._byte_alphabet:
            if all(char in _BYTE_OF_CHAR for char in token):
                return bytes(_BYTE_OF_CHAR[char] for char in token)
            return token.encode()
        if token_id in self._added_ids:
            return token.encode()
        if match := _BYTE_FALLBACK.fullmatch(token):
            return bytes([int(match[1], 16)])
        return token.replace(_METASPACE, " ").encode()


def read_special_tokens(directory: Path) -> dict[str, str]:
    """The named special tokens of a model directory, as the chat template sees them."""
    named: dict[str, str] = {}
    for file in ("special_tokens_map.json", "tokenizer_config.json"):
        content: dict[str, Any] = read_json(directory / file)
        for name in SPECIAL_TOKEN_NAMES:
            value = content.get(name)
            if isinstance(value, dict):
                value = value.get("content")
            if isinstance(value, str):
                named[name] = value
    return named


def eos_token_ids(directory: Path | str, overrides: Mapping[str, Any] | None = None) -> list[int]:
    """The ids that end a sequence: those that config.json's `overrides` name, else
    generation_config.json's, else config.json's (or those of its text part), else none."""
    directory = Path(directory)
    config = read_json(directory / "config.json")
    for source in (
        overrides or {},
        read_json(directory / "generation_config.json"),
        config,
        config.get("text_config") or {},
    ):
        value = source.get("eos_token_id")
        if isinstance(value, int):
            return [value]
        if isinstance(value, list) and value:
            return [int(token) for token in value]
    return []
