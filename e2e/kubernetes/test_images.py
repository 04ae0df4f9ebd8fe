"""Contents of the images: small, nobody's to change, compiled."""

from __future__ import annotations

import json
import re
import tarfile
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

import pytest
import sbom

import kvasir
from harness import images
from harness.images import Image
from harness.places import REPOSITORY

MB = 1_000_000
MAX_BYTES = {
    "router": 305 * MB,  # of which gRPC and cryptography 35
    "operator": 250 * MB,
    "engine-sim": 220 * MB,
    "downloader": 100 * MB,
}
"""All layers together; for engines and the downloader without those of the base."""


@pytest.fixture(scope="session", params=images.CLUSTER_IMAGES, ids=lambda image: image.name)
def image(request: pytest.FixtureRequest) -> Image:
    """Each image of the cluster, built."""
    built: Image = request.param
    images.build((built,), print)
    return built


def contents(image: Image) -> tuple[dict[str, Any], list[str], tarfile.TarFile]:
    """An archive's configuration, its layers from the base upwards, and itself."""
    archive = tarfile.open(image.archive)  # noqa: SIM115 (the caller closes it)
    manifest = read_json(archive, "manifest.json")[0]
    config = read_json(archive, manifest["Config"])
    return config, manifest["Layers"], archive


def read_json(archive: tarfile.TarFile, name: str) -> Any:
    """A parsed file of an archive."""
    file = archive.extractfile(name)
    assert file is not None
    return json.load(file)


def own_files(archive: tarfile.TarFile, layers: list[str]) -> Iterator[tarfile.TarInfo]:
    """Yield the files of the layers above the base."""
    for layer in layers[1:]:
        with tarfile.open(fileobj=archive.extractfile(layer)) as tar:
            yield from tar


def test_it_runs_kvasir_as_nobody_in_particular(image: Image) -> None:
    config, _, archive = contents(image)
    archive.close()
    assert config["config"]["User"] == "65532:65532"
    assert config["config"]["Entrypoint"] == ["kvasir"]
    labels = config["config"]["Labels"]
    assert labels["org.opencontainers.image.title"] == f"kvasir-{image.name}"
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert {"org.opencontainers.image.version", "org.opencontainers.image.revision"} <= set(labels)


def test_nothing_in_it_can_be_changed(image: Image) -> None:
    _, layers, archive = contents(image)
    with archive:
        loose = [
            file.name
            for file in own_files(archive, layers)
            if file.uid != 0 or (not file.issym() and file.mode & 0o022 and file.name != "tmp")
        ]
    assert not loose


def test_its_code_is_compiled_and_nothing_else_came_along(image: Image) -> None:
    _, layers, archive = contents(image)
    with archive:
        names = {file.name for file in own_files(archive, layers) if file.isfile()}
    packages = {PurePath(name) for name in names if "/site-packages/" in name}
    sources = {name for name in packages if name.suffix == ".py"}
    compiled = {
        name.parent.parent / name.name.split(".")[0] for name in packages if name.suffix == ".pyc"
    }
    assert len(sources) > 500
    assert {name.with_suffix("") for name in sources if "." not in name.stem} <= compiled
    tops = {name.parts[name.parts.index("site-packages") + 1] for name in packages}
    assert "kvasir" in tops
    assert not tops & {"torch", "transformers", "pytest", "mypy", "uv", "pip"}


def test_its_bill_of_materials_is_what_the_lock_pins(image: Image) -> None:
    files = sbom.contents(image.archive)
    bill = json.loads(sbom.bill(image.name, files))
    lock = (REPOSITORY / "locks" / f"{image.lock}.txt").read_text()
    pins = {
        f"pkg:pypi/{name}@{version.replace('+', '%2B')}"
        for name, version in re.findall(r"^([^ \n=[]+)==([^ ;]+)", lock, re.MULTILINE)
    }
    names = {component["purl"] for component in bill["components"]}
    python = {name for name in names if name.startswith("pkg:pypi/")}
    assert python - pins == {f"pkg:pypi/kvasir@{kvasir.__version__}"}
    assert len(python) > 10
    assert any(name.startswith("pkg:deb/debian/libc6@") for name in names)


def test_it_is_small(image: Image) -> None:
    _, layers, archive = contents(image)
    with archive:
        sizes = [archive.getmember(layer).size for layer in layers]
    counted = sum(sizes[1:] if image.name.startswith(("engine", "downloader")) else sizes)
    print(f"{image.name}: {sum(sizes) / MB:.0f} MB, {sum(sizes[1:]) / MB:.0f} MB beyond the base")
    assert counted <= MAX_BYTES[image.name]
