"""Write docs/benchmarks.md, docs/zoo.md, the README's comparison, the table of JSON Schema's
keywords in docs/structured_outputs.md and the study in docs/autoscaling.md from
benchmarks/results.

python benchmarks/report.py [--check]

With --check nothing is written: the exit status is 1 when a page differs from the results.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

from common import NOTES, RESULTS, ROOT, markdown_table, render
from scaling_page import scaling_plot, scaling_section
from zoo_page import zoo_page

PAGE = ROOT / "docs" / "benchmarks.md"
ZOO = ROOT / "docs" / "zoo.md"
README = ROOT / "README.md"
STRUCTURED = ROOT / "docs" / "structured_outputs.md"
SCALING = ROOT / "docs" / "autoscaling.md"
PLOT = ROOT / "docs" / "images" / "autoscaling.svg"
SCALED = RESULTS / "cpu" / "autoscaling.json"
_BEGIN, _END = "<!-- made by benchmarks/report.py -->\n", "<!-- end -->\n"
_ENGINE = {
    "decode_bs1": "decode, 1 sequence, ms a token",
    "decode_bs8": "decode, 8 sequences, ms a token",
    "decode_bs64": "decode, 64 sequences, ms a token",
    "decode_bs256": "decode, 256 sequences, ms a token",
    "prefill_4096x1": "first token of a prompt of 4,096, ms",
    "prefill_512x1": "first token of a prompt of 512, ms",
    "prefix4096x256": "256 requests that share 4,096 tokens, tokens/s",
    "prefill_4096x32": "32 prompts of 4,096, tokens/s",
    "mixed256": "256 requests of 100 to 1,024 tokens in and out, tokens/s",
    "big1000": "1,000 requests of 128 to 1,024 in, 64 to 512 out, tokens/s",
}
_ROUTER = {
    "2kb": "CPU of a request of 2 KB, µs",
    "64kb": "CPU of a request of 64 KB, µs",
    "400kb": "CPU of a request of 400 KB, µs",
    "chunk": "CPU of a streamed event, µs",
    "added p50": "added latency, median, µs",
    "added p99": "added latency, 99th percentile, µs",
}
ORDER = (
    *(
        "llama8b_bf16",
        "llama8b_bf16_io",
        "llama8b_bf16_sampling",
        "llama8b_bf16_long",
        "llama8b_fp8",
        "llama8b_fp8_kv",
        "llama8b_fp8_kv_io",
        "llama8b_awq",
        "gpt_oss_20b",
        "qwen06b_bf16",
        "qwen06b_bf16_io",
    ),
    *("qwen30b_a3b_bf16", "qwen30b_a3b_fp8", "start"),
    *("cpu_throughput", "core_loop", "http_streaming", "event_loop", "serve_start"),
    *(
        "router_overhead",
        "router_tls",
        "router_waiting",
        "router_streams",
        "router_choice",
        "router_index",
    ),
    "router_bodies",
    *("router_benefit_capacity", "router_benefit_chat", "router_benefit_agent"),
    *("router_benefit_nosharing", "router_scaling", "router_events", "router_fairness"),
    "autoscaling",
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


_ROUTERS = ("kv_aware", "smg", "vllm-router")
"""Rows of the routers' table: Kvasir's default policy, then the others."""


_OTHERS = ("zoo", "mutants")
"""Files of results that are no figures: of e2e/gpu/zoo.py and of scripts/mutants.py."""


def page(results: Path) -> str:
    """The page for a directory of results."""
    folders = ("h200/*.json", "h100/*.json", "cpu/*.json", "*.json")
    found = [it for folder in folders for it in results.glob(folder) if it.stem not in _OTHERS]
    files = sorted(found, key=_place)
    return "\n".join([HEAD, *map(_part, files)])


def _part(result: Path) -> str:
    """Return the text of one file of results, then the notes of its name; what was measured on an
    H100, too, says so and has none."""
    found = json.loads(result.read_text())
    if result.parent.name == "h100":
        found["title"] += ", on an H100"
        return "\n".join(render(found)) + "\n"
    made = "\n".join(render(found)) + "\n"
    notes = NOTES / f"{result.stem}.md"
    return f"{made}\n### Notes\n\n{notes.read_text()}" if notes.exists() else made


def _place(path: Path) -> tuple[int, str]:
    known = ORDER.index(path.stem) if path.stem in ORDER else len(ORDER)
    return known, path.stem


def comparison(results: Path) -> str:
    """Return the README's tables: every figure that the results have of others, none left out."""
    large, small = (_others(results / f"h200/{name}_bf16.json") for name in ("llama8b", "qwen06b"))
    [vllm] = {table["columns"][-1] for table in (large, small)}
    assert [row[0] for row in large["rows"]] == [row[0] for row in small["rows"]] == [*_ENGINE]
    rows = [
        [_ENGINE[name], _plain(here), _plain(theirs), _plain(other[1]), _plain(other[-1])]
        for (name, here, _, theirs), other in zip(large["rows"], small["rows"], strict=True)
    ]
    columns = ["engine", "Kvasir, 8B", f"{vllm}, 8B", "Kvasir, 0.6B", f"{vllm}, 0.6B"]
    routers = _read(results / "router_overhead.json")
    return "\n".join([*markdown_table(columns, rows), "", *_router_table(routers), ""])


