"""docs/benchmarks.md is what benchmarks/report.py makes of the committed results."""

import datetime
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
BENCHMARKS = ROOT / "benchmarks"


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True)


def test_the_page_belongs_to_the_committed_results():
    made = run(str(BENCHMARKS / "report.py"), "--check")
    assert made.returncode == 0, made.stderr


# zoo.json's rows are as e2e/gpu/zoo.py writes them: each names its commit, date and GPU.
OTHERS = ("zoo", "mutants")
RESULTS = sorted(it for it in BENCHMARKS.glob("results/**/*.json") if it.stem not in OTHERS)
ZOOS = sorted(BENCHMARKS.glob("results/*/zoo.json"))
WRITTEN = {
    *("name", "title", "work", "command", "commit", "date", "runs", "hardware", "versions"),
    *("figures", "tables"),
}


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_results_name_where_they_come_from_and_every_run(path: Path):
    content = json.loads(path.read_text())
    assert content.keys() >= WRITTEN
    assert all(content[each] for each in ("command", "commit", "hardware"))
    assert datetime.date.fromisoformat(content["date"])
    assert content["versions"]["python"]
    assert all(figure["runs"] for figure in content["figures"])
    assert content["runs"] == max(len(figure["runs"]) for figure in content["figures"])


@pytest.mark.parametrize("path", ZOOS, ids=lambda path: path.parent.name)
def test_models_of_the_zoo_name_where_their_figures_come_from(path: Path):
    rows = json.loads(path.read_text())
    (gpu,) = {row["gpu"] for row in rows.values()}
    page = (ROOT / "docs" / "zoo.md").read_text().partition(f"## {gpu}\n")[2].partition("\n## ")[0]
    for name, row in rows.items():
        assert (BENCHMARKS / "models" / "zoo" / name / "config.json").exists()
        assert datetime.date.fromisoformat(row["date"])
        assert row["commit"] in page.partition(f"| {name} |")[2].partition("\n")[0]


def test_a_script_writes_all_of_it(tmp_path: Path):
    code = (
        "from pathlib import Path; from common import Figure, Report, Table;"
        "table = Table('Beside others', ['figure', 'theirs'], [['x', '2']], 'theirs: a page');"
        "report = Report('x', 'X', 'Nothing.', [Figure('x', 'ms', [1.0])], [table]);"
        f"report.write(Path({str(tmp_path / 'x.json')!r})); report.publish(save=False)"
    )
    made = subprocess.run(
        [sys.executable, "-c", code], cwd=BENCHMARKS, capture_output=True, text=True, check=True
    )
    content = json.loads((tmp_path / "x.json").read_text())
    assert content.keys() == WRITTEN
    head = subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert content["commit"].removesuffix(" with changes") == head.stdout.strip()
    assert "| x | 1.00 ms |  |  | one run | 1.00 |" in made.stdout, "no spread of one run"
    assert made.stdout.endswith("| x | 2 |\n\ntheirs: a page\n")


def test_notes_belong_to_a_result_and_are_shown_after_it():
    titles = {path.stem: json.loads(path.read_text())["title"] for path in RESULTS}
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    notes = sorted((BENCHMARKS / "notes").glob("*.md"))
    assert notes
    for path in notes:
        part = page.partition(f"\n## {titles[path.stem]}\n")[2].partition("\n## ")[0]
        assert part.rstrip().endswith(path.read_text().rstrip())


def test_rivals_and_goals_name_their_source():
    floors = json.loads((BENCHMARKS / "models" / "floors.json").read_text())
    rows = [row for model in floors["models"].values() for row in model.values()]
    assert {name for row in rows for name in row} == floors["source"].keys()
    shown = "{vllm}. The modelled limit is {modelled_limit}.".format(**floors["source"])
    for path in (it for it in RESULTS if it.parent.name == "h200"):
        for table in json.loads(path.read_text())["tables"]:
            assert table["title"] != "Beside others" or table["source"] == shown


@pytest.mark.parametrize(
    ("goal", "runs", "met"),
    [
        ("<= 3", [2.0, 3.0, 9.0], True),
        ("<= 3", [2.0, 3.1, 9.0], False),
        (">= 2", [1.0, 2.0, 2.0], True),
        (">= 2", [1.9, 1.9, 5.0], False),
    ],
)
def test_the_median_meets_the_goal_or_not(goal: str, runs: list[float], met: bool):
    code = f"from common import Figure; print(Figure('x', 'ms', {runs}, {goal!r}).met)"
    made = subprocess.run(
        [sys.executable, "-c", code], cwd=BENCHMARKS, capture_output=True, text=True, check=True
    )
    assert made.stdout.strip() == str(met)


@pytest.mark.parametrize("script", ["benchmarks/gpu/start.py", "benchmarks/report.py"])
def test_the_command_names_the_scripts_folder(script: str):
    code = (
        f"import sys; sys.argv = [{str(ROOT / script)!r}, '--out', 'F', '--steps'];"
        "from common import Figure, Report;"
        "print(Report('x', 'X', 'Nothing.', [Figure('x', 'ms', [1.0])]).content()['command'])"
    )
    made = subprocess.run(
        [sys.executable, "-c", code], cwd=BENCHMARKS, capture_output=True, text=True, check=True
    )
    assert made.stdout == f"python {script} --steps\n"
