"""Tokenizers of both kinds, which merge differently."""

from __future__ import annotations

import re

import pytest
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from kvasir.text.tokenizer import Tokenizer

SPECIAL = ["<|start|>", "<|end|>", "<s>"]


PROSE = re.split(
    " ",
    "The engine reads a prompt and writes an answer. A router sends the prompt to the engine that "
    "already holds its cache; the cache is made of blocks, and each block has a hash. Long system "
    "prompts are shared by many users, questions are not. <think> maybe </think> In 2024, 12345 "
    "requests came from Zürich, São Paulo and 東京: they asked about keys, values and queues.\n\n"
    "\tIndented text, code like x = f(y)[0] + 1, and 'quoted' words don't break anything.\n",
)


def byte_level() -> Tokenizer:
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return trained(backend)


def whole_text() -> Tokenizer:
    """BPE without pre-tokenisation, spaces as ▁, as in Llama 2 and Gemma: merges go anywhere."""
    backend = Backend(models.BPE(byte_fallback=True))
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback()])
    return trained(backend)


def trained(backend: Backend) -> Tokenizer:
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator([" ".join(PROSE)] * 2, trainer)
    backend.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    return Tokenizer(backend, {})


@pytest.fixture(scope="session")
def tokenizers() -> dict[str, Tokenizer]:
    """One of each kind, trained on the same text."""
    return {"byte-level": byte_level(), "whole-text": whole_text()}
