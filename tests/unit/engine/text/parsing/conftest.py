"""Parsers as an answer makes them, over a tokenizer that has the markers as special tokens."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.engine_server import byte_tokenizer

from kvasir.text.tokenizer import Tokenizer
from kvasir_engine.text.parsing.formats import HARMONY_TOOLS, REASONING_FORMATS, TOOL_FORMATS
from kvasir_engine.text.parsing.message_parser import Parsing

Choose = Callable[..., Parsing]
MARKERS = {text for each in (*TOOL_FORMATS, *REASONING_FORMATS) for text in each.markers}


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


@pytest.fixture(scope="session")
def parsing(tokenizer: Tokenizer) -> Choose:
    """parsing(tools, reasoning): by the flags' values."""

    def choose(tools: str = "none", reasoning: str = "none") -> Parsing:
        return Parsing.choose(tokenizer, None, tools=tools, reasoning=reasoning)

    return choose
