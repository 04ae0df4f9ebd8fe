"""The plugin as one file: it runs where nothing is installed, and krew takes its archive."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import stat
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
URL = "https://example.com/releases/"


@pytest.fixture(scope="module")
def builder() -> Any:
    spec = importlib.util.spec_from_file_location("builder", ROOT / "scripts" / "build_plugin.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def build(out: Path) -> Path:
    """Build for this machine and this Python, and return the folder."""
    machine = {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine]
    command = [sys.executable, "scripts/build_plugin.py", "--out", out, "--python", PYTHON]
    command += ["--platform", f"linux-{machine}", "--base-url", URL]
    command += ["--homepage", "https://example.com"]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=280)
    return out


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("built"))


@pytest.fixture
def unpacked(built: Path, tmp_path: Path) -> Path:
    """What krew has of the archive."""
    [archive] = built.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        opened.extractall(tmp_path, filter="data")
    return tmp_path


def run(file: Path, cache: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run it by a Python without any package."""
    python = getattr(sys, "_base_executable", sys.executable)  # not that of our environment
    command = [python, "-S", "-E", file, *arguments]
    env = {"PATH": os.environ["PATH"], "HOME": str(cache), "XDG_CACHE_HOME": str(cache)}
    options = {"capture_output": True, "text": True, "timeout": 120, "cwd": ROOT}
    return subprocess.run(command, env=env, **options)


@pytest.mark.slow
def test_it_runs_where_nothing_is_installed(unpacked: Path) -> None:
    file, cache = unpacked / "kubectl-kvasir", unpacked / "cache"
    assert file.stat().st_mode & stat.S_IXUSR
    assert file.read_bytes().startswith(b"#!/usr/bin/env python3\n")
    helped = run(file, cache, "--help")
    assert helped.returncode == 0, helped.stderr
    assert "Usage: kubectl kvasir" in helped.stdout
    made = run(file, cache, "convert", "--", "vllm", "serve", "a/b")
    assert yaml.safe_load(made.stdout)["kind"] == "LLMDeployment"
    nowhere = run(file, cache, "status", "--kubeconfig", "/no/such/file")
    assert (nowhere.returncode, nowhere.stdout) == (2, "")
    assert "/no/such/file does not exist" in nowhere.stderr
    planned = run(file, cache, "plan", "-f", "manifests/tiny.yaml", "--kubeconfig", "/no/such/file")
    assert "/no/such/file does not exist" in planned.stderr  # so the operator's plan is imported
    completing = unpacked / "kubectl_complete-kvasir"
    completing.symlink_to(file)
    assert run(completing, cache, "sta").stdout.split() == ["status", ":4"]
    assert len(list((cache / "kubectl-kvasir").iterdir())) == 1


@pytest.mark.slow
def test_a_python_that_it_is_not_for_is_told(built: Path, tmp_path: Path) -> None:
    """The folder of this Python gets the name of another one."""
    [file] = [
        each
        for each in built.iterdir()
        if each.name.startswith("kubectl-kvasir-linux") and not each.name.endswith(".gz")
    ]
    folder = f"py{PYTHON.replace('.', '')}".encode()
    other = tmp_path / "kubectl-kvasir"
    other.write_bytes(file.read_bytes().replace(folder + b"/", b"py399/"[: len(folder) + 1]))
    done = run(other, tmp_path)
    assert done.returncode == 1
    assert "this file runs on Python 3." in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_krews_manifest_is_that_of_the_archive(built: Path) -> None:
    manifest = yaml.safe_load((built / "kvasir.yaml").read_text())
    assert manifest["apiVersion"] == "krew.googlecontainertools.github.com/v1alpha2"
    assert (manifest["kind"], manifest["metadata"]["name"]) == ("Plugin", "kvasir")
    spec = manifest["spec"]
    assert re.fullmatch(r"v\d+\.\d+\.\d+(-[0-9A-Za-z.]+)?", spec["version"])
    assert 0 < len(spec["shortDescription"]) <= 50
    assert not spec["shortDescription"].endswith(".")
    assert "${" not in str(manifest)
    [platform] = spec["platforms"]
    archive = built / platform["uri"].removeprefix(URL)
    assert platform["sha256"] == hashlib.sha256(archive.read_bytes()).hexdigest()
    assert set(platform["selector"]["matchLabels"]) == {"os", "arch"}
    with tarfile.open(archive) as opened:
        names = {member.name for member in opened.getmembers()}
    assert {each["from"] for each in platform["files"]} == names
    assert platform["bin"] in names


@pytest.mark.slow
def test_the_same_commit_gives_the_same_bytes(built: Path, tmp_path: Path) -> None:
    again = build(tmp_path)
    assert {each.name: each.read_bytes() for each in again.iterdir()} == {
        each.name: each.read_bytes() for each in built.iterdir()
    }


@pytest.mark.parametrize(
    ("version", "semantic"),
    [("0.1.0", "0.1.0"), ("1.2", "1.2.0"), ("0.1.0.dev3", "0.1.0-dev3"), ("1.0.0+local", "1.0.0")],
)
def test_versions(builder: Any, version: str, semantic: str) -> None:
    assert builder.semantic(version) == semantic
