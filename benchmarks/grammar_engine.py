"""Tokens a second of constrained rows beside the same rows without a grammar, on a GPU.

    python benchmarks/grammar_engine.py --model DIR [--requests 256] [--repeat 3] [--out F.json]

Random weights of the model's shape, the tokenizer of grammar_masks.py, 64 rows. Each request asks
for one of the twenty schemas of grammar_schemas.py at temperature 1; a bias on the tokens that end
a string or an object makes outputs of all lengths up to 256. Then the same prompts, lengths and
bias without a form. Both in turns; the first turn, in which kernels and grammars are compiled, is
left out. Every output that ended by itself is held against its schema.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from common import Figure, Report, Table, hardware
from grammar_masks import END, tokenizer
from grammar_schemas import SCHEMAS
from jsonschema import Draft202012Validator

from kvasir_engine.llm import LLM
from kvasir_engine.outputs import RequestOutput
from kvasir_engine.sampling_params import SamplingParams

ROWS = 64
PROMPT_TOKENS = 200
MOST_TOKENS = 256
CLOSERS = ('"', '",', '"}', "}", "]")
CLOSER_BIAS = 9.0
"""About 5 % of a choice among 128,256 tokens that are as likely as each other."""


def model_directory(config: Path, at: Path) -> None:
    """Write a model's directory without weights: that shape, the tokenizer of grammar_masks.py."""
    tokens = tokenizer()
    end = tokens.backend.token_to_id(END)
    shape = {**json.loads((config / "config.json").read_text()), "eos_token_id": end}
    (at / "config.json").write_text(json.dumps(shape))
    tokens.backend.save(str(at / "tokenizer.json"))
    (at / "tokenizer_config.json").write_text(json.dumps({"eos_token": END}))


class Rows:
    """The requests of a turn."""

    def __init__(self, llm: LLM, requests: int) -> None:
        self._llm = llm
        draw = random.Random(0)
        # Bytes of a cut character at the end of a prompt would be read with the output.
        whole = tokenizer().encode("a", add_special_tokens=False)[0]
        self._prompts = [
            {
                "prompt_token_ids": [
                    *(draw.randrange(100, 30_000) for _ in range(PROMPT_TOKENS)),
                    whole,
                ]
            }
            for _ in range(requests)
        ]
        ids = [tokenizer().encode(each, add_special_tokens=False) for each in CLOSERS]
        self._bias = {each[0]: CLOSER_BIAS for each in ids if len(each) == 1}
        self._schemas = list(SCHEMAS.values())

    def run(self, lengths: list[int] | None) -> tuple[list[RequestOutput], float]:
        """Return outputs and tokens a second; constrained where no lengths are given."""
        params = [
            SamplingParams(
                temperature=1.0, seed=at, logit_bias=self._bias, **self._form(at, lengths)
            )
            for at in range(len(self._prompts))
        ]
        begun = time.perf_counter()
        outputs = self._llm.generate(self._prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - begun
        return outputs, sum(len(each.outputs[0].token_ids) for each in outputs) / seconds

    def _form(self, at: int, lengths: list[int] | None) -> dict[str, Any]:
        if lengths is not None:
            return {"max_tokens": lengths[at], "ignore_eos": True}
        schema = self._schemas[at % len(self._schemas)]
        return {"max_tokens": MOST_TOKENS, "structured_outputs": {"json": schema}}

    def wrong(self, outputs: list[RequestOutput]) -> list[str]:
        """Return each output that ended by itself and is not of its schema."""
        found = []
        for at, each in enumerate(outputs):
            answer = each.outputs[0]
            if answer.finish_reason != "stop":
                continue
            schema = self._schemas[at % len(self._schemas)]
            if not Draft202012Validator(schema).is_valid(json.loads(answer.text)):
                found.append(answer.text)
        return found


def measure(rows: Rows, repeat: int) -> tuple[dict[str, list[float]], list[str], list[int]]:
    """Return the rates by kind, the wrong outputs, and the last lengths."""
    rates: dict[str, list[float]] = {"constrained": [], "plain": []}
    wrong: list[str] = []
    lengths: list[int] = []
    for turn in range(repeat + 1):
        outputs, constrained = rows.run(None)
        wrong += rows.wrong(outputs)
        lengths = [len(each.outputs[0].token_ids) for each in outputs]
        plain = rows.run(lengths)[1]
        print(turn, round(constrained), round(plain), sum(lengths), flush=True)
        if turn:
            rates["constrained"].append(constrained)
            rates["plain"].append(plain)
    return rates, wrong, lengths


def report(
    model: Path, rates: dict[str, list[float]], wrong: list[str], lengths: list[int]
) -> Report:
    """Return the report."""
    shares = [a / b for a, b in zip(rates["constrained"], rates["plain"], strict=True)]
    ended = sum(each < MOST_TOKENS for each in lengths)
    return Report(
        name="grammar_engine",
        title=f"Constrained rows on a GPU: {model.name}, bf16",
        work=" ".join(__doc__.split("--out F.json]")[1].split()),
        figures=[
            Figure("constrained, share of unconstrained tokens a second", "", shares, ">= 0.97", 3),
            Figure(f"{ROWS} rows, constrained", "tokens/s", rates["constrained"], digits=0),
            Figure(f"{ROWS} rows, unconstrained", "tokens/s", rates["plain"], digits=0),
        ],
        tables=[
            Table(
                "Outputs of the last turn",
                ["requests", "ended by themselves", "median tokens", "wrong in all turns"],
                [[str(len(lengths)), str(ended), str(statistics.median(lengths)), str(len(wrong))]],
            )
        ],
        packages=("torch", "triton", "llguidance", "xgrammar"),
    )


def main() -> int:
    """Print and save; 1 when an output is not of its schema."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", type=Path, required=True, help="directory with a config.json")
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        model_directory(options.model, Path(directory))
        llm = LLM(
            directory,
            device=options.device,
            load_format="dummy",
            max_num_seqs=ROWS,
            max_model_len=4096,
        )
        rates, wrong, lengths = measure(Rows(llm, options.requests), options.repeat)
        llm.close()
    made = replace(report(options.model, rates, wrong, lengths), values={"hardware": hardware()})
    print(made.figures)
    if options.out:
        made.write(options.out)
    print(*wrong[:3], sep="\n")
    return int(bool(wrong))


if __name__ == "__main__":
    raise SystemExit(main())
