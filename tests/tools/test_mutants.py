"""scripts/mutants.py: what counts as a mutant, which tests run first, what is saved."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]
sys.path.append(str(TOP / "scripts"))

import mutant_draw  # noqa: E402
import mutants  # noqa: E402

CODE = """
@dataclass(frozen=True)
class A:
    "It says."
    x: int = 1

def f(a, *, b=2):
    return a + b if zip(a, b, strict=True) else 0
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("frozen=True", "frozen=False"),
        ("x: int", "x: str | None"),
        ("a, *, b", "a, b"),
        ("It says", "It says more"),
        ("strict=True", "strict=False"),
        ("return", "# why\n    return"),
    ],
)
def test_what_only_readers_and_mypy_see_is_no_mutant(old: str, new: str) -> None:
    assert mutant_draw.meaning_of(CODE.replace(old, new)) == mutant_draw.meaning_of(CODE)


@pytest.mark.parametrize(
    ("old", "new"),
    [("a + b", "a - b"), ("b=2", "b=3"), ("int = 1", "int = 0"), ("@data", "@other")],
)
def test_what_runs_otherwise_is_one(old: str, new: str) -> None:
    assert mutant_draw.meaning_of(CODE.replace(old, new)) != mutant_draw.meaning_of(CODE)


def test_a_seed_draws_the_same_mutants_each_time() -> None:
    [claims] = [it for it in mutant_draw.SUBJECTS if it.name == "claims"]
    (first, places), (again, _), (other, _) = (mutant_draw.drawn(claims, 6, it) for it in (1, 1, 2))
    assert first == again != other
    assert len(first) == 6 < places
    for mutant in first:
        source = (TOP / mutant.file).read_text()
        made = mutant_draw.mutated(source, mutant.operator, mutant.occurrence)
        assert mutant_draw.changed_line(source, made) == (mutant.line, mutant.before, mutant.after)


def test_all_subjects_name_files_that_exist() -> None:
    assert all(subject.paths() for subject in mutant_draw.SUBJECTS)
    with pytest.raises(SystemExit, match=r"no file matches api/none\.py"):
        mutant_draw.Subject("x", ("api/none.py",), ("tests/tools",)).paths()


def test_a_modules_own_tests_run_first_and_then_those_that_tell() -> None:
    [pool] = [it for it in mutant_draw.SUBJECTS if it.name == "block pool"]
    tests = mutants.Tests(mutant_draw.Subject("x", (), ("tests/unit/engine/kv",)))
    for _ in range(2):
        tests.killed_by("tests/unit/engine/kv/test_events.py")
    tests.killed_by("tests/unit/engine/kv/test_groups.py")
    tests.killed_by("")
    likely, rest = tests.stages("engine/kvasir_engine/kv/manager.py")
    assert [Path(it).name for it in likely] == [
        "test_manager.py",
        "test_events.py",
        "test_groups.py",
    ]
    assert "test_block_pool.py" in {Path(it).name for it in rest}
    assert mutants.Tests(pool).stages() == [list(pool.tests)]


def test_a_subject_s_verdict_takes_the_place_of_its_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def verdict(subject: str, killed: int) -> object:
        return mutants.Verdict(subject, "command", "c0ffee", "2026-01-01", 90, 10, killed, [])

    monkeypatch.setattr(mutants, "RESULTS", tmp_path)
    mutants.save([verdict("plan", 8), verdict("scheduler", 9)])
    mutants.save([verdict("plan", 10)])
    saved = json.loads((tmp_path / "mutants.json").read_text())
    assert (saved["mutants"], saved["killed"]) == (20, 19)
    assert [(it["subject"], it["killed"]) for it in saved["subjects"]] == [
        ("scheduler", 9),
        ("plan", 10),
    ]


def test_saved_survivors_are_judged_again_where_the_code_is_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [claims] = [it for it in mutant_draw.SUBJECTS if it.name == "claims"]
    found, places = mutant_draw.drawn(claims, 3, 1)
    saved = mutants.Verdict("claims", "first", "c0ffee", "2026-01-01", places, 50, 47, found)
    monkeypatch.setattr(mutants, "RESULTS", tmp_path)
    mutants.save([saved])
    monkeypatch.setattr(mutants, "_survive", lambda *_: [True, False, None])
    again = mutants.judged_again(claims, [], 1.0)
    assert (again.mutants, again.killed, again.survivors) == (50, 48, [found[0], found[2]])
    assert again.command.startswith("first; ")

    mutants.save([replace(saved, survivors=[replace(found[0], before="other")])])
    with pytest.raises(SystemExit, match="draw anew, without --again"):
        mutants.judged_again(claims, [], 1.0)
