"""Outputs of random JSON schemas, held against their schemas by jsonschema.

    python benchmarks/grammar_validity.py [--save] [--schemas 5000] [--seed 0]

Random schemas of the kinds that people send (tests/support/random_schemas.py) are drawn until so
many are taken; the shipped model completes each once at temperature 1, many in a batch, on the CPU.
What ends by itself has to satisfy its schema, formats included; what its length cuts is counted
apart. Schemas that are refused are counted by the keyword that the refusal names. The table by
keyword stands beside what the two libraries say of themselves (grammar_claims.json). Exits 1 when
an output is wrong.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from common import ROOT, TINY_MODEL, Figure, Report, Table
from tqdm import tqdm

sys.path.append(str(ROOT / "tests"))

from support.random_schemas import Schemas
from support.schema_judge import exact, violation

from kvasir_engine.grammar.compiler import GrammarCompiler
from kvasir_engine.grammar.constraint import parse_constraint
from kvasir_engine.grammar.constraint_error import ConstraintError
from kvasir_engine.grammar.libraries import make_compiler
from kvasir_engine.grammar.schema_keywords import (
    ANNOTATIONS,
    DEFINITIONS,
    SchemaError,
)
from kvasir_engine.llm import LLM
from kvasir_engine.sampling_params import SamplingParams

CLAIMS = ROOT / "benchmarks" / "grammar_claims.json"
ROWS = 128
MAX_TOKENS = 400
PROMPT = "Answer as JSON:"
LIBRARIES = {"GuidanceGrammar": "llguidance", "XGrammar": "xgrammar"}
NAMED = ("properties", "patternProperties", "$defs", "dependentSchemas")
LISTED = ("anyOf", "oneOf", "allOf", "prefixItems")
"""Keywords whose values hold schemas; DATA holds none."""
DATA = ("enum", "const", "default", "required", "dependentRequired")
_VALUE = re.compile(r"'[^']*'|-?\d[\d.]*")
SHOWN = 3
"""Wrong outputs that are printed."""


@dataclass
class Counts:
    """Counts of schemas and outputs, by what became of them."""

    taken: Counter[str] = field(default_factory=Counter)
    """Schemas by the library that enforces them."""
    by_keyword: dict[str, Counter[str]] = field(default_factory=dict)
    """By keyword: schemas that have it, by library; schemas that it had refused."""
    reasons: Counter[str] = field(default_factory=Counter)
    valid: int = 0
    cut: int = 0
    wrong: list[str] = field(default_factory=list)

    def of(self, keyword: str) -> Counter[str]:
        """Return the counts of one keyword."""
        return self.by_keyword.setdefault(keyword, Counter())


def keywords_of(schema: Any) -> Iterator[str]:
    """Yield the keywords of a schema and of what it holds."""
    if not isinstance(schema, dict):
        return
    for name, value in schema.items():
        yield name
        if name in DATA:
            continue
        held = value.values() if name in NAMED else value if name in LISTED else [value]
        for each in held:
            yield from keywords_of(each)


def refused_keyword(error: ConstraintError) -> str:
    """Return the keyword that a refusal names, by the path that it begins with."""
    parts = error.path.split("/") if isinstance(error, SchemaError) else []
    keywords = [each for each in parts[1:] if each and not each.isdigit()]
    return keywords[-1] if keywords else "type"


def draw(seed: int, count: int, compiler: GrammarCompiler, counts: Counts) -> Iterator[Any]:
    """Yield schemas until `count` of them were taken."""
    schemas = Schemas(seed)
    while counts.taken.total() < count:
        schema = schemas.lean_root()
        constraint = json.dumps({"json": schema})
        try:
            grammar = compiler.compile(parse_constraint(constraint)).grammar.result()
        except ConstraintError as error:
            counts.of(refused_keyword(error))["refused"] += 1
            counts.reasons[_reason(error)] += 1
            continue
        library = LIBRARIES[type(grammar).__name__]
        counts.taken[library] += 1
        for keyword in set(keywords_of(schema)):
            counts.of(keyword)[library] += 1
        yield schema


def _reason(error: ConstraintError) -> str:
    """Return a refusal's words without its place, alike for all numbers and names."""
    path = error.path if isinstance(error, SchemaError) else ""
    return _VALUE.sub("...", str(error).removeprefix(path).strip())


