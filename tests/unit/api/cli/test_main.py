"""The `kvasir` command itself: what it lists, what it loads, how it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kvasir.cli.commands import COMMANDS
from kvasir.cli.root import app

pytestmark = pytest.mark.slow

API = Path(__file__).parents[4] / "api"
HEAVY = {"fastapi", "torch", "transformers", "pydantic", "httpx", "yaml", "rich", "numpy"}
PART = """
import sys, typer
{imports}
app = typer.Typer()

@app.command()
def it(number: int = 1, fail: bool = False) -> None:
    "Stands for a part's command."
    if fail:
        raise KeyboardInterrupt
    if number == 0:
        import surely_not_installed
    if number < 0:
        import kvasir.no_such_module
    print("number", number)
"""


@pytest.fixture
def install(tmp_path: Path, kvasir: Any) -> Callable[..., Any]:
    """Install a distribution that brings `serve`, and give back what runs `kvasir` with it."""

    def run(imports: str = "") -> Callable[..., subprocess.CompletedProcess[str]]:
        # The name of the real distribution, so that it comes before one that is installed.
        metadata = tmp_path / "kvasir-0.1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: kvasir\nVersion: 0.1.0\n")
        (metadata / "entry_points.txt").write_text("[kvasir.commands]\nserve = part_it:app\n")
        (tmp_path / "part_it.py").write_text(PART.format(imports=imports))
        path = f"{tmp_path}:{API}"
        return lambda *arguments, **env: kvasir(*arguments, PYTHONPATH=path, **env)

    return run


def test_help_lists_every_command_and_teaches(kvasir: Any) -> None:
    done = kvasir("--help")
    assert done.returncode == 0
    for info in COMMANDS:
        assert f"  {info.name} " in done.stdout
        assert info.help.split()[0] in done.stdout
    assert "kvasir up -f manifests/tiny.yaml" in done.stdout
    assert "KVASIR_API_KEY" in done.stdout
    assert kvasir().stdout.rstrip() == done.stdout.rstrip()


def test_help_and_version_import_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['kvasir', 'ARGUMENT']\n"
        "from kvasir.cli.main import main\n"
        "try: main()\nexcept SystemExit as end: assert end.code == 0\n"
        "print(*{name.partition('.')[0] for name in sys.modules}, file=sys.stderr)"
    )
    for argument, allowed in (("--help", set()), ("version", {"pydantic"})):
        done = subprocess.run(
            [sys.executable, "-c", code.replace("ARGUMENT", argument)],
            env={**os.environ, "PYTHONPATH": str(API)},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert HEAVY & set(done.stderr.split()) <= allowed


@pytest.mark.parametrize("name", [info.name for info in COMMANDS if info.target is not None])
def test_every_own_command_explains_itself(kvasir: Any, name: str) -> None:
    done = kvasir(name, "--help")
    assert done.returncode == 0
    assert f"Usage: kvasir {name} [OPTIONS]" in done.stdout
    assert f"  kvasir {name}" in done.stdout.partition("Example")[2]
    assert "--install-completion" not in done.stdout


def test_a_part_is_found_by_its_entry_point(install: Any) -> None:
    kvasir = install()
    assert kvasir("serve", "--number", "3").stdout == "number 3\n"
    done = kvasir("serve", "--help")
    assert "Stands for a part's command." in done.stdout
    assert "--install-completion" not in done.stdout
    assert "kvasir serve" in done.stdout


@pytest.mark.parametrize(
    ("imports", "arguments"), [("import surely_not_installed", []), ("", ["--number", "0"])]
)
def test_a_part_that_is_not_installed(install: Any, imports: str, arguments: list[str]) -> None:
    done = install(imports)("serve", *arguments)
    assert done.returncode == 2
    assert done.stderr == (
        "kvasir: serve is not installed (surely_not_installed is missing); install with"
        " pip install 'kvasir[engine]' (see kvasir --help)\n"
    )


@pytest.mark.parametrize(
    ("imports", "arguments"), [("import kvasir.no_such_module", []), ("", ["--number", "-1"])]
)
def test_a_fault_of_a_part_is_not_taken_for_its_absence(
    install: Any, imports: str, arguments: list[str]
) -> None:
    done = install(imports)("serve", *arguments)
    assert done.returncode == 1
    assert "ModuleNotFoundError" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["vesion"], "No such command 'vesion'. Did you mean 'version'? (see kvasir --help)"),
        (["version", "--jsn"], "No such option: --jsn"),
        (["version", "extra"], "Got unexpected extra argument(s) (extra)"),
        (["up"], "Missing option '--file' / '-f'. (see kvasir up --help)"),
        (
            ["up", "-f", "x", "--port", "0"],
            "Invalid value for '--port': must be greater than or equal to 1, not '0'",
        ),
        (
            ["up", "-f", "x", "--port", "http"],
            "for '--port': must be a valid integer, not 'http' (see kvasir up --help)",
        ),
        (["up", "-f", "/no/such.yaml"], "/no/such.yaml does not exist; check the path"),
    ],
)
def test_bad_usage_is_one_sentence(kvasir: Any, arguments: list[str], sentence: str) -> None:
    done = kvasir(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("kvasir: ")
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_group_without_a_command_shows_its_help(kvasir: Any) -> None:
    done = kvasir("keys")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("Usage: kvasir keys")
    assert "  create " in done.stderr


def test_an_interrupt_is_not_a_traceback(install: Any) -> None:
    done = install()("serve", "--fail")
    assert (done.returncode, done.stdout, done.stderr.strip()) == (130, "", "")


def test_an_interrupt_while_it_loads(tmp_path: Path, kvasir: Any) -> None:
    (tmp_path / "typer.py").write_text("raise KeyboardInterrupt")
    done = kvasir("version", PYTHONPATH=f"{tmp_path}:{API}")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_a_reader_that_goes_away(tmp_path: Path) -> None:
    command = f"{sys.executable} -m kvasir --help | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command],
        env={**os.environ, "PYTHONPATH": str(API), "PYTHONUNBUFFERED": "1"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "Traceback" not in done.stderr


def complete(kvasir: Any, words: str, **env: str) -> list[str]:
    count = str(len(words.split(" ")) - 1)
    done = kvasir(_KVASIR_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=count, **env)
    return str(done.stdout).split()


def test_completion(kvasir: Any) -> None:
    assert complete(kvasir, "kvasir ") == [info.name for info in COMMANDS]
    assert complete(kvasir, "kvasir p") == ["plan"]
    assert "--gpu-memory" in complete(kvasir, "kvasir plan --gpu")


def test_completion_is_installed(kvasir: Any, tmp_path: Path) -> None:
    # The shell is named: the one that tests run under may be none that Typer knows.
    env = {"HOME": str(tmp_path), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    script = kvasir("--show-completion", "bash", **env).stdout
    assert "_KVASIR_COMPLETE=complete_bash" in script
    assert kvasir("--install-completion", "bash", **env).returncode == 0
    (installed,) = tmp_path.glob(".bash_completions/*")
    assert installed.read_text().strip() == script.strip()
    assert str(installed) in (tmp_path / ".bashrc").read_text()


def test_completion_of_parts(install: Any) -> None:
    assert complete(install(), "kvasir serve --nu") == ["--number"]


def test_completion_of_an_absent_part_offers_nothing_of_it(install: Any) -> None:
    kvasir = install("import surely_not_installed")
    assert "--number" not in complete(kvasir, "kvasir serve --")


def test_version(kvasir: Any) -> None:
    from importlib.metadata import version

    from kvasir import __version__

    found = json.loads(kvasir("version", "--json").stdout)
    assert found["kvasir"] == __version__
    assert found["python"] == sys.version.split()[0]
    assert found["parts"]["torch"] == version("torch")
    lines = dict(line.split() for line in kvasir("version").stdout.splitlines())
    assert lines == {"kvasir": __version__, "python": found["python"], **found["parts"]}


def test_console_script_of_the_root() -> None:
    result = CliRunner().invoke(app, ["version"])
    assert result.exit_code == 0
