"""The libraries of grammars, imported when the first one is compiled: that takes seconds, and they
are not there where only the engine's core is installed.

llguidance compiles JSON schemas, whose masks cost it less; what it refuses, and everything else, is
xgrammar's.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from kvasir.text.tokenizer import Tokenizer
from kvasir_engine.grammar.compiler import Backend, GrammarCompiler, SizedGrammar
from kvasir_engine.grammar.constraint import Constraint, ConstraintKind
from kvasir_engine.grammar.constraint_error import ConstraintError


class Libraries:
    """Backend of whichever libraries are there."""

    def __init__(self, of_json: Backend | None, of_all: Backend | None) -> None:
        """`of_json` comes first for JSON schemas."""
        self._of_json = of_json
        self._of_all = of_all

    def compile(self, constraint: Constraint) -> SizedGrammar:
        """Backend.compile."""
        if self._of_json is not None and constraint.kind is ConstraintKind.JSON:
            try:
                return self._of_json.compile(constraint)
            except ConstraintError:
                if self._of_all is None:
                    raise
        if self._of_all is None:
            raise ConstraintError(f"{constraint.kind} needs xgrammar, which is not installed")
        return self._of_all.compile(constraint)


def make_compiler(
    tokenizer_dir: Path, *, vocab_size: int, eos_ids: Sequence[int], trust_remote_code: bool
) -> GrammarCompiler | None:
    """Return a compiler for a model's vocabulary; None where both libraries are missing."""
    has_guidance, has_xgrammar = (find_spec(name) is not None for name in LIBRARIES)
    if not has_guidance and not has_xgrammar:
        return None

    def make_backend() -> Backend:
        tokenizer = Tokenizer.load(tokenizer_dir, trust_remote_code=trust_remote_code)
        of_json = _guidance(tokenizer, vocab_size, eos_ids) if has_guidance else None
        of_all = _xgrammar(tokenizer, vocab_size, eos_ids) if has_xgrammar else None
        return Libraries(of_json, of_all)

    return GrammarCompiler(make_backend)


LIBRARIES = ("llguidance", "xgrammar")


def _guidance(tokenizer: Tokenizer, vocab_size: int, eos_ids: Sequence[int]) -> Backend:
    from kvasir_engine.grammar.llguidance_backend import GuidanceBackend

    return GuidanceBackend(tokenizer, vocab_size, eos_ids)


def _xgrammar(tokenizer: Tokenizer, vocab_size: int, eos_ids: Sequence[int]) -> Backend:
    from kvasir_engine.grammar.xgrammar_backend import XGrammarBackend

    return XGrammarBackend(tokenizer, vocab_size, eos_ids)
