"""Pins and promises of every image's Dockerfile; what is in images is judged on a cluster."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

IMAGES = Path(__file__).parents[3] / "images"
NAMES = sorted(path.stem for path in IMAGES.glob("*.Dockerfile"))


def dockerfile(name: str) -> str:
    return (IMAGES / f"{name}.Dockerfile").read_text()


@pytest.mark.parametrize("name", NAMES)
def test_the_base_is_an_argument_that_is_pinned_by_digest(name: str) -> None:
    text = dockerfile(name)
    (base,) = re.findall(r"^ARG BASE_IMAGE=(\S+)$", text, re.MULTILINE)
    assert re.fullmatch(r"python:3\.11\.\d+-slim-bookworm@sha256:[0-9a-f]{64}", base)
    assert base in dockerfile(NAMES[0]), "all stand on the same base"
    stages = re.findall(r"^FROM (\S+)(?: AS \w+)?$", text, re.MULTILINE)
    assert stages == ["${BASE_IMAGE}", "${BASE_IMAGE}"]


@pytest.mark.parametrize("name", NAMES)
def test_what_is_installed_is_locked(name: str) -> None:
    text = dockerfile(name)
    version = re.search(r"^ARG UV_VERSION=(\d+\.\d+\.\d+)$", text, re.MULTILINE)
    assert version
    assert (IMAGES.parent / "locks/uv.txt").read_text().startswith(f"uv=={version[1]} ")
    assert '"uv==${UV_VERSION}"' in text
    locks = set(re.findall(r"locks/\w+\.txt", text))
    assert locks
    assert all((IMAGES.parent / lock).is_file() for lock in locks)
    assert "uv pip install --quiet --no-deps /src" in text


@pytest.mark.parametrize("name", NAMES)
def test_it_runs_as_nobody_in_particular_and_says_what_it_is(name: str) -> None:
    last = dockerfile(name).rpartition("FROM ")[2]
    assert "USER 65532:65532" in last
    assert 'ENTRYPOINT ["kvasir"]' in last
    assert f'org.opencontainers.image.title="kvasir-{name}"' in last
    for label in ("description", "licenses", "version", "revision", "created", "base.name"):
        assert f"org.opencontainers.image.{label}=" in last
