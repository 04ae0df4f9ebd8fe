"""The page on the zoo: what `e2e/gpu/zoo.py` wrote into benchmarks/results, a table a kind of
GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from common import markdown_table

HEAD = """\
# Models on GPUs

`e2e/gpu/zoo.py` starts each config of `benchmarks/models/zoo` with random weights and no flags, has
it answer 64 mixed requests and one prompt of the longest context that it says it takes, and times a
step that decodes 1 row, and 64 or as many as the KV cache holds, at 1,000 tokens of context. The
share is the time that such a step is estimated to take by the GPU's measured rates, over the time
that it took: 1 is as fast as torch's own matrix products and a plain read of the KV cache would be.
One run each.
`python benchmarks/report.py` writes this page from `benchmarks/results/*/zoo.json`. The rows name
the commits that they were measured at; with an asterisk, a step's time is the difference of two
runs with all prompts, which is less exact. Models that are not in a table were not run on that GPU.
"""
COLUMNS = [
    "model",
    "code",
    "start, s",
    "weights, GiB",
    "KV cache, GiB",
    "graphs, GiB",
    "longest prompt, tokens",
    "took, s",
    "1 row, ms",
    "share",
    "rows",
    "ms",
    "share",
    "commit",
]


def zoo_page(results: Path) -> str:
    """The page for a directory of results."""
    files = sorted(results.glob("*/zoo.json"))
    return "\n".join([HEAD, *(_table(json.loads(file.read_text())) for file in files)])


def _table(rows: dict[str, dict[str, Any]]) -> str:
    """Return the table of one kind of GPU."""
    [gpu] = {row["gpu"] for row in rows.values() if "gpu" in row}
    lines = markdown_table(COLUMNS, [_line(name, rows[name]) for name in sorted(rows)])
    return "\n".join([f"## {gpu}", "", *lines, ""])


def _line(name: str, row: dict[str, Any]) -> list[str]:
    if "failed" in row:
        reason = row["failed"].strip().splitlines()[-1].replace("|", "\\|")
        return [name, f"failed: {reason}", *[""] * (len(COLUMNS) - 2)]
    memory, (one, many) = row["memory_gib"], row["decodes"]
    return [
        name,
        row["code"],
        f"{row['start_s']:.1f}",
        *(f"{memory.get(owner, 0):.2f}" for owner in ("weights", "KV cache", "CUDA graphs")),
        f"{row['longest_tokens']:,}",
        f"{row['longest_s']:.2f}",
        *_decode(one),
        str(many["rows"]),
        *_decode(many),
        row["commit"],
    ]


def _decode(timed: dict[str, Any]) -> list[str]:
    exact = "" if "steps" in timed else "*"
    share = timed.get("share")
    return [f"{timed['ms']:.2f}{exact}", "" if share is None else f"{share:.2f}"]
