"""CPU time of grammars' masks and of compiling, with a vocabulary as large as Llama 3's.

    python benchmarks/grammar_masks.py [--save] [--walks 6] [--library xgrammar]

Each of twenty JSON schemas (grammar_schemas.py), and each form of answers with tool calls
(grammar_calls.py), is compiled five times, nothing cached, and then walked through by random
outputs: before each token the mask of the row is filled. The figures are those of the schemas. The
tokenizer is a byte-level BPE of up to 128,256 tokens, trained on the sources of Python's standard
library and kept below build/; a larger vocabulary has ids that no text has. A mask's time is the
thread's CPU time of one row; that of 64 rows, elapsed time of a step's masks by several threads, a
row. Compiling may use threads; its time is the CPU time of all.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sysconfig
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from common import ROOT, Figure, Report, Table
from grammar_calls import FUNCTIONS, call_forms
from grammar_schemas import SCHEMAS
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, trainers

from kvasir.text.tokenizer import Tokenizer
from kvasir_engine.grammar.compiler import Backend as Library
from kvasir_engine.grammar.constraint import Constraint, parse_constraint
from kvasir_engine.grammar.libraries import Libraries
from kvasir_engine.grammar.llguidance_backend import GuidanceBackend
from kvasir_engine.grammar.matcher import GrammarMatcher, fill_together, num_words
from kvasir_engine.grammar.xgrammar_backend import Vocabulary, XGrammarBackend

VOCABULARY = 128_256
COMPILATIONS = 5
ROWS = 64
MOST_TOKENS = 300
END = "<|end|>"
COLUMNS = ("compilation, ms", "masks", "mean, us", "p99, us", "largest, us")
CLOSING = 0.15
"""Share of tokens that end a string, an array or an object where one may."""


def tokenizer() -> Tokenizer:
    """Return the trained tokenizer, from build/ if it is there."""
    kept = ROOT / "build" / f"stdlib-bpe-{VOCABULARY}.json"
    if not kept.is_file():
        backend = Backend(models.BPE())
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=VOCABULARY,
            special_tokens=[END],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        )
        backend.train_from_iterator(_sources(), trainer)
        kept.parent.mkdir(exist_ok=True)
        backend.save(str(kept))
    return Tokenizer(Backend.from_file(str(kept)), {"eos_token": END})


def _sources() -> Iterator[str]:
    for path in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py")):
        if "site-packages" not in path.parts:
            yield path.read_text(errors="ignore")


class Walks:
    """Random outputs of a compiled schema, and the time of each mask."""

    def __init__(self, backend: Library, tokens: Tokenizer, end: int) -> None:
        self._backend, self._end = backend, end
        self._closing = np.zeros(VOCABULARY, dtype=bool)
        for token in range(tokens.backend.get_vocab_size()):
            self._closing[token] = tokens.token_bytes(token)[:1] in (b'"', b"]", b"}")
        self._mask = np.zeros(num_words(VOCABULARY), dtype=np.int32)

    def times(
        self,
        constraint: Constraint,
        walks: int,
        draw: random.Random,
        begun: Sequence[int] = (),
    ) -> list[float]:
        """Return the microseconds of each mask behind the tokens `begun`."""
        grammar = self._backend.compile(constraint)
        found: list[float] = []
        for _ in range(walks):
            matcher = grammar.matcher([self._end])
            if not all(map(matcher.accept, begun)):
                raise AssertionError("the grammar does not let the output begin so")
            for _ in range(MOST_TOKENS):
                began = time.thread_time_ns()
                matcher.fill(self._mask)
                found.append((time.thread_time_ns() - began) / 1e3)
                if not self._step(matcher, draw):
                    break
        return found

    def batch(self, constraints: list[Constraint], draw: random.Random) -> list[float]:
        """Return the microseconds a row of each batch of masks, rows of all schemas together."""
        grammars = [self._backend.compile(each) for each in constraints]
        matchers = [grammars[at % len(grammars)].matcher([self._end]) for at in range(ROWS)]
        masks = np.zeros((ROWS, num_words(VOCABULARY)), dtype=np.int32)
        found = []
        for _ in range(MOST_TOKENS):
            begun = time.perf_counter_ns()
            fill_together(matchers, masks)
            found.append((time.perf_counter_ns() - begun) / 1e3 / ROWS)
            for at, matcher in enumerate(matchers):
                self._mask[:] = masks[at]
                if not self._step(matcher, draw):
                    matchers[at] = grammars[at % len(grammars)].matcher([self._end])
        return found

    def _step(self, matcher: GrammarMatcher, draw: random.Random) -> bool:
        """Take in a token that the mask allows; False at the output's end."""
        bits = np.unpackbits(self._mask.view(np.uint8), bitorder="little")[:VOCABULARY]
        allowed = np.flatnonzero(bits)
        closing = allowed[self._closing[allowed]]
        pick = closing if len(closing) and draw.random() < CLOSING else allowed
        token = int(pick[draw.randrange(len(pick))])
        return token != self._end and matcher.accept(token)


