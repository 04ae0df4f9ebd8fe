from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvasir_engine.server.process.serve_command import _fleet_secret, _lines, app, spread
from kvasir_engine.settings import SettingsError

NAMES = "--served-model-name a --served-model-name b"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("m --served-model-name a b --port 1", f"m {NAMES} --port 1"),
        ("--api-key k m", "--api-key k --api-key m"),
        ("m --port 1 2", "m --port 1 2"),
        (f"m {NAMES}", f"m {NAMES}"),
    ],
)
def test_a_flag_of_several_values_is_repeated(given: str, expected: str) -> None:
    assert spread(given.split()) == expected.split()


def test_a_secrets_file_is_read_line_by_line(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("one\n\n  two \n")
    assert _lines(keys, "--api-key-file") == ["one", "two"]
    assert _lines(None, "--api-key-file") == []


@pytest.mark.parametrize("content", [None, b"", b"\n \n", b"\xff\xfe"])
def test_an_unusable_secrets_file_names_its_flag(tmp_path: Path, content: bytes | None) -> None:
    keys = tmp_path / "keys"
    if content is not None:
        keys.write_bytes(content)
    with pytest.raises(SettingsError, match="--api-key-file"):
        _lines(keys, "--api-key-file")


def test_the_fleet_secret_comes_from_file_or_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVASIR_FLEET_SECRET", "from the environment")
    assert _fleet_secret(None) == "from the environment"
    (tmp_path / "secret").write_text("from the file\n")
    assert _fleet_secret(tmp_path / "secret") == "from the file"
    monkeypatch.setenv("KVASIR_FLEET_SECRET", "")
    assert _fleet_secret(None) is None


def test_settings_that_cannot_work_end_with_2_and_one_sentence() -> None:
    done = CliRunner().invoke(app, ["sim", "--api-processes", "0"])
    assert done.exit_code == 2
    assert done.stderr.count("\n") == 1
    assert "--api-processes" in done.stderr
