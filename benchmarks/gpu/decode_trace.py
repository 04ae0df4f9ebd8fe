"""Kernels of a decode on a GPU, by torch.profiler.

    python benchmarks/gpu/decode_trace.py --rows 1,8,64 [--out F.md] -- ENGINE'S ARGUMENTS

The arguments are those of benchmarks/engine.py, whose work `decode` runs: of each number of rows, a
table of what the GPU did in eight decodes. With dependent launches a kernel begins, and is counted,
while the one before it still runs: the sum of all is more than the time of a step.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import engine
import torch
from common import markdown_table
from torch.profiler import ProfilerActivity, profile

STEPS = 8
BEFORE = 6
"""Decodes of all rows before those that are traced."""
KERNELS = 8
"""The longest ones are shown."""
COLUMNS = ["kernel", "a step", "us each", "us a step"]


class TracedDecodes:
    """In the place of `Engine.decode_ms`: traces the decodes of some batches and times no other."""

    def __init__(self, rows: list[int]) -> None:
        self._rows = rows
        self._decode_ms = engine.Engine.decode_ms
        self.parts: list[str] = []

    def run(self, ran: engine.Engine, given: engine.Prompts, steps: int) -> float:
        """Return the milliseconds of a traced step, which takes longer than others; 1 for batches
        that are left out."""
        if len(given) not in self._rows:
            return 1.0
        profiler = profile(activities=[ProfilerActivity.CUDA])
        step, decodes = ran._step, 0

        def traced() -> int:
            nonlocal decodes
            tokens = step()
            decodes += tokens == len(given)
            if tokens == len(given) and decodes in (BEFORE, BEFORE + STEPS):
                torch.cuda.synchronize()
                profiler.start() if decodes == BEFORE else profiler.stop()
            return tokens

        # An instance's own attribute hides the method.
        ran._step = traced  # type: ignore[method-assign]
        took = self._decode_ms(ran, given, max(steps, 2 * STEPS + BEFORE))
        ran._step = step  # type: ignore[method-assign]
        events = profiler.events()  # type: ignore[no-untyped-call]
        self.parts.append(_table(len(given), events))
        return took


def _table(rows: int, events: Any) -> str:
    """Return a batch's table: its longest kernels, and how long a step is."""
    ran = [it for it in events if it.device_type.name == "CUDA"]
    kinds: defaultdict[str, list[float]] = defaultdict(list)
    for event in ran:
        kinds[event.name].append(event.time_range.elapsed_us())
    ends = [it.time_range.end for it in ran]
    span = (max(ends) - min(it.time_range.start for it in ran)) / STEPS
    longest = sorted(kinds.items(), key=lambda kind: -sum(kind[1]))[:KERNELS]
    table = [
        [f"`{name[:60]}`", f"{len(us) / STEPS:.0f}", f"{sum(us) / len(us):.1f}",
         f"{sum(us) / STEPS:,.0f}"]
        for name, us in longest
    ]  # fmt: skip
    title = f"Decodes of {rows} rows: {span:,.0f} us a step, {len(ran) / STEPS:.0f} kernels."
    return "\n".join([title, "", *markdown_table(COLUMNS, table), ""])


def main() -> None:
    """Print the tables, and write them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", default="1,8,64")
    parser.add_argument("--out", type=Path)
    parser.add_argument("arguments", nargs="+", help="of benchmarks/engine.py, behind --")
    options = parser.parse_args()
    traced = TracedDecodes([int(count) for count in options.rows.split(",")])
    engine.Engine.decode_ms = lambda self, given, steps: traced.run(self, given, steps)  # type: ignore[method-assign]
    sys.argv = [engine.__file__, *options.arguments, "--works", "decode"]
    engine.main()
    text = "\n".join(traced.parts)
    print(text)
    if options.out:
        options.out.write_text(text)


if __name__ == "__main__":
    main()
