"""xgrammar in other processes: the same grammars, and an end to those that take too long."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvasir_engine.grammar.constraint import parse_constraint
from kvasir_engine.grammar.constraint_error import ConstraintError
from kvasir_engine.grammar.isolation.isolated_backend import CompileServers, IsolatedBackend
from kvasir_engine.grammar.xgrammar_backend import Vocabulary

from ..walks import BYTES, END, ByteTokenizer, matcher_of, takes

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def backend() -> Iterator[IsolatedBackend]:
    made = IsolatedBackend(Vocabulary.of(ByteTokenizer(), BYTES + 1, [END]))  # type: ignore[arg-type]
    yield made
    made.close()


@pytest.mark.parametrize(
    ("asked", "taken", "refused"),
    [
        ({"regex": r"[a-c]{2}\d"}, ["ab1"], ["ab", "ab12"]),
        ({"choice": ["yes", 'n"o\\\n']}, ["yes", 'n"o\\\n'], ["no"]),
        ({"grammar": 'root ::= "(" root ")" | "é"'}, ["é", "((é))"], ["(é"]),
        ({"json": {"type": "string", "maxLength": 2}}, ['"éa"'], ['"abc"', '"\t"']),
    ],
)
def test_grammars_are_those_of_the_library(
    backend: IsolatedBackend, asked: Any, taken: list[str], refused: list[str]
) -> None:
    assert [text for text in taken if not takes(backend, asked, text)] == []
    assert [text for text in refused if takes(backend, asked, text)] == []


SLOW = {
    "type": "object",
    "properties": {f"k{i}": {"type": "string"} for i in range(900)},
    "minProperties": 450,
    "maxProperties": 451,
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"json": SLOW}, "takes longer than 1 s to compile"),
        ({"regex": "("}, "Regex parsing error"),
        ({"grammar": "root ::= root"}, "no text has this form"),
    ],
)
def test_what_cannot_be_compiled_is_said(backend: IsolatedBackend, asked: Any, words: str) -> None:
    with pytest.raises(ConstraintError, match=words):
        backend.compile(parse_constraint(json.dumps(asked)))


def test_processes_that_died_are_started_again(backend: IsolatedBackend) -> None:
    asked = parse_constraint('{"regex": "a"}')
    backend.close()
    with pytest.raises(RuntimeError, match="has ended"):
        backend.compile(asked)
    assert matcher_of(backend, {"regex": "a"}).accept(ord("a"))


def test_processes_that_fork_have_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "2")
    vocabulary = Vocabulary.of(ByteTokenizer(), BYTES + 1, [END])  # type: ignore[arg-type]
    servers = CompileServers(vocabulary)
    try:
        servers.wait_ready()
        tasks = Path(f"/proc/{servers.process.pid}/task")
        assert len(list(tasks.iterdir())) == 1
    finally:
        servers.close()
