"""The libraries are loaded when a grammar is wanted, and may be missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvasir_engine.grammar import libraries
from kvasir_engine.grammar.constraint import Constraint, ConstraintKind, parse_constraint
from kvasir_engine.grammar.constraint_error import ConstraintError
from kvasir_engine.grammar.libraries import Libraries, make_compiler
from kvasir_engine.grammar.matcher import fill_together
from kvasir_engine.settings import SettingsError

TINY = Path(libraries.__file__).parents[1] / "assets" / "tiny"


def test_a_core_starts_without_them() -> None:
    loaded = (
        "import sys, kvasir_engine.core.build as _;"
        "print({'xgrammar', 'llguidance'} & sys.modules.keys())"
    )
    command = [sys.executable, "-c", loaded]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "set()\n"


def test_without_both_there_is_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "find_spec", lambda name: None)
    assert make_compiler(TINY, vocab_size=9, eos_ids=[0], trust_remote_code=False) is None


@pytest.mark.slow
def test_a_models_own_vocabulary_is_constrained_by_either() -> None:
    compiler = make_compiler(TINY, vocab_size=1792, eos_ids=[0], trust_remote_code=False)
    assert compiler is not None
    asked = ('{"choice": ["yes"]}', '{"json": {"const": true}}')
    grammars: list[Any] = [
        compiler.compile(parse_constraint(each)).grammar.result(60) for each in asked
    ]
    masks = np.zeros((2, 56), dtype=np.int32)
    fill_together([grammar.matcher([0]) for grammar in grammars], masks)
    counts = [np.unpackbits(mask.view(np.uint8)).sum() for mask in masks]
    assert 0 < counts[0] <= 3, "y, ye, yes"
    assert 0 < counts[1] <= 4, "t, tr, tru, true"
    assert [type(grammar).__name__ for grammar in grammars] == ["XGrammar", "GuidanceGrammar"]
    compiler.close()


class Library:
    """Backend that refuses some texts."""

    def __init__(self, *refused: str, words: str = "its own words") -> None:
        self.compiled: list[str] = []
        self._refused = refused
        self._words = words

    def compile(self, constraint: Constraint) -> Any:
        self.compiled.append(constraint.text)
        if constraint.text in self._refused:
            raise ConstraintError(self._words)
        return self


def of(kind: ConstraintKind, text: str) -> Constraint:
    return Constraint(kind, text)


def test_what_one_library_refuses_the_other_takes() -> None:
    first, second = Library("b"), Library("c")
    both = Libraries(first, second)
    assert both.compile(of(ConstraintKind.JSON, "a")) is first
    assert both.compile(of(ConstraintKind.JSON, "b")) is second
    assert both.compile(of(ConstraintKind.REGEX, "a")) is second
    with pytest.raises(ConstraintError, match="its own words"):
        both.compile(of(ConstraintKind.GRAMMAR, "c"))
    assert first.compiled == ["a", "b"]
    with pytest.raises(ConstraintError, match="of the first"):
        Libraries(Library("b", words="of the first"), Library("b")).compile(
            of(ConstraintKind.JSON, "b")
        )


def test_a_library_that_was_chosen_has_to_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "find_spec", lambda name: None)
    sentence = "--structured-outputs-backend xgrammar needs xgrammar; install it, or use auto."
    with pytest.raises(SettingsError, match=sentence):
        make_compiler(TINY, vocab_size=9, eos_ids=[0], trust_remote_code=False, library="xgrammar")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("library", "asked", "words"),
    [
        ("xgrammar", '{"lark": "start: \\"a\\""}', "lark needs llguidance, which"),
        ("llguidance", '{"regex": "a"}', "regex needs xgrammar, which"),
    ],
)
def test_a_library_that_was_chosen_is_the_only_one(library: Any, asked: str, words: str) -> None:
    compiler = make_compiler(
        TINY, vocab_size=1792, eos_ids=[0], trust_remote_code=False, library=library
    )
    assert compiler is not None
    of_json = compiler.compile(parse_constraint('{"json": {"const": true}}')).grammar.result(60)
    assert type(of_json).__module__ == f"kvasir_engine.grammar.{library}_backend"
    left_out = f"{words} --structured-outputs-backend {library} leaves out"
    with pytest.raises(ConstraintError, match=left_out):
        compiler.compile(parse_constraint(asked)).grammar.result(60)
    compiler.close()


def test_lark_is_one_librarys_alone() -> None:
    first, second = Library("b"), Library()
    assert Libraries(first, second).compile(of(ConstraintKind.LARK, "a")) is first
    with pytest.raises(ConstraintError, match="its own words"):
        Libraries(first, second).compile(of(ConstraintKind.LARK, "b"))
    with pytest.raises(ConstraintError, match="lark needs llguidance, which is not installed"):
        Libraries(None, second).compile(of(ConstraintKind.LARK, "a"))
    assert not second.compiled


def test_one_library_is_enough_for_what_it_can() -> None:
    guidance = Libraries(Library("b"), None)
    with pytest.raises(ConstraintError, match="its own words"):
        guidance.compile(of(ConstraintKind.JSON, "b"))
    with pytest.raises(ConstraintError, match="regex needs xgrammar, which is not installed"):
        guidance.compile(of(ConstraintKind.REGEX, "a"))
    xgrammar = Library()
    assert Libraries(None, xgrammar).compile(of(ConstraintKind.JSON, "a")) is xgrammar
