"""Each extra installs alone, imports its part and brings no torch."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]
UV = TOP / ".venv" / "tools" / "bin" / "uv"
CHECKS = {
    "router": "import kvasir_router.command, kvasir_router.proxy",
    "operator": "import kvasir_operator.run",
    "sim": "import kvasir_engine.server.http.app, kvasir_engine.core.service, "
    "kvasir_engine.sim.sim_build, kvasir_engine.server.process.serve_command",
}


def uv() -> str:
    found = str(UV) if UV.exists() else shutil.which("uv")
    assert found, "uv is missing; scripts/install.sh brings it"
    return found


@pytest.mark.slow
@pytest.mark.parametrize("extra", CHECKS)
def test_an_extra_installs_alone_without_torch(extra: str, tmp_path: Path) -> None:
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([uv(), "venv", "-q", "--python", sys.executable, tmp_path / "venv"], check=True)
    install = [uv(), "pip", "install", "-q", "--python", str(python)]
    subprocess.run([*install, "-r", TOP / "locks" / f"{extra}.txt"], check=True)
    subprocess.run([*install, "--no-deps", f"{TOP}[{extra}]"], check=True)
    # -P: the checkout we stand in must not be what is imported.
    code = f"{CHECKS[extra]}; import sys; print({{'torch', 'transformers'}} & set(sys.modules))"
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    run = [python, "-P", "-c"]
    loaded = subprocess.run([*run, code], check=True, capture_output=True, text=True, env=env)
    assert loaded.stdout.strip() == "set()"
    listed = subprocess.run(
        [uv(), "pip", "list", "--python", str(python)], check=True, capture_output=True, text=True
    ).stdout
    assert not any(line.split()[0] in ("torch", "triton") for line in listed.splitlines() if line)
    assert (
        subprocess.run(
            [uv(), "pip", "check", "--python", str(python)], capture_output=True, check=False
        ).returncode
        == 0
    )
    typed = {file.parent.name for file in (tmp_path / "venv").rglob("kvasir*/py.typed")}
    assert typed == {"kvasir", "kvasir_engine", "kvasir_router", "kvasir_operator"}
    version = [tmp_path / "venv" / "bin" / "kvasir", "version"]
    assert subprocess.run(version, check=True, capture_output=True, text=True).stdout


@pytest.mark.slow
def test_a_wheel_is_the_same_wherever_and_whenever_it_is_built(tmp_path: Path) -> None:
    digests = set()
    for number, (place, mask) in enumerate((("a", 0o022), ("another/place", 0o077))):
        checkout = tmp_path / place
        shutil.copytree(TOP, checkout, ignore=shutil.ignore_patterns(".*", "build", "e2e", "tests"))
        for file in checkout.rglob("*"):
            os.utime(file, (number * 86400 + 1.5e9,) * 2)
        subprocess.run(
            [uv(), "build", "-q", "--wheel", "--out-dir", tmp_path / str(number), checkout],
            check=True,
            umask=mask,
        )
        (wheel,) = (tmp_path / str(number)).glob("*.whl")
        digests.add((wheel.name, hashlib.sha256(wheel.read_bytes()).hexdigest()))
    assert len(digests) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "sets"),
    [
        # Images of engines also download models.
        ("sim", ["--extra=sim", "--extra=s3"]),
        ("engine", ["--extra=engine", "--extra=s3"]),
        ("router", ["--extra=router"]),
        ("operator", ["--extra=operator"]),
        ("up", ["--extra=engine", "--extra=router"]),
        ("docs", ["--extra=docs"]),
        ("plugin", []),
        ("dev", ["--extra=dev"]),
        ("clients", ["--group=clients"]),
        ("engines", ["--group=engines"]),
    ],
)
def test_a_lock_is_what_pyproject_asks_for(name: str, sets: list[str], tmp_path: Path) -> None:
    """A dependency added to pyproject.toml without `make lock` would be missing on install."""
    lock = TOP / "locks" / f"{name}.txt"
    # uv keeps the pins of the file it overwrites as long as they satisfy what is asked.
    made = Path(shutil.copy(lock, tmp_path / lock.name))
    of_package = [] if name in ("clients", "engines") else ["pyproject.toml"]
    command = [uv(), "pip", "compile", "-q", *of_package, *sets]
    command += ["-c", "locks/constraints.in", "--universal", "--generate-hashes"]
    command += ["--no-emit-index-url", "--no-header", "-o", str(made)]
    subprocess.run(command, cwd=TOP, check=True, capture_output=True)
    assert made.read_text() == lock.read_text()


@pytest.mark.parametrize("lock", sorted((TOP / "locks").glob("*.txt")), ids=lambda lock: lock.stem)
def test_each_pin_has_hashes(lock: Path) -> None:
    text = lock.read_text()
    pins = re.findall(r"^\S+==\S+.*$", text, re.MULTILINE)
    assert pins
    assert [pin for pin in pins if not pin.endswith("\\")] == []
    assert len(re.findall(r"\\\n    --hash=sha256:[0-9a-f]{64}", text)) >= len(pins)


def test_another_indexs_torch_is_installed_without_the_default_wheels_hashes() -> None:
    command = ["awk", "-f", "locks/other_torch.awk", "locks/engine.txt"]
    left = subprocess.run(command, cwd=TOP, check=True, capture_output=True, text=True).stdout
    assert re.search(r"^torch==\S+\n    #", left, re.MULTILINE)
    assert re.search(r"^(nvidia|cuda|triton)", left, re.MULTILINE) is None
    assert re.search(r"^numpy==.*\\\n    --hash=sha256:", left, re.MULTILINE)
