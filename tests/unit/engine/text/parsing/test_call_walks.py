"""Random outputs of the grammars of random strict functions: calls that are read and valid."""

from __future__ import annotations

import json
import random
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from support.random_schemas import Schemas
from support.schema_judge import violation

import kvasir_engine
from kvasir.text.tokenizer import Tokenizer
from kvasir_engine.grammar.constraint_error import ConstraintError
from kvasir_engine.grammar.schema_keywords import SchemaError
from kvasir_engine.text.parsing.call_grammar import CallBlock, strict_schema

from .call_model import FORMATS, PIECES, EndlessError, Model

pytestmark = pytest.mark.slow

FUNCTIONS = 60
WALKS = 3


@cache
def model(name: str, special: bool) -> Model:
    return Model(name, special=special, pieces=PIECES)


@cache
def tiny(name: str) -> Model:
    """A format written with the tokens of a real model, whose texts have one way to be encoded."""
    tokenizer = Tokenizer.load(Path(kvasir_engine.__file__).parent / "assets" / "tiny")
    return Model(name, special=False, tokenizer=tokenizer)


def parameters_of(schemas: Schemas, draw: random.Random) -> dict[str, Any]:
    """A function's schema, whose parameters may refer to its definitions."""
    roots = [schemas.root() for _ in range(draw.randint(0, 4))]
    named = {
        f"p{at}": {k: v for k, v in each.items() if k != "$defs"} for at, each in enumerate(roots)
    }
    required = draw.sample(list(named), draw.randint(0, len(named)))
    return {"properties": named, "required": required, "$defs": schemas.root()["$defs"]}


def calls_of_random_functions(made: Model, seed: int, *, free: bool) -> Counter[str]:
    """Walk through the grammars of random functions. Returns what became of them."""
    schemas, draw = Schemas(seed), random.Random(seed)
    told: Counter[str] = Counter()
    for _ in range(FUNCTIONS):
        tools = {"f": parameters_of(schemas, draw), "get_f": {"properties": {"a": {}}}}
        try:
            strict_schema(tools["f"])
            calls = made.calls(tools, strict=True)
            block = made.format.block(calls)
            assert isinstance(block, CallBlock)
            form = calls.permitted(block) if free else calls.required(block)
            made.matcher(form)
        except (SchemaError, ConstraintError):
            told["refused"] += 1
            continue
        for _ in range(WALKS):
            matcher = made.matcher(form)
            begun = made.opening(block, "f", "Well,") if free else []
            begun = begun if draw.random() < 0.8 else []
            assert all(map(matcher.accept, begun))
            try:
                output = begun + made.walk(matcher, draw)
            except EndlessError:  # A pattern may ask for a letter that few tokens have.
                told["endless"] += 1
                continue
            content, found = made.read(output, tools)
            assert free or (found and not content), (
                made.tokenizer.decode(output, skip_special_tokens=False),
                content,
                tools,
            )
            assert free or (found and not content)
            told["calls"] += len(found)
            for name, arguments in found:
                error = violation(tools[name], arguments)
                assert error is None, (made.tokenizer.decode(output), json.dumps(tools[name]))
    return told


@pytest.mark.parametrize("free", [False, True])
@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("name", FORMATS)
def test_calls_of_strict_functions_are_valid(name: str, special: bool, free: bool) -> None:
    told = calls_of_random_functions(model(name, special), len(name), free=free)
    assert told["calls"] > 5 + 10 * told["endless"], told


@pytest.mark.parametrize("free", [False, True])
@pytest.mark.parametrize("name", FORMATS)
def test_calls_in_the_tokens_of_a_model_are_valid(name: str, free: bool) -> None:
    told = calls_of_random_functions(tiny(name), len(name), free=free)
    assert told["calls"] > 5 + 10 * told["endless"], told
