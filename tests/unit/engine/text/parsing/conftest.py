"""Tokenizers with and without the markers as special tokens."""

from __future__ import annotations

import pytest
from support.engine_server import byte_tokenizer

from kvasir.text.tokenizer import Tokenizer
from kvasir_engine.text.parsing.formats import HARMONY_TOOLS, TOOL_FORMATS


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    """One token a byte; no marker is a token."""
    return byte_tokenizer()


@pytest.fixture(scope="session")
def marked_tokenizer() -> Tokenizer:
    """One token a byte; the markers of mistral and openai are special tokens."""
    made = byte_tokenizer()
    taken = [each for each in TOOL_FORMATS if each.name in ("mistral", HARMONY_TOOLS)]
    made.backend.add_special_tokens([text for each in taken for text in each.markers])
    return made
