from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from kvasir_engine.server.process import start_serving
from kvasir_engine.server.process.serve_command import _file_api_keys, _fleet_secret, app, spread
from kvasir_engine.settings import EngineSettings, SettingsError

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


def test_the_file_of_keys_is_read_at_the_start(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("one\n\n  two \n")
    assert _file_api_keys(keys) == "one\n\n  two \n"
    assert _file_api_keys(None) is None


@pytest.mark.parametrize("content", [None, b"", b"\n \n", b"\xff\xfe"])
def test_an_unusable_file_of_keys_names_its_flag(tmp_path: Path, content: bytes | None) -> None:
    keys = tmp_path / "keys"
    if content is not None:
        keys.write_bytes(content)
    with pytest.raises(SettingsError, match=f"--api-key-file: {keys} cannot be"):
        _file_api_keys(keys)


def test_the_fleet_secret_comes_from_file_or_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVASIR_FLEET_SECRET", "from the environment")
    assert _fleet_secret(None) == "from the environment"
    (tmp_path / "secret").write_text("from the file\nanother\n")
    assert _fleet_secret(tmp_path / "secret") == "from the file\nanother\n"
    monkeypatch.setenv("KVASIR_FLEET_SECRET", "")
    assert _fleet_secret(None) is None


@pytest.mark.parametrize(
    ("file", "variable", "where"),
    [
        (b"", "", "--fleet-secret-file"),
        (b"\xff", "", "--fleet-secret-file"),
        (None, "s\u00e9cret", "KVASIR_FLEET_SECRET"),
        (None, "hash-key:a", "KVASIR_FLEET_SECRET"),
    ],
)
def test_a_fleet_secret_that_cannot_be_sent_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    file: bytes | None,
    variable: str,
    where: str,
) -> None:
    monkeypatch.setenv("KVASIR_FLEET_SECRET", variable)
    path = None if file is None else tmp_path / "secret"
    if path is not None:
        path.write_bytes(file or b"")
    with pytest.raises(SettingsError, match=where):
        _fleet_secret(path)


def test_settings_that_cannot_work_end_with_2_and_one_sentence() -> None:
    done = CliRunner().invoke(app, ["sim", "--api-processes", "0"])
    assert done.exit_code == 2
    assert done.stderr.count("\n") == 1
    assert "--api-processes" in done.stderr


def test_options_come_from_a_file_unless_they_are_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}

    def start(settings: EngineSettings, **server: Any) -> Any:
        seen.update(server, settings=settings)
        return SimpleNamespace(run=lambda: 0)

    monkeypatch.setattr(start_serving, "start", start)
    file = tmp_path / "serve.yaml"
    (tmp_path / "keys").write_text("of the file")
    file.write_text(
        f"api-key-file: {tmp_path}/keys\n"
        "model: builtin://kvasir-tiny\nport: 8001\nmax-num-seqs: 4\noverlap: false\n"
        "served_model_name: [a, b]\napi-key: k\nhost: 0.0.0.0\n"
    )
    done = CliRunner().invoke(app, ["--config", str(file), "--host", "::1"])
    assert done.exit_code == 0, done.output
    assert (seen["port"], seen["host"]) == (8001, "::1")
    assert (seen["served_model_names"], seen["api_keys"]) == (("a", "b"), ("k",))
    assert (seen["file_api_keys"], seen["api_key_file"]) == ("of the file", tmp_path / "keys")
    settings = seen["settings"]
    assert (settings.model, settings.scheduler.max_num_seqs) == ("builtin://kvasir-tiny", 4)
    assert settings.overlap is False


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("max-num-seq: 4", "'max-num-seq' is no option; did you mean 'max-num-seqs'?"),
        ("port: [1, 2]", "'port' takes one value, not a list"),
        ("host: {a: 1}", "'host' takes text, numbers, true or false"),
        ("port: many", "Invalid value for '--port'"),
        ("- port", "must hold one mapping of options"),
        ("a: [", "not valid YAML"),
    ],
)
def test_a_file_of_options_that_cannot_be_says_why(
    tmp_path: Path, content: str, sentence: str
) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text(f"{content}\n")
    done = CliRunner().invoke(app, ["m", "--config", str(file)], env={"COLUMNS": "300"})
    assert done.exit_code == 2
    assert sentence in done.stderr