def percentile(times: list[float], share: float) -> float:
    """Return the value below which that share of the times lies."""
    return sorted(times)[min(len(times) - 1, int(len(times) * share))]


def compile_milliseconds(backend: Library, constraint: Constraint) -> list[float]:
    """Return the CPU time of each compilation."""
    found = []
    for _ in range(COMPILATIONS):
        begun = time.process_time()
        backend.compile(constraint)
        found.append((time.process_time() - begun) * 1e3)
    return found


def call_rows(backend: Library, walks: Walks, tokens: Tokenizer, count: int) -> list[list[str]]:
    """Return a row for each form of answers with calls, which llguidance compiles."""
    rows = []
    for each in call_forms(tokens):
        constraint = parse_constraint(each.form)
        begun = tokens.encode(each.begun, add_special_tokens=False)
        times = walks.times(constraint, count, random.Random(each.name), begun)
        rows.append(_row(each.name, compile_milliseconds(backend, constraint), times))
        print(*rows[-1], flush=True)
    return rows


def main() -> None:
    """Print and save."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--walks", type=int, default=6)
    parser.add_argument("--library", choices=("auto", "xgrammar"), default="auto")
    options = parser.parse_args()
    tokens = tokenizer()
    end = tokens.backend.token_to_id(END)
    assert end is not None
    begun = time.process_time()
    both = options.library == "auto"
    of_json = GuidanceBackend(tokens, VOCABULARY, [end]) if both else None
    backend = Libraries(of_json, XGrammarBackend(Vocabulary.of(tokens, VOCABULARY, [end])))
    vocabulary_seconds = time.process_time() - begun
    walks = Walks(backend, tokens, end)
    constraints = {name: parse_constraint(json.dumps({"json": it})) for name, it in SCHEMAS.items()}
    masks: list[float] = []
    compiled: list[float] = []
    rows = []
    for name, constraint in constraints.items():
        cold = compile_milliseconds(backend, constraint)
        times = walks.times(constraint, options.walks, random.Random(name))
        masks += times
        compiled += cold
        rows.append(_row(name, cold, times))
        print(*rows[-1], flush=True)
    calls = call_rows(backend, walks, tokens, options.walks) if both else []
    batch = walks.batch(list(constraints.values()), random.Random(0))
    Report(
        "grammar_masks" if both else "grammar_masks_xgrammar",
        f"Grammars of structured outputs{'' if both else ', all by xgrammar'}",
        f"Twenty JSON schemas over a vocabulary of {VOCABULARY:,} tokens: {len(masks):,} masks of "
        f"random outputs, {len(compiled)} compilations, {len(batch)} batches of {ROWS} rows.",
        [
            Figure("mask of a row, mean", "us", [statistics.mean(masks)], "<= 40"),
            Figure("mask of a row, p99", "us", [percentile(masks, 0.99)], "<= 250"),
            Figure("cold compilation, p95", "ms", [percentile(compiled, 0.95)], "<= 60"),
            Figure(f"masks of {ROWS} rows, elapsed a row, mean", "us", [statistics.mean(batch)]),
            Figure("vocabulary, once an engine", "s", [vocabulary_seconds]),
        ],
        [
            Table("By schema", ["schema", *COLUMNS], rows),
            *(
                [
                    Table(
                        f"Answers that call {len(FUNCTIONS)} functions", ["answer", *COLUMNS], calls
                    )
                ]
                if calls
                else []
            ),
        ],
        ("llguidance", "xgrammar", "tokenizers"),
    ).publish(save=options.save)


def _row(name: str, cold: list[float], times: list[float]) -> list[str]:
    figures: list[Any] = [statistics.median(cold), statistics.mean(times)]
    figures += [percentile(times, 0.99), max(times)]
    shown = [f"{each:.1f}" for each in figures]
    return [name, shown[0], str(len(times)), *shown[1:]]


if __name__ == "__main__":
    main()
