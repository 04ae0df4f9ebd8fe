"""Build `kubectl kvasir` as one file, its archives for krew and their manifest: `make plugin`.

Each file runs on one platform and on several versions of Python: what is compiled lies in a folder
a version, everything else once. The same commit gives the same bytes.
"""

import argparse
import gzip
import hashlib
import io
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from string import Template

import yaml

ROOT = Path(__file__).parents[1]
UV = ROOT / ".venv" / "tools" / "bin" / "uv"
PLATFORMS = {
    "linux-amd64": "x86_64-manylinux_2_28",
    "linux-arm64": "aarch64-manylinux_2_28",
    "darwin-amd64": "x86_64-apple-darwin",
    "darwin-arm64": "aarch64-apple-darwin",
}
"""Platforms of krew, and what uv calls them."""
PYTHONS = ("3.11", "3.12", "3.13")
NAME = "kubectl-kvasir"
_SHEBANG = b"#!/usr/bin/env python3\n"
_LEFT_OUT = ("kvasir_engine", "kvasir_router", "bin", "__pycache__")
_RECORDS = ("direct_url.json", "INSTALLER", "RECORD", "REQUESTED", "uv_cache.json")
"""Notes of installers about where and how; they differ from machine to machine."""
_TIME = (1980, 1, 1, 0, 0, 0)


def main() -> None:
    """Build what the flags ask for, and print the names of the files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "plugin")
    parser.add_argument(
        "--platform", action="append", choices=PLATFORMS, help="repeatable; default: all"
    )
    parser.add_argument("--python", action="append", help=f"repeatable; default: {PYTHONS}")
    parser.add_argument("--base-url", required=True, help="where the archives will lie")
    parser.add_argument("--homepage", required=True, help="of the project")
    given = parser.parse_args()
    pythons = tuple(given.python or PYTHONS)
    given.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        wheel = build_wheel(Path(work))
        version = wheel.name.split("-")[1]
        archives = {}
        for platform in given.platform or PLATFORMS:
            trees = {it: install(wheel, platform, it, Path(work) / platform / it) for it in pythons}
            file = given.out / f"{NAME}-{platform}"
            file.write_bytes(_SHEBANG + pack(trees))
            file.chmod(0o755)
            archives[platform] = given.out / f"{NAME}-{version}-{platform}.tar.gz"
            archives[platform].write_bytes(archive_of(file.read_bytes()))
            print(file, archives[platform], sep="\n")
    manifest = given.out / "kvasir.yaml"
    manifest.write_text(manifest_of(archives, version, given.base_url, given.homepage, pythons))
    print(manifest)


def run(*command: str | Path) -> None:
    subprocess.run([str(word) for word in command], check=True, cwd=ROOT)


def build_wheel(work: Path) -> Path:
    """Return the wheel of this checkout."""
    run(UV, "build", "-q", "--wheel", "--out-dir", work, ROOT)
    [wheel] = work.glob("*.whl")
    return wheel


def install(wheel: Path, platform: str, python: str, target: Path) -> Path:
    """Return a folder with the plugin and all that it needs, as locked, for that Python."""
    command = (UV, "pip", "install", "-q", "--python", sys.executable, "--target", target)
    kind = ("--python-platform", PLATFORMS[platform], "--python-version", python)
    only = ("--only-binary", ":all:", "--no-deps")
    run(*command, *kind, *only, "--require-hashes", "-r", ROOT / "locks" / "plugin.txt")
    run(*command, *kind, "--no-deps", wheel)
    for folder in _LEFT_OUT:
        shutil.rmtree(target / folder, ignore_errors=True)
    return target


def files(tree: Path) -> Iterator[Path]:
    """Yield the files of a tree in their order, without what differs by machine."""
    for path in sorted(tree.rglob("*")):
        if path.is_file() and path.name not in _RECORDS and path.suffix != ".pyc":
            yield path.relative_to(tree)


def pack(trees: dict[str, Path]) -> bytes:
    """Return the archive: what all versions of Python share under lib, the rest under pyXY."""
    digests = {
        python: {path: (tree / path).read_bytes() for path in files(tree)}
        for python, tree in trees.items()
    }
    first, *others = digests.values()
    tops = {path.parts[0] for each in digests.values() for path in each}
    # A package lies as a whole in one of them: Python looks for it in the first folder alone
    shared = {top for top in tops if all(_below(it, top) == _below(first, top) for it in others)}
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        _add(archive, "__main__.py", (ROOT / "scripts" / "plugin_bootstrap.py").read_bytes())
        for python, content in digests.items():
            folder = f"py{python.replace('.', '')}"
            _add(archive, f"{folder}/.keep", b"")
            for path, text in content.items():
                if path.parts[0] not in shared:
                    _add(archive, f"{folder}/{path}", text)
        for path, text in first.items():
            if path.parts[0] in shared:
                _add(archive, f"lib/{path}", text)
    return packed.getvalue()


def _below(content: dict[Path, bytes], top: str) -> dict[Path, bytes]:
    return {path: text for path, text in content.items() if path.parts[0] == top}


def _add(archive: zipfile.ZipFile, name: str, text: bytes) -> None:
    info = zipfile.ZipInfo(name, _TIME)
    info.external_attr = 0o644 << 16
    archive.writestr(info, text, zipfile.ZIP_DEFLATED)


def archive_of(file: bytes) -> bytes:
    """Return the tar.gz that krew unpacks: the plugin and its licence."""
    plain = io.BytesIO()
    contents = {NAME: (file, 0o755), "LICENSE": ((ROOT / "LICENSE").read_bytes(), 0o644)}
    with tarfile.open(fileobj=plain, mode="w") as archive:
        for name, (text, mode) in contents.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(text), mode
            archive.addfile(info, io.BytesIO(text))
    return gzip.compress(plain.getvalue(), mtime=0)


def manifest_of(
    archives: dict[str, Path], version: str, base_url: str, homepage: str, pythons: tuple[str, ...]
) -> str:
    """Return krew's manifest of these archives."""
    template = Template((ROOT / "scripts" / "krew.yaml").read_text())
    text = template.substitute(
        VERSION=f"v{semantic(version)}", HOMEPAGE=homepage, PYTHONS=" or ".join(pythons)
    )
    manifest = yaml.safe_load(text)
    manifest["spec"]["platforms"] = [
        {
            "selector": {
                "matchLabels": dict(zip(("os", "arch"), platform.split("-"), strict=True))
            },
            "uri": f"{base_url.rstrip('/')}/{archive.name}",
            "sha256": hashlib.sha256(archive.read_bytes()).hexdigest(),
            "files": [{"from": NAME, "to": "."}, {"from": "LICENSE", "to": "."}],
            "bin": NAME,
        }
        for platform, archive in archives.items()
    ]
    return yaml.safe_dump(manifest, sort_keys=False)


def semantic(version: str) -> str:
    """Return a version of Python's packages as a semantic one: 0.1.0.dev1 is 0.1.0-dev1."""
    numbers = version.split("+")[0].split(".")
    parts = [number for number in numbers if number.isdigit()]
    rest = ".".join(numbers[len(parts) :])
    padded = ".".join((*parts, "0", "0")[:3])
    return f"{padded}-{rest}" if rest else padded


if __name__ == "__main__":
    main()
