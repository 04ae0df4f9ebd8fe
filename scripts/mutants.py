"""Mutation testing: change the code in one place, and see whether one of its tests fails.

    scripts/mutants.py                            300 mutants of all subjects, saved in
                                                  benchmarks/results/mutants.json
    scripts/mutants.py --subject claims           only the 50 of these, printed
    scripts/mutants.py --subject claims --save    and saved in place of the earlier ones
    scripts/mutants.py --subject claims --again   the saved survivors, after tests were added; saved

A mutant is drawn by `--seed` from all that cosmic-ray's operators can make of a subject's files;
what changes nothing but annotations or docstrings is none. It is killed when a test fails, or when
the tests need five times the CPU time that they need without it. The module's own test file runs
first, then the others in the order of what they have killed so far.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from math import ceil
from pathlib import Path
from queue import Queue
from typing import Any

from mutant_draw import SUBJECTS, TOP, Mutant, Subject, drawn, mutant_at, mutated

sys.path.append(str(TOP / "benchmarks"))

from common import RESULTS, commit

COPIED = ("api", "engine", "router", "operator", "tests", "e2e", "charts", "images", "manifests")
PATIENCE = 5
"""Times the tests' own CPU time after which a mutant hangs."""
WAIT = 60
"""Seconds that one test may wait: what hangs without using the CPU."""
MEMORY = 12 << 30
"""Bytes of address space: a mutant that allocates without end ends alone."""


class Tests:
    """The test files of a subject, in the order in which they are likely to tell."""

    def __init__(self, subject: Subject) -> None:
        found = (TOP / each for each in subject.tests)
        files = (
            path
            for it in found
            for path in (sorted(it.rglob("test_*.py")) if it.is_dir() else [it])
        )
        self._kills = Counter({str(path.relative_to(TOP)): 0 for path in files})

    def killed_by(self, file: str) -> None:
        """Count a mutant that this file killed."""
        if file in self._kills:
            self._kills[file] += 1

    def stages(self, module: str = "") -> list[list[str]]:
        """Return the files in two lots: those likely to tell, the module's own first, and the rest.
        Each lot costs its collection."""
        own = f"test_{Path(module).stem}.py"
        files = sorted(self._kills, key=lambda it: (Path(it).name != own, -self._kills[it]))
        return [lot for lot in (files[:_LIKELY], files[_LIKELY:]) if lot]


_LIKELY = 3


QUIET = ("-W", "ignore::pytest.PytestAssertRewriteWarning")
"""Options that hush pytest about plugins that are loaded before it."""
SERVER = """
import json, os, resource, signal, sys
import hypothesis.stateful, numpy, pydantic, pytest, yaml

for line in sys.stdin:
    arguments, seconds, memory, output = json.loads(line)
    child = os.fork()
    if child == 0:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for descriptor in (1, 2):
            os.dup2(file, descriptor)
        code = pytest.main(arguments)
        sys.stdout.flush()
        os._exit(code)
    _, status, used = os.wait4(child, 0)
    try:
        os.killpg(child, signal.SIGKILL)
    except ProcessLookupError:
        pass
    print(json.dumps([os.waitstatus_to_exitcode(status), used.ru_utime]), flush=True)
"""
"""Program that runs pytest in a fork of itself for each line that it reads: starting it anew, with
the packages of others, takes longer than most mutants live."""


class Copy:
    """A copy of the tree, and who runs its tests."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        left_out = shutil.ignore_patterns("__pycache__")
        for name in COPIED:
            shutil.copytree(TOP / name, directory / name, ignore=left_out)
        shutil.copy(TOP / "pyproject.toml", directory)
        packages = ":".join(str(directory / it) for it in ("api", "engine", "router", "operator"))
        # Seeded by the profile: a mutant is killed or not by the same examples each time
        self._server = subprocess.Popen(
            [sys.executable, "-c", SERVER],
            cwd=directory,
            env={
                **os.environ,
                "HYPOTHESIS_PROFILE": "unshrunk",
                "PYTHONPATH": packages,
                "PYTHONDONTWRITEBYTECODE": "1",
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def close(self) -> None:
        """End who runs the tests."""
        self._server.kill()
        self._server.wait()

    def survives(self, mutant: Mutant, tests: Tests, seconds: int) -> bool:
        """Tell if the tests pass with the mutant."""
        path = self._directory / mutant.file
        source = path.read_text()
        try:
            path.write_text(mutated(source, mutant.operator, mutant.occurrence))
            lots = tests.stages(mutant.file)
            found = (self._failing(lot, seconds)[0] for lot in lots)
            killer = next((file for file in found if file is not None), None)
        finally:
            path.write_text(source)
        tests.killed_by(killer or "")
        return killer is None

    def seconds(self, tests: Tests) -> int:
        """Return the CPU time of the tests without a mutant. Raises SystemExit where they fail."""
        total = 0.0
        for lot in tests.stages():
            file, used = self._failing(lot, 600)
            if file is not None:
                raise SystemExit(f"mutants: {file} fails without a mutant")
            total += used
        return ceil(total)

    def _failing(self, tests: list[str], seconds: int) -> tuple[str | None, float]:
        """Run pytest for so much CPU time; return the file of the first test that fails, "" where
        pytest itself ends, None where all pass; and the CPU time."""
        options = ("-x", "-q", "-n0", "--tb=no", "-rfE", "-p", "no:cacheprovider", *QUIET)
        output = self._directory / "output"
        order = [[*options, f"--timeout={WAIT}", *tests], seconds, MEMORY, str(output)]
        print(json.dumps(order), file=self._server.stdin, flush=True)
        code, used = json.loads(next(iter(self._server.stdout or ())))
        if code == 0:
            return None, used
        told = output.read_text(errors="replace")
        found = re.search(r"^(?:FAILED|ERROR) ([^: ]+)", told, re.MULTILINE)
        return found[1] if found else "", used


@dataclass(frozen=True)
class Verdict:
    """The numbers and the survivors of a subject's mutants."""

    subject: str
    command: str
    commit: str
    date: str
    places: int
    mutants: int
    killed: int
    survivors: list[Mutant]

    def __str__(self) -> str:
        return (
            f"{self.subject}: {self.killed} of {self.mutants} killed "
            f"({self.killed / max(self.mutants, 1):.1%}); drawn from {self.places} places"
        )


