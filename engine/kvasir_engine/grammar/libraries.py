"""The libraries of grammars, imported when the first one is compiled: that takes seconds, and they
are not there where only the engine's core is installed.

llguidance compiles JSON schemas, whose masks cost it less, and Lark, which only it reads; schemas
that it refuses, and everything else, are xgrammar's.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from kvasir.text.tokenizer import Tokenizer
from kvasir_engine.grammar.compiler import Backend, GrammarCompiler, SizedGrammar
from kvasir_engine.grammar.constraint import Constraint, ConstraintKind
from kvasir_engine.grammar.constraint_error import ConstraintError
from kvasir_engine.settings import GrammarLibrary, SettingsError

FLAG = "--structured-outputs-backend"
_MODULES = ("llguidance", "xgrammar")


class Libraries:
    """Backend of whichever libraries are there."""

    def __init__(
        self,
        guidance: Backend | None,
        xgrammar: Backend | None,
        *,
        missing: str = "is not installed",
    ) -> None:
        """`missing`: why one of them is not there."""
        self._guidance = guidance
        self._xgrammar = xgrammar
        self._missing = missing

    def compile(self, constraint: Constraint) -> SizedGrammar:
        """Backend.compile."""
        kind = constraint.kind
        if kind is ConstraintKind.LARK:
            return self._there(self._guidance, kind, "llguidance").compile(constraint)
        if kind is ConstraintKind.JSON and self._guidance is not None:
            try:
                return self._guidance.compile(constraint)
            except ConstraintError:
                # Its reason is the one to tell: it reads schemas the most strictly.
                if (instead := self._instead(constraint)) is None:
                    raise
                return instead
        return self._there(self._xgrammar, kind, "xgrammar").compile(constraint)

    def _instead(self, constraint: Constraint) -> SizedGrammar | None:
        """Return xgrammar's grammar of a schema that the other one refuses."""
        try:
            return self._there(self._xgrammar, constraint.kind, "xgrammar").compile(constraint)
        except ConstraintError:
            return None

    def _there(self, backend: Backend | None, kind: ConstraintKind, name: str) -> Backend:
        if backend is None:
            raise ConstraintError(f"{kind} needs {name}, which {self._missing}")
        return backend


def make_compiler(
    tokenizer_dir: Path,
    *,
    vocab_size: int,
    eos_ids: Sequence[int],
    trust_remote_code: bool,
    library: GrammarLibrary = "auto",
) -> GrammarCompiler | None:
    """Return a compiler for a model's vocabulary; None where all libraries are missing. Raises
    SettingsError where the one that was chosen is."""
    there = [name for name in _MODULES if library in ("auto", name) and find_spec(name) is not None]
    if not there:
        if library != "auto":
            raise SettingsError(f"{FLAG} {library} needs {library}; install it, or use auto.")
        return None

    def make_backend() -> Backend:
        tokenizer = Tokenizer.load(tokenizer_dir, trust_remote_code=trust_remote_code)
        guidance = _guidance(tokenizer, vocab_size, eos_ids) if "llguidance" in there else None
        xgrammar = _xgrammar(tokenizer, vocab_size, eos_ids) if "xgrammar" in there else None
        missing = "is not installed" if library == "auto" else f"{FLAG} {library} leaves out"
        return Libraries(guidance, xgrammar, missing=missing)

    return GrammarCompiler(make_backend)


def _guidance(tokenizer: Tokenizer, vocab_size: int, eos_ids: Sequence[int]) -> Backend:
    from kvasir_engine.grammar.llguidance_backend import GuidanceBackend

    return GuidanceBackend(tokenizer, vocab_size, eos_ids)


def _xgrammar(tokenizer: Tokenizer, vocab_size: int, eos_ids: Sequence[int]) -> Backend:
    from kvasir_engine.grammar.isolation.isolated_backend import IsolatedBackend
    from kvasir_engine.grammar.xgrammar_backend import Vocabulary

    return IsolatedBackend(Vocabulary.of(tokenizer, vocab_size, eos_ids))
