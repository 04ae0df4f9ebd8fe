"""The xgrammar library, imported when the first grammar is compiled: it takes seconds, and is not
there where only the engine's core is installed."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from kvasir.text.tokenizer import Tokenizer
from kvasir_engine.grammar.compiler import Backend, GrammarCompiler
from kvasir_engine.grammar.matcher import GrammarMatcher
from kvasir_engine.step_plan import Int32Array


def make_compiler(
    tokenizer_dir: Path, *, vocab_size: int, eos_ids: Sequence[int], trust_remote_code: bool
) -> GrammarCompiler | None:
    """Return a compiler for a model's vocabulary; None where the library is missing."""
    if find_spec("xgrammar") is None:
        return None

    def make_backend() -> Backend:
        from kvasir_engine.grammar.xgrammar_backend import XGrammarBackend

        tokenizer = Tokenizer.load(tokenizer_dir, trust_remote_code=trust_remote_code)
        return XGrammarBackend(tokenizer, vocab_size, eos_ids)

    return GrammarCompiler(make_backend)


def fill_masks(matchers: Sequence[GrammarMatcher], masks: Int32Array) -> None:
    """FillMasks."""
    from kvasir_engine.grammar import xgrammar_backend

    xgrammar_backend.fill_masks(matchers, masks)
