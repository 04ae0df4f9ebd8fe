"""Seconds that the tiny model takes from a command to its /ready.

    python benchmarks/serve_start.py [--repeat 5] [--save]

`kvasir serve builtin://kvasir-tiny`, and `kvasir up -f manifests/tiny.yaml` with its router and two
engines; each is started once before it is measured, since the first start after an installation
also compiles Python's files.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from common import ROOT, Figure, Report, Table, free_port, wait_for, warn_if_busy

WITHIN_SECONDS = 120.0
KVASIR = [sys.executable, "-m", "kvasir"]
SERVE = ["serve", "builtin://kvasir-tiny"]
UP = ["up", "-f", str(ROOT / "manifests" / "tiny.yaml")]
MODULES = (
    "kvasir.cli.main",
    "kvasir_engine.server.process.serve_command",
    "kvasir_engine.server.http.app",
    "kvasir_engine.core.process",
    "torch",
    "kvasir_engine.startup.torch_build",
    "kvasir_router.process.single_process",
)


@contextmanager
def started(arguments: list[str], log: Path) -> Iterator[float]:
    """A running command; seconds from its start to /ready."""
    port = free_port()
    with log.open("ab") as out:
        began = time.monotonic()
        process = subprocess.Popen(
            [*KVASIR, *arguments, "--port", str(port)], stdout=out, stderr=subprocess.STDOUT
        )
        try:
            url = f"http://127.0.0.1:{port}/ready"
            alive = lambda: process.poll() is None  # noqa: E731
            yield wait_for(url, within=WITHIN_SECONDS, process_alive=alive) - began
        finally:
            process.terminate()
            process.wait(30)


def seconds_to_ready(arguments: list[str], log: Path) -> float:
    """Return the seconds to ready of one start and stop."""
    with started(arguments, log) as seconds:
        return seconds


def import_seconds(module: str) -> float:
    """A fresh interpreter's time with `import module`, beyond an empty one's."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    empty = time.monotonic()
    subprocess.run([sys.executable, "-c", f"import {module}"], check=True)
    return (time.monotonic() - empty) - (empty - began)


def assembly_seconds() -> dict[str, float]:
    """Parts of building the core, in a fresh process: the timeline the core reports."""
    code = (
        "import json; from kvasir_engine.core.build import build_core; "
        "from kvasir_engine.loader.model_directory import resolve_model; "
        "from kvasir_engine.settings import make_settings; "
        "model = 'builtin://kvasir-tiny'; "
        "core = build_core(make_settings(model), resolve_model(model)); "
        "print(json.dumps(core.built_runner.timings))"
    )
    made = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE)
    timings: dict[str, float] = json.loads(made.stdout)
    return timings


def timeline() -> Table:
    """Return the parts of a start. Core and API process import side by side."""
    rows = [[f"`import {name}`", f"{import_seconds(name):.2f}"] for name in MODULES]
    rows += [[f"core: {part}", f"{spent:.2f}"] for part, spent in assembly_seconds().items()]
    return Table("Parts of a start, each in a fresh process", ["part", "s"], rows)


def main() -> None:
    """Print and save."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/cpu/")
    options = parser.parse_args()
    warn_if_busy()
    figures = []
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory) / "log"
        for name, arguments, goal in (
            ("`kvasir serve builtin://kvasir-tiny`", SERVE, "<= 6"),
            ("`kvasir up -f manifests/tiny.yaml`", UP, "<= 10"),
        ):
            try:
                seconds_to_ready(arguments, log)
                runs = [seconds_to_ready(arguments, log) for _ in range(options.repeat)]
            except RuntimeError:
                sys.stderr.write(log.read_text())
                raise
            figures.append(Figure(f"{name} to /ready", "s", runs, goal))
    report = Report(
        "serve_start",
        "Start",
        "Wall time from starting the process to the first 200 of `/ready`, polled every 20 ms.",
        figures,
        [timeline()],
        ("torch", "numpy", "fastapi", "starlette", "uvicorn"),
    )
    report.publish(save=options.save)


if __name__ == "__main__":
    main()