def judged(subject: Subject, copies: list[Copy], count: int, seed: int, minutes: float) -> Verdict:
    """Run the tests over `count` mutants of the subject, or as many as are begun within `minutes`;
    print those that survive."""
    mutants, places = drawn(subject, count, seed)
    survive = _survive(subject, mutants, copies, minutes)
    survivors = [mutant for mutant, alive in zip(mutants, survive, strict=True) if alive]
    known = sum(alive is not None for alive in survive)
    numbers = (places, known, known - len(survivors))
    return Verdict(subject.name, _command(), commit(), _today(), *numbers, survivors)


def judged_again(subject: Subject, copies: list[Copy], minutes: float) -> Verdict:
    """Run the tests over the saved survivors of the subject; those it was too late for stay.

    Raises SystemExit where the code has changed around them: added tests can only kill more, but
    of other code the other saved mutants may live."""
    saved = saved_subjects().get(subject.name, {"survivors": []})
    before = [Mutant(**each) for each in saved["survivors"]]
    for it in before:
        if mutant_at(it.subject, it.file, it.operator, it.occurrence) != it:
            raise SystemExit(f"mutants: {it.file} has changed, so draw anew, without --again")
    survive = _survive(subject, before, copies, minutes)
    left = [it for it, alive in zip(before, survive, strict=True) if alive is not False]
    told = {
        "command": f"{saved['command']}; {_command()}",
        "commit": commit(),
        "date": _today(),
        "killed": saved["mutants"] - len(left),
        "survivors": left,
    }
    return Verdict(**{**saved, **told})


def _survive(
    subject: Subject, mutants: list[Mutant], copies: list[Copy], minutes: float
) -> list[bool | None]:
    """Tell of each mutant if it survives, None where it was too late to begin; print those."""
    end = time.monotonic() + 60 * minutes
    tests = Tests(subject)
    limit = PATIENCE * copies[0].seconds(tests) + 10
    free: Queue[Copy] = Queue()
    for copy in copies:
        free.put(copy)

    def survives(mutant: Mutant) -> bool | None:
        if time.monotonic() > end:
            return None
        copy = free.get()
        try:
            return copy.survives(mutant, tests, limit)
        finally:
            free.put(copy)

    told = []
    with ThreadPoolExecutor(len(copies)) as pool:
        for mutant, alive in zip(mutants, pool.map(survives, mutants), strict=True):
            told.append(alive)
            if alive:
                print(f"survives: {mutant}", flush=True)
    return told


def _command() -> str:
    return " ".join(["scripts/mutants.py", *sys.argv[1:]])


def _today() -> str:
    return datetime.now(UTC).date().isoformat()


def saved_subjects() -> dict[str, dict[str, Any]]:
    """The saved verdicts by their subjects' names."""
    path = RESULTS / "mutants.json"
    saved = json.loads(path.read_text())["subjects"] if path.exists() else []
    return {each["subject"]: each for each in saved}


def save(verdicts: list[Verdict]) -> None:
    """Write the verdicts in place of the earlier ones of their subjects."""
    path = RESULTS / "mutants.json"
    known = {**saved_subjects(), **{each.subject: asdict(each) for each in verdicts}}
    subjects = [known[each.name] for each in SUBJECTS if each.name in known]
    totals = {key: sum(each[key] for each in subjects) for key in ("mutants", "killed")}
    path.write_text(json.dumps({**totals, "subjects": subjects}, indent=1) + "\n")


def main() -> None:
    """Draw, judge and print; save what all subjects gave."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--count", type=int, default=50, help="mutants of each subject")
    parser.add_argument("--minutes", type=float, default=60, help="time for each subject")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--subject", choices=[each.name for each in SUBJECTS], action="append")
    parser.add_argument("--save", action="store_true", help="also what --subject gave")
    parser.add_argument("--again", action="store_true", help="only the saved survivors; saved")
    given = parser.parse_args()
    subjects = [it for it in SUBJECTS if given.subject is None or it.name in given.subject]
    with tempfile.TemporaryDirectory() as directory:
        copies = [Copy(Path(directory) / str(number)) for number in range(given.jobs)]
        try:
            for subject in subjects:
                if given.again:
                    verdict = judged_again(subject, copies, given.minutes)
                else:
                    verdict = judged(subject, copies, given.count, given.seed, given.minutes)
                print(verdict, flush=True)
                if given.save or given.again or given.subject is None:
                    save([verdict])
        finally:
            for copy in copies:
                copy.close()


if __name__ == "__main__":
    main()
