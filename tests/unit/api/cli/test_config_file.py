"""Options from a file, for a command of a few."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from kvasir.cli.config_file import read_options

app = typer.Typer(add_completion=False)


@app.command()
def command(
    number: int = 1,
    name: Annotated[str, typer.Option(envvar="COMMANDS_NAME")] = "default",
    fields: Annotated[str | None, typer.Option(metavar="JSON")] = None,
    several: Annotated[list[str] | None, typer.Option()] = None,
    config: Annotated[Path | None, typer.Option(is_eager=True, callback=read_options)] = None,
) -> None:
    typer.echo(f"{number} {name} {several}" if fields is None else fields)


@pytest.mark.parametrize(
    ("content", "arguments", "environment", "printed"),
    [
        ("number: 2", [], {}, "2 default None"),
        ("number: 2", ["--number", "3"], {}, "3 default None"),
        ("name: file", [], {"COMMANDS_NAME": "environment"}, "1 environment None"),
        ("several: one", [], {}, "1 default ['one']"),
        ("several: [one, two]", [], {}, "1 default ['one', 'two']"),
        ("several: [one]", ["--several", "two"], {}, "1 default ['two']"),
        ("fields: {a: {b: [1]}}", [], {}, '{"a": {"b": [1]}}'),
        ("fields: '{}'", [], {}, "{}"),
    ],
)
def test_the_command_line_comes_first_then_the_environment(
    tmp_path: Path,
    content: str,
    arguments: list[str],
    environment: dict[str, str],
    printed: str,
) -> None:
    file = tmp_path / "options.yaml"
    file.write_text(content)
    done = CliRunner().invoke(app, [*arguments, "--config", str(file)], env=environment)
    assert done.output.strip() == printed


@pytest.mark.parametrize("content", [None, b"\xff"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "options.yaml"
    if content is not None:
        file.write_bytes(content)
    done = CliRunner().invoke(app, ["--config", str(file)], env={"COLUMNS": "300"})
    assert done.exit_code == 2
    assert f"{file} cannot be read" in done.stderr
