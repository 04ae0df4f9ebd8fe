"""Shared parts of the benchmark scripts: the machine, the runs' figures, and files of results."""

from __future__ import annotations

import datetime
import json
import operator
import os
import platform
import ssl
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from kvasir.cli.local.ports import free_ports

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
NOTES = ROOT / "benchmarks" / "notes"
TINY_MODEL = ROOT / "engine" / "kvasir_engine" / "assets" / "tiny"
UNKNOWN = "unknown"
"""Value in a file of results for something that was not written down."""
_COMPARE = {"<=": operator.le, ">=": operator.ge}
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Figure:
    """One measured quantity of all runs. `goal` is an operator and a number: "<= 3"."""

    name: str
    unit: str
    runs: list[float]
    goal: str = ""
    digits: int = 2

    @property
    def median(self) -> float:
        return statistics.median(self.runs)

    @property
    def met(self) -> bool | None:
        """True if the median meets the goal; None without one."""
        if not self.goal:
            return None
        sign, number = self.goal.split()
        return bool(_COMPARE[sign](self.median, float(number)))


@dataclass(frozen=True)
class Table:
    """Further numbers of one run, as they are shown."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    source: str = ""
    """Source of numbers that were not measured here."""


@dataclass(frozen=True)
class Report:
    """The results of one script, as `report.py` reads them."""

    name: str
    title: str
    work: str
    """Description of what was done, in one or two sentences."""
    figures: list[Figure]
    tables: list[Table] = field(default_factory=list)
    packages: tuple[str, ...] = ()
    """Packages whose versions matter."""
    values: dict[str, Any] = field(default_factory=dict)
    """Summaries for programs, beside the rest."""
    folder: str = "cpu"
    """Folder of the file, under benchmarks/results."""

    def content(self) -> dict[str, Any]:
        """Return the content of the file of results."""
        return {
            "name": self.name,
            "title": self.title,
            "work": self.work,
            "command": " ".join(["python", _script(), *_arguments()]),
            "commit": commit(),
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "runs": max(len(figure.runs) for figure in self.figures),
            "hardware": machine(),
            "versions": {
                "python": platform.python_version(),
                **{package: version(package) for package in self.packages},
            },
            "figures": [
                {**asdict(figure), "median": figure.median, "met": figure.met}
                for figure in self.figures
            ],
            "tables": [asdict(table) for table in self.tables],
            **self.values,
        }

    def write(self, path: Path) -> None:
        """Write the file of results."""
        path.write_text(json.dumps(self.content(), indent=1) + "\n")

    def publish(self, *, save: bool) -> None:
        """Print everything; with `save`, write benchmarks/results/FOLDER/NAME.json too."""
        print("\n".join(render(self.content())))
        if save:
            path = RESULTS / self.folder / f"{self.name}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            self.write(path)
            print(f"written to {path.relative_to(ROOT)}")


def _script() -> str:
    """Return the path of the running program, below the repository where it lies there."""
    script = Path(sys.argv[0]).resolve()
    return str(script.relative_to(ROOT)) if script.is_relative_to(ROOT) else script.name


def _arguments() -> list[str]:
    """Return the program's arguments but for --out, a path on the machine that it ran on."""
    given = sys.argv[1:]
    return [
        it for before, it in zip(["", *given], given, strict=False) if "--out" not in (before, it)
    ]


def render(content: dict[str, Any]) -> list[str]:
    """Lines of Markdown for one file of results."""
    versions = ", ".join(f"{name} {number}" for name, number in content["versions"].items())
    lines = [f"## {content['title']}", "", content["work"], ""]
    command = content["command"]
    lines += [
        f"{command if command == UNKNOWN else f'`{command}`'}, commit {content['commit']}, "
        f"{content['date']}, {_count(content['runs'])}, {content['hardware']}; {versions}.",
        "",
    ]
    columns = ["figure", "median", "goal", "met", "spread", "runs"]
    lines += markdown_table(columns, [_figure_row(figure) for figure in content["figures"]])
    for table in content["tables"]:
        if not any(cell for row in table["rows"] for cell in row[2:]) and len(table["columns"]) > 2:
            continue  # Nothing stands beside what is already above.
        lines += ["", f"{table['title']}:", "", *markdown_table(table["columns"], table["rows"])]
        if table.get("source"):
            lines += ["", table["source"]]
    return lines


def _count(runs: int) -> str:
    return "one run" if runs == 1 else f"{runs} runs"


def _figure_row(figure: dict[str, Any]) -> list[str]:
    runs, digits = figure["runs"], figure["digits"]
    median = figure["median"]
    spread = f"{(max(runs) - min(runs)) / abs(median):.0%}" if median else "-"
    if len(runs) == 1:
        spread = _count(1)
    met = {True: "yes", False: "**no**", None: ""}[figure["met"]]
    return [
        figure["name"],
        f"{median:,.{digits}f} {figure['unit']}".rstrip(),
        figure["goal"],
        met,
        spread,
        " ".join(f"{run:.{digits}f}" for run in runs),
    ]


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table."""
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def commit() -> str:
    """Return the commit of this checkout, and whether its code was changed since.

    KVASIR_COMMIT says it instead where a copy of the checkout has another history, or none.
    """
    if told := os.environ.get("KVASIR_COMMIT"):
        return told
    git = ["git", "-C", str(ROOT)]
    try:
        head = subprocess.run(
            [*git, "rev-parse", "--short=12", "HEAD"], check=True, capture_output=True, text=True
        ).stdout.strip()
        results = ":(exclude)benchmarks/results"
        changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", ".", results], check=False)
    except (OSError, subprocess.CalledProcessError):
        return UNKNOWN
    return f"{head} with changes" if changed.returncode else head


def machine() -> str:
    """CPU model, cores, memory."""
    model = platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return f"{model}, {os.cpu_count()} cores, {pages / 2**30:.0f} GiB"


def hardware() -> str:
    """The GPU and the machine around it."""
    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    return f"{gpu}; {machine()}"


def warn_if_busy() -> None:
    """Say so when other work would spoil the figures."""
    load = os.getloadavg()[0]
    if load > 0.5:
        print(f"note: the machine's load is {load:.1f}; measure on an idle one.", file=sys.stderr)


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far, of all its threads (/proc/PID/stat)."""
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(after_name[11]) + int(after_name[12])) / _TICKS


def resident_mib(pid: int) -> float:
    """Memory of a process that is in RAM."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def metric(port: int, name: str) -> float:
    """Sum of a metric's series, of a process that serves /metrics on 127.0.0.1."""
    return sum(metric_series(port, name).values())


def metric_series(port: int, name: str) -> dict[str, float]:
    """A metric's series by their labels, as its exposition writes them."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    series = (each.rpartition(" ") for each in lines if each.startswith((f"{name}{{", f"{name} ")))
    return {labels.removeprefix(name): float(value) for labels, _, value in series}


def children(pid: int) -> list[int]:
    """Processes that `pid` started."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


def command_line(pid: int) -> str:
    """A process's arguments, joined by spaces."""
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on."""
    return free_ports(1)[0]


def wait_for(
    url: str, *, within: float, process_alive: Any, tls: ssl.SSLContext | None = None
) -> float:
    """Poll `url` until it answers 200; the monotonic time then. Raises RuntimeError."""
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        if not process_alive():
            raise RuntimeError(f"the process ended before {url} answered.")
        try:
            with urllib.request.urlopen(url, timeout=1, context=tls):
                return time.monotonic()
        except (urllib.error.URLError, OSError):
            time.sleep(0.02)
    raise RuntimeError(f"{url} did not answer within {within:.0f} s.")