def judge(schema: Any, text: str, finish_reason: str | None, counts: Counts) -> None:
    """Count an output."""
    if finish_reason == "length":
        counts.cut += 1
        return
    error: Exception | None
    try:
        error = violation(schema, exact(text))
    except ValueError as not_json:
        error = not_json
    if error is None:
        counts.valid += 1
    else:
        counts.wrong.append(f"{error}\n{text!r}\n{json.dumps(schema)}")


def run(seed: int, count: int, counts: Counts) -> None:
    """Draw, complete and judge."""
    compiler = make_compiler(TINY_MODEL, vocab_size=1792, eos_ids=[0], trust_remote_code=False)
    assert compiler is not None
    llm = LLM("builtin://kvasir-tiny", max_num_seqs=ROWS, kv_cache_memory_bytes=512 << 20)
    drawn = draw(seed, count, compiler, counts)
    with tqdm(total=count, desc="Schemas") as bar:
        while batch := list(islice(drawn, ROWS)):
            params = [
                SamplingParams(
                    temperature=1.0,
                    max_tokens=MAX_TOKENS,
                    seed=seed + bar.n + at,
                    structured_outputs=json.dumps({"json": each}),
                )
                for at, each in enumerate(batch)
            ]
            outputs = llm.generate([PROMPT] * len(batch), params, use_tqdm=False)
            for schema, output in zip(batch, outputs, strict=True):
                answer = output.outputs[0]
                judge(schema, answer.text, answer.finish_reason, counts)
            bar.update(len(batch))
    llm.close()
    compiler.close()


def keyword_rows(counts: Counts, claims: dict[str, Any]) -> list[list[str]]:
    """Return a row for each keyword that a schema had, or that a library says something about."""
    rows = []
    for keyword, said in claims["keywords"].items():
        found = counts.of(keyword)
        names = [f"{found[name]:,} by {name}" for name in LIBRARIES.values() if found[name]]
        rows.append(
            [
                f"`{keyword}`",
                ", ".join(names) or "none",
                f"{found['refused']:,}",
                said["xgrammar"] or "no word",
                said["llguidance"] or "no word",
            ]
        )
    return rows


def main() -> int:
    """Print and save; 1 when an output is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--schemas", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    counts = Counts()
    run(options.seed, options.schemas, counts)
    print("\n\n".join(counts.wrong[:SHOWN]))
    claims = json.loads(CLAIMS.read_text())
    refused = counts.reasons.total()
    unknown = counts.by_keyword.keys() - claims["keywords"].keys() - ANNOTATIONS - {*DEFINITIONS}
    Report(
        "grammar_validity",
        "Outputs of random JSON schemas",
        f"{options.schemas:,} random schemas (seed {options.seed}), one output of the shipped "
        f"model each, temperature 1, at most {MAX_TOKENS} tokens, judged by jsonschema.",
        [
            Figure("outputs that do not satisfy their schema", "", [len(counts.wrong)], "<= 0", 0),
            Figure("outputs that do", "", [counts.valid], digits=0),
            Figure("outputs that their length cut", "", [counts.cut], digits=0),
            *(
                Figure(f"schemas enforced by {name}", "", [counts.taken[name]], digits=0)
                for name in LIBRARIES.values()
            ),
            Figure("schemas refused beside them", "", [refused], digits=0),
        ],
        [
            Table(
                "By keyword",
                ["keyword", "schemas enforced", "refused for it", "xgrammar", "llguidance"],
                keyword_rows(counts, claims),
                claims["source"],
            ),
            Table(
                "Reasons of refusals",
                ["schemas", "reason", " "],
                [[f"{n:,}", reason, "-"] for reason, n in counts.reasons.most_common()],
            ),
        ],
        ("llguidance", "xgrammar", "jsonschema"),
    ).publish(save=options.save)
    if unknown:
        print(f"keywords without a row: {', '.join(sorted(unknown))}")
    return int(bool(counts.wrong))


if __name__ == "__main__":
    sys.exit(main())
