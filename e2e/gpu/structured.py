"""Structured outputs on a GPU: every output has its form, beside requests that have none.

    python e2e/gpu/structured.py [--out F.json] [--device cuda]

The shipped model answers 96 requests at temperature 1 in one batch: JSON schemas, regular
expressions and choices, each third one without a grammar. Each output that ended by itself is held
against its form; the others have to go on to their length. Then tokens a second of 64
rows without and with a grammar in each: the model is so small that a step takes no longer than its
launches, which leaves masks the least time to hide in. Exits 1 when an output is wrong.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / each) for each in (".", "api", "engine", "benchmarks")]

from common import commit, hardware  # noqa: E402

from kvasir_engine.llm import LLM  # noqa: E402
from kvasir_engine.sampling_params import SamplingParams  # noqa: E402

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
DATE = r"[0-9]{4}-(0[1-9]|1[0-2])-[0-3][0-9]"
WORDS = ["yes", "no", "perhaps tomorrow"]


def is_person(text: str) -> bool:
    """True if `text` is JSON of PERSON."""
    found: Any = json.loads(text)
    return (
        list(found) == ["name", "age", "tags"]
        and isinstance(found["name"], str)
        and len(found["name"]) <= 12
        and isinstance(found["age"], int)
        and 0 <= found["age"] <= 150
        and 1 <= len(found["tags"]) <= 3
        and set(found["tags"]) <= {"a", "b"}
    )


FORMS: list[tuple[dict[str, Any], Callable[[str], bool]]] = [
    ({"json": PERSON}, is_person),
    ({"regex": DATE}, lambda text: re.fullmatch(DATE, text) is not None),
    ({"choice": WORDS}, lambda text: text in WORDS),
]
FREE_TOKENS = 40


def wrong_outputs(llm: LLM, count: int) -> list[str]:
    """Return what is wrong with each of `count` outputs that is not as asked for."""
    params: list[SamplingParams] = []
    checks: list[Callable[[str], bool]] = []
    for at in range(count):
        if at % 3 == 2:
            params.append(SamplingParams(max_tokens=FREE_TOKENS, ignore_eos=True, seed=at))
            checks.append(bool)
            continue
        form, is_right = FORMS[at // 3 % len(FORMS)]
        params.append(SamplingParams(max_tokens=400, structured_outputs=form, seed=at))  # type: ignore[arg-type]
        checks.append(is_right)
    outputs = llm.generate(["Once upon a time"] * count, params, use_tqdm=False)
    wrong = []
    for output, asked, is_right in zip(outputs, params, checks, strict=True):
        answer = output.outputs[0]
        ended = "stop" if asked.structured_outputs else "length"
        if answer.finish_reason != ended or not is_right(answer.text):
            wrong.append(f"{answer.finish_reason}: {answer.text!r}")
    return wrong


def tokens_per_second(llm: LLM, rows: int, tokens: int, form: dict[str, Any] | None) -> float:
    """Return the rate of `rows` requests of `tokens` tokens each."""
    params = SamplingParams(
        max_tokens=tokens,
        ignore_eos=form is None,
        structured_outputs=form,  # type: ignore[arg-type]
        seed=0,
    )
    begun = time.perf_counter()
    outputs = llm.generate(["Once upon a time"] * rows, params, use_tqdm=False)
    made = sum(len(output.outputs[0].token_ids) for output in outputs)
    return made / (time.perf_counter() - begun)


def main() -> int:
    """Print and save; 1 when an output is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    llm = LLM("builtin://kvasir-tiny", device=options.device)
    wrong = wrong_outputs(llm, 96)
    long_text = {"regex": "[a-z ]{200}"}
    rates: dict[str, list[float]] = {"plain": [], "constrained": []}
    for _ in range(4):
        rates["plain"].append(tokens_per_second(llm, 64, 200, None))
        rates["constrained"].append(tokens_per_second(llm, 64, 200, long_text))
    llm.close()
    row = {
        "hardware": hardware(),
        "commit": commit(),
        "wrong": wrong,
        # The first ones compile
        "tokens_per_second": {
            name: [round(each) for each in found[1:]] for name, found in rates.items()
        },
    }
    print(json.dumps(row, indent=1))
    if options.out:
        options.out.write_text(json.dumps(row, indent=1) + "\n")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
