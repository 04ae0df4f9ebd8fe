"""Bills of materials: what an image's archive holds, in valid CycloneDX."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
import sbom
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

STATUS = """Package: libc6
Status: install ok installed
Architecture: amd64
Version: 2.36-9+deb12u13

Package: gone
Status: deinstall ok config-files
Architecture: amd64
Version: 1

Package: perl-base
Status: install ok installed
Architecture: amd64
Version: 5.36.0-7
Description: a text
 with
 .
 lines
"""
SITE = "opt/kvasir/lib/python3.11/site-packages"
BASE = {
    "var/lib/dpkg/status": STATUS,
    f"{SITE}/PyYAML-6.0.dist-info/METADATA": "Name: PyYAML\nVersion: 6.0\n\nWords\nName: no\n",
    f"{SITE}/pip-24.0.dist-info/METADATA": "Name: pip\nVersion: 24.0\n",
    f"{SITE}/pip/METADATA": "Name: another\nVersion: 1\n",
}
OWN = {
    f"{SITE}/kvasir-0.1.0.dist-info/METADATA": "Name: kvasir\nVersion: 0.1.0\n",
    f"{SITE}/.wh.pip-24.0.dist-info": "",
}


def tar(files: dict[str, bytes]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return made.getvalue()


def image(path: Path, *layers: dict[str, str]) -> Path:
    """An archive as builders save it."""
    names = [f"{number}/layer.tar" for number in range(len(layers))]
    parts = [tar({name: text.encode() for name, text in layer.items()}) for layer in layers]
    manifest = json.dumps([{"Config": "config.json", "Layers": names}]).encode()
    path.write_bytes(tar({**dict(zip(names, parts, strict=True)), "manifest.json": manifest}))
    return path


def packages(bill: dict[str, Any]) -> set[str]:
    return {component["purl"] for component in bill["components"]}


def test_a_bill_lists_what_is_installed(tmp_path: Path) -> None:
    text = sbom.bill("router", sbom.contents(image(tmp_path / "image.tar", BASE, OWN)))
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    bill = json.loads(text)
    assert packages(bill) == {
        "pkg:deb/debian/libc6@2.36-9%2Bdeb12u13?arch=amd64",
        "pkg:deb/debian/perl-base@5.36.0-7?arch=amd64",
        "pkg:pypi/kvasir@0.1.0",
        "pkg:pypi/pyyaml@6.0",
    }
    assert bill["metadata"]["component"]["name"] == "kvasir-router"


def test_an_image_has_one_bill(tmp_path: Path) -> None:
    files = sbom.contents(image(tmp_path / "image.tar", BASE, OWN))
    again = sbom.contents(image(tmp_path / "again.tar", BASE, OWN))
    assert sbom.bill("router", files) == sbom.bill("router", again)
    less = {path: text for path, text in files.items() if "kvasir-" not in path}
    serial = json.loads(sbom.bill("router", less))["serialNumber"]
    assert serial != json.loads(sbom.bill("router", files))["serialNumber"]


def test_another_archive_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="holds no var/lib/dpkg/status"):
        sbom.main(["router", str(image(tmp_path / "image.tar", OWN))])
    with pytest.raises(SystemExit, match="No such file"):
        sbom.main(["router", str(tmp_path / "none.tar")])
