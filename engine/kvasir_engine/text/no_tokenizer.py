"""Stand-in for the tokenizer of an engine that was started without one: ids in, ids out."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer as Backend
from tokenizers import models

from kvasir.text.tokenizer import Tokenizer
from kvasir_engine.sampling_params import ParameterError


class NoTokenizer(Tokenizer):
    """Refuses text, and gives tokens none."""

    def __init__(self) -> None:
        super().__init__(Backend(models.BPE()), {})

    @property
    def knows_text(self) -> bool:
        """See Tokenizer."""
        return False

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Raise ParameterError."""
        raise needs_text("prompt")

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Raise ParameterError."""
        raise needs_text("text")


def needs_text(param: str) -> ParameterError:
    """Return the error of a parameter that is text, or asks for it."""
    return ParameterError(
        param,
        f"{param} needs a tokenizer, and the engine was started with --skip-tokenizer-init; use "
        "token ids, or start it without that flag.",
    )
