"""Writes docs/benchmarks.md from the files in benchmarks/results.

python benchmarks/report.py [--check]

With --check nothing is written: the exit status is 1 when the page differs from the results.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from common import NOTES, RESULTS, ROOT, render

PAGE = ROOT / "docs" / "benchmarks.md"
ORDER = (
    *("llama8b_bf16", "llama8b_bf16_io", "qwen06b_bf16", "qwen06b_bf16_io"),
    *("qwen30b_a3b_bf16", "start"),
    *("cpu_throughput", "core_loop", "http_streaming", "serve_start"),
    *("router_overhead", "router_waiting", "router_streams", "router_choice", "router_index"),
    *("router_benefit_capacity", "router_benefit_chat", "router_benefit_agent"),
    *("router_benefit_nosharing", "router_scaling", "router_events", "router_fairness"),
)
HEAD = """\
# Benchmarks

Every figure here is the median of the runs of a script in `benchmarks/` that stand beside it, made
on the machine named with it; the spread is (largest - smallest) / median, and what rests on one run
says so. `python benchmarks/report.py` writes this page: the figures from `benchmarks/results/`,
which scripts alone write, and after them, as "Notes", what people have written down in
`benchmarks/notes/`. [benchmarks/README.md](../benchmarks/README.md) says how to run the scripts.
"unknown" is what was not written down at the time. On GPUs weights are random, in the models'
shapes.
"""


def page(results: Path) -> str:
    """The page for a directory of results."""
    folders = ("h200/*.json", "cpu/*.json", "*.json")
    files = sorted([file for folder in folders for file in results.glob(folder)], key=_place)
    return "\n".join([HEAD, *map(_part, files)])


def _part(result: Path) -> str:
    """One file of results, then the notes of its name."""
    made = "\n".join(render(json.loads(result.read_text()))) + "\n"
    notes = NOTES / f"{result.stem}.md"
    return f"{made}\n### Notes\n\n{notes.read_text()}" if notes.exists() else made


def _place(path: Path) -> tuple[int, str]:
    known = ORDER.index(path.stem) if path.stem in ORDER else len(ORDER)
    return known, path.stem


def main() -> None:
    """Write or check."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true")
    made = page(RESULTS)
    if not parser.parse_args().check:
        PAGE.write_text(made)
    elif not PAGE.exists() or PAGE.read_text() != made:
        sys.exit("docs/benchmarks.md differs from the results; run python benchmarks/report.py.")


if __name__ == "__main__":
    main()
