"""Calls of `make kind-up` to docker, kind and kubectl, which here only note them."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

SCRIPT = Path(__file__).parents[3] / "e2e" / "cluster" / "kind" / "up.sh"
NODES = "kvasir-control-plane\nkvasir-worker\nkvasir-worker2\n"


def run(directory: Path, tools: tuple[str, ...], clusters: str = "") -> tuple[int, list[str], str]:
    """Return the script's exit status, each tool's arguments, and what it said."""
    for utility in ("cat", "dirname", "grep"):
        (directory / utility).symlink_to(shutil.which(utility) or "")
    answers = {"get clusters": clusters, "get nodes": NODES}
    cases = "".join(f'"{each}"*) printf %s "{answers[each]}";;\n' for each in answers)
    for tool in tools:
        note = f'echo "{tool} $* ${{BUILDX_NO_DEFAULT_ATTESTATIONS:-}}" >> {directory}/log'
        (directory / tool).write_text(f'#!/bin/bash\n{note}\ncase "$*" in\n{cases}esac\n')
        (directory / tool).chmod(0o755)
    done = subprocess.run(
        ["/bin/bash", SCRIPT],
        env={"PATH": str(directory)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    log = directory / "log"
    return done.returncode, log.read_text().splitlines() if log.exists() else [], done.stderr


def test_a_cluster_with_images_that_can_be_loaded_and_gpus(tmp_path: Path) -> None:
    status, asked, said = run(tmp_path, ("docker", "kind", "kubectl"))
    assert status == 0, said
    config = "e2e/cluster/kind/kind.yaml"
    assert f"kind create cluster --config {config} --wait 180s 1" in asked
    for name in ("engine-sim", "downloader", "router", "operator"):
        image = f"localhost/kvasir/{name}:dev"
        # Without attestations (1), which kind could not load.
        build = f"docker build -q -f images/{name}.Dockerfile -t {image} . 1"
        load = f"kind load docker-image --name kvasir {image} 1"
        assert asked.index(build) < asked.index(load)
    patches = [each.split() for each in asked if each.startswith("kubectl")]
    assert [each[5] for each in patches] == ["kvasir-worker", "kvasir-worker2"]
    assert all("--subresource=status" in each for each in patches)
    content = json.loads(patches[0][-2])
    assert content == {"status": {"capacity": {"nvidia.com/gpu": "4"}}}
    made = yaml.safe_load((SCRIPT.parent / "kind.yaml").read_text())
    assert (made["name"], [each["role"] for each in made["nodes"]].count("worker")) == ("kvasir", 2)


def test_one_that_is_there_is_used(tmp_path: Path) -> None:
    _, asked, _ = run(tmp_path, ("docker", "kind", "kubectl"), clusters="other\nkvasir\n")
    assert not [each for each in asked if "create" in each]


@pytest.mark.parametrize("absent", ["docker", "kind", "kubectl"])
def test_a_tool_that_is_not_there_is_named(tmp_path: Path, absent: str) -> None:
    there = tuple({"docker", "kind", "kubectl"} - {absent})
    status, asked, said = run(tmp_path, there)
    assert (status, asked) == (1, [])
    assert said == f"kind-up: install {absent} first\n"
