"""Print an image's bill of materials in CycloneDX 1.6: `images/sbom.py NAME ARCHIVE`.

ARCHIVE is what `docker save`, `podman save` or `buildah push IMAGE docker-archive:FILE` wrote. The
bill lists what is in it: Python distributions and Debian packages, by their own metadata. An
archive gives the same bytes each time: SOURCE_DATE_EPOCH, or the commit's time, stands for now.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path, PurePosixPath

from cyclonedx.model import Property
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

TOP = Path(__file__).parents[1]
STATUS = "var/lib/dpkg/status"
_METADATA = re.compile(r"site-packages/[^/]+\.dist-info/METADATA$")
_WHITEOUT = ".wh."
"""A file of that beginning says in a layer that another one, of a layer below, is gone."""


def contents(archive: Path) -> dict[str, str]:
    """Return the texts of an image's package metadata, by path. Raises OSError or ValueError."""
    found: dict[str, str] = {}
    with tarfile.open(archive) as image:
        [manifest] = json.loads(_read(image, "manifest.json"))
        for name in manifest["Layers"]:
            with tarfile.open(fileobj=image.extractfile(name)) as layer:
                for member in layer:
                    _apply(found, layer, member)
    if STATUS not in found:
        raise ValueError(f"{archive} holds no {STATUS}: it is no image of Debian")
    return found


def python_packages(files: dict[str, str]) -> Iterator[Component]:
    """Yield the distributions that are installed."""
    for path, text in files.items():
        if path != STATUS:
            about = HeaderParser().parsestr(text)
            name = re.sub(r"[-_.]+", "-", about["Name"]).lower()
            version = about["Version"]
            yield _component(about, version, PackageURL("pypi", None, name, version))


def debian_packages(status: str) -> Iterator[Component]:
    """Yield the packages of a dpkg database that are installed."""
    for paragraph in status.split("\n\n"):
        about = HeaderParser().parsestr(paragraph.lstrip())
        if (about.get("Status") or "").split()[-1:] == ["installed"]:
            name, version = about["Package"], about["Version"]
            where = PackageURL("deb", "debian", name, version, {"arch": about["Architecture"]})
            yield _component(about, version, where)


def bill(image: str, files: dict[str, str]) -> str:
    """Return the bill of materials as JSON."""
    revision = _git("rev-parse", "HEAD")
    about = Component(name=f"kvasir-{image}", type=ComponentType.CONTAINER, bom_ref=image)
    about.properties.add(Property(name="org.opencontainers.image.revision", value=revision))
    parts = [*python_packages(files), *debian_packages(files[STATUS])]
    names = " ".join(sorted(part.purl.to_string() for part in parts if part.purl is not None))
    bom = Bom(
        components=parts,
        metadata=BomMetaData(component=about, timestamp=_now()),
        serial_number=uuid.uuid5(uuid.NAMESPACE_URL, f"{image} {revision} {names}"),
    )
    bom.register_dependency(about, parts)
    return JsonV1Dot6(bom).output_as_string(indent=2)


def _apply(found: dict[str, str], layer: tarfile.TarFile, member: tarfile.TarInfo) -> None:
    """Add a layer's file to what was found, or take away what it says is gone."""
    path = PurePosixPath(member.name)
    if path.name.startswith(_WHITEOUT):
        gone = str(path.with_name(path.name.removeprefix(_WHITEOUT)))
        for each in [it for it in found if it == gone or it.startswith(f"{gone}/")]:
            del found[each]
    elif member.isfile() and (member.name == STATUS or _METADATA.search(member.name)):
        found[member.name] = _read(layer, member)


def _read(archive: tarfile.TarFile, member: tarfile.TarInfo | str) -> str:
    file = archive.extractfile(member)
    return file.read().decode() if file is not None else ""


def _component(about: Message, version: str, where: PackageURL) -> Component:
    name = about["Package"] or about["Name"]
    return Component(name=name, version=version, purl=where, bom_ref=where.to_string())


def _now() -> datetime:
    seconds = os.environ.get("SOURCE_DATE_EPOCH") or _git("log", "-1", "--format=%ct")
    return datetime.fromtimestamp(int(seconds), UTC)


def _git(*arguments: str) -> str:
    command = ["git", *arguments]
    return subprocess.run(
        command, cwd=TOP, check=True, capture_output=True, text=True
    ).stdout.strip()


def main(arguments: list[str]) -> None:
    """Print the bill of the image and archive that the arguments name."""
    if len(arguments) != 2:
        raise SystemExit("usage: images/sbom.py NAME ARCHIVE")
    try:
        print(bill(arguments[0], contents(Path(arguments[1]))))
    except (OSError, ValueError, KeyError, tarfile.TarError) as error:
        raise SystemExit(f"sbom: {error}") from None


if __name__ == "__main__":
    main(sys.argv[1:])