def _read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def _others(path: Path) -> dict[str, Any]:
    [table] = [each for each in _read(path)["tables"] if each["title"] == "Beside others"]
    found: dict[str, Any] = table
    return found


def _router_table(result: dict[str, Any]) -> list[str]:
    """Return the lines of the routers' table, a row for each of its columns."""
    [table] = result["tables"]
    by_router = {row[0]: row[1:] for row in table["rows"]}
    names = [re.search(rf"{name} [\d.]+\d", result["work"]) for name in _ROUTERS[1:]]
    rows = [
        [_ROUTER[name], *(_plain(by_router[router][place]) for router in _ROUTERS)]
        for place, name in enumerate(table["columns"][1:])
    ]
    return markdown_table(["router", "Kvasir", *(name[0] for name in names if name)], rows)


def _plain(number: str) -> str:
    """Return the number with commas, as every table here has it."""
    whole = number.replace(",", "")
    return f"{int(whole):,}" if whole.isdigit() else number


def keywords(results: Path) -> str:
    """Return the table of JSON Schema's keywords: what was enforced and refused, and what the
    libraries say of themselves."""
    result = _read(results / "cpu" / "grammar_validity.json")
    [table] = [each for each in result["tables"] if each["title"] == "By keyword"]
    figures = {each["name"]: round(each["median"]) for each in result["figures"]}
    libraries = " and ".join(
        f"{name} {result['versions'][name]}" for name in ("llguidance", "xgrammar")
    )
    counted = (
        f"{result['work']} {figures['outputs that do']:,} satisfied it, "
        f"{figures['outputs that do not satisfy their schema']:,} did not, "
        f"{figures['outputs that their length cut']:,} were cut by their length; "
        f"{figures['schemas refused beside them']:,} further schemas were refused. Measured with "
        f"{libraries}, commit {result['commit']}, {result['date']}."
    )
    lines = [counted, "", *markdown_table(table["columns"], table["rows"]), "", table["source"]]
    return "\n".join([*lines, ""])


def _filled(text: str, tables: str) -> str:
    """Return a page with other tables between its marks."""
    before, begin, rest = text.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    return before + begin + tables + end + after


def _text_of(path: Path) -> str | None:
    return path.read_text() if path.exists() else None


def main() -> None:
    """Write or check."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true")
    made = {
        PAGE: page(RESULTS),
        ZOO: zoo_page(RESULTS),
        README: _filled(README.read_text(), comparison(RESULTS)),
        STRUCTURED: _filled(STRUCTURED.read_text(), keywords(RESULTS)),
        SCALING: _filled(SCALING.read_text(), scaling_section(_read(SCALED))),
        PLOT: scaling_plot(_read(SCALED)),
    }
    if not parser.parse_args().check:
        for path, text in made.items():
            path.write_text(text)
        return
    differ = [path.name for path, text in made.items() if _text_of(path) != text]
    if differ:
        wrong = " and ".join(differ)
        sys.exit(f"{wrong} differs from the results; run python benchmarks/report.py.")


if __name__ == "__main__":
    main()
