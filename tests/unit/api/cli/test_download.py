"""The command's ends: exit status, what it prints, what it leaves for Kubernetes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.llama_config import LLAMA_8B
from typer.testing import CliRunner, Result

from kvasir.cli import download as command
from kvasir.models.download.progress import DownloadPhase, parse_progress


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where Kubernetes would read the last words."""
    file = tmp_path / "termination-log"
    file.touch()
    monkeypatch.setattr(command, "TERMINATION_LOG", file)
    return file


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    """A claim with a model without weights but in a pickle."""
    directory = tmp_path / "volume" / "m"
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(LLAMA_8B))
    (directory / "pytorch_model.bin").write_bytes(b"pickle")
    return directory.parent


def run(*arguments: str) -> Result:
    return CliRunner().invoke(command.app, arguments)


def test_a_model_that_is_there_is_printed_and_reported(volume: Path, log: Path) -> None:
    done = run("pvc://claim/m", "--to", str(volume), "--include", "*.bin", "--progress-port", "0")
    assert (done.exit_code, done.stdout.strip()) == (0, str(volume / "m"))
    told = parse_progress(log.read_text())
    assert told.phase is DownloadPhase.DONE
    assert told.config == LLAMA_8B


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("pvc://claim/m",), "no safetensors files; convert the model"),
        (("pvc://claim/absent",), "no directory absent"),
        (("ftp://host/x",), "scheme 'ftp' is not one of"),
        (("builtin://kvasir-tiny",), "needs no download"),
        (("s3://bucket/m", "--revision", "main"), "--revision has a meaning only with hf://"),
        (("hf://a/b", "--max-size", "huge"), "is not an amount of memory"),
        (("hf://a/b", "--in-use", "nope://x"), "scheme 'nope' is not one of"),
    ],
)
def test_what_must_be_changed_first_ends_with_2_and_says_so(
    volume: Path, log: Path, arguments: tuple[str, ...], message: str
) -> None:
    done = run(*arguments, "--to", str(volume))
    assert done.exit_code == 2
    assert message in done.stderr
    told = parse_progress(log.read_text())
    assert (told.phase, told.permanent) == (DownloadPhase.FAILED, True)
    assert message in str(told.error)


def test_what_may_pass_ends_with_1(log: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = run("pvc://claim/m", "--to", str(tmp_path / "file"))
    assert done.exit_code == 2
    done = run("s3://bucket/m", "--to", str(tmp_path / "file" / "below"))
    assert done.exit_code == 1
    assert "cannot be written" in done.stderr
    assert not parse_progress(log.read_text()).permanent


def test_a_port_that_is_taken_is_said(volume: Path, log: Path) -> None:
    done = run(
        "pvc://claim/m",
        "--to",
        str(volume),
        "--progress-port",
        "1",
        "--progress-host",
        "203.0.113.9",
    )
    assert done.exit_code == 2
    assert "--progress-port 1 cannot be used" in done.stderr
