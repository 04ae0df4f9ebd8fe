"""The library is loaded when a grammar is wanted, and may be missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvasir_engine.grammar import lazy_xgrammar
from kvasir_engine.grammar.constraint import parse_constraint
from kvasir_engine.grammar.lazy_xgrammar import fill_masks, make_compiler

TINY = Path(lazy_xgrammar.__file__).parents[1] / "assets" / "tiny"


def test_a_core_starts_without_the_library() -> None:
    loaded = "import sys, kvasir_engine.core.build; print('xgrammar' in sys.modules)"
    command = [sys.executable, "-c", loaded]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "False\n"


def test_without_the_library_there_is_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lazy_xgrammar, "find_spec", lambda name: None)
    assert make_compiler(TINY, vocab_size=9, eos_ids=[0], trust_remote_code=False) is None


@pytest.mark.slow
def test_a_models_own_vocabulary_is_constrained() -> None:
    compiler = make_compiler(TINY, vocab_size=1792, eos_ids=[0], trust_remote_code=False)
    assert compiler is not None
    grammar: Any = compiler.compile(parse_constraint('{"choice": ["yes"]}')).grammar.result(60)
    masks = np.zeros((1, 56), dtype=np.int32)
    fill_masks([grammar.matcher([0])], masks)
    assert 0 < np.unpackbits(masks.view(np.uint8)).sum() <= 3, "y, ye, yes"
    compiler.close()
