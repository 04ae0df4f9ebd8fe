"""The images of `images/`, built by buildah from a base that debootstrap makes.

An archive of each lies in the cache under the hash of what went into it, so a build happens only
when something changed.
"""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from harness import archives
from harness.binaries import PAUSE, binary
from harness.commands import run
from harness.files import content_hash
from harness.node_files import PAUSE_IMAGE
from harness.places import REPOSITORY, cache

SUITE = "bookworm"
MIRROR = "http://deb.debian.org/debian"
PACKAGES = "python3,ca-certificates"
TAG = "dev"
"""Tag of this checkout's images."""
BASE = f"localhost/kvasir/base:{SUITE}"
UNNEEDED = (
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
    "usr/share/info",
    "var/lib/apt/lists",
)
CERTIFICATES = Path("/etc/ssl/certs")
"""Mounted into builds: a machine behind a proxy trusts more than a fresh Debian does."""
BUILD_SECONDS = 1800
KEPT = 3
"""Older archives of an image."""


@dataclass(frozen=True)
class Image:
    """An image by its name: images/NAME.Dockerfile with the dependencies of locks/LOCK.txt."""

    name: str
    lock: str
    part: str
    """The directory of the package that it has beside those in api/."""
    source: Path = REPOSITORY
    """The checkout that it is built from."""
    tag: str = TAG

    @property
    def reference(self) -> str:
        return f"localhost/kvasir/{self.name}:{self.tag}"

    @cached_property
    def archive(self) -> Path:
        """Path of the image's docker-archive, named by what goes into it. Looked at once: sources
        may be edited while images are built and imported."""
        contents = [
            self._dockerfile,
            self.source / "locks" / f"{self.lock}.txt",
            *(self.source / name for name in ("pyproject.toml", "README.md", "LICENSE")),
            self.source / "api" / "kvasir",
            self.source / self.part / f"kvasir_{self.part}",
        ]
        base = f"{SUITE} {PACKAGES} {platform.machine()}"
        return _archives() / f"{self._stem}-{content_hash(contents, self.source, base)}.tar"

    def build(self) -> None:
        """Build it and write its archive. Raises HarnessError with the builder's words."""
        _buildah(
            *("bud", "--layers", "--isolation", "chroot", "--network", "host"),
            *("--volume", f"{CERTIFICATES}:{CERTIFICATES}:ro"),
            *("--build-arg", f"BASE_IMAGE={BASE}", "--tag", self.reference),
            *("--file", self._dockerfile, self.source),
        )
        # Those of other checkouts may be in use, so not all.
        older = sorted(
            _archives().glob(f"{self._stem}-*.tar"), key=lambda path: path.stat().st_mtime
        )
        for old in older[:-KEPT]:
            old.unlink()
        # Whole or not there.
        unfinished = _archives() / f".{self._stem}.tar"
        unfinished.unlink(missing_ok=True)
        _buildah("push", self.reference, f"docker-archive:{unfinished}:{self.reference}")
        unfinished.rename(self.archive)

    @property
    def _dockerfile(self) -> Path:
        return self.source / "images" / f"{self.name}.Dockerfile"

    @property
    def _stem(self) -> str:
        # The archives of this checkout's images come and go; those of a release stay.
        return self.name if self.tag == TAG else f"{self.name}@{self.tag}"


SIM = Image("engine-sim", "sim", "engine")
DOWNLOADER = Image("downloader", "download", "engine")
ROUTER = Image("router", "router", "router")
OPERATOR = Image("operator", "operator", "operator")
CLUSTER_IMAGES = (SIM, DOWNLOADER, ROUTER, OPERATOR)
"""Images that every cluster has; the engines with torch are gigabytes that its tests need not."""


def build(images: tuple[Image, ...], say: Callable[[str], None]) -> list[Path]:
    """The archives of `images` and of pause, building what changed."""
    _archives().mkdir(parents=True, exist_ok=True)
    for image in images:
        if not image.archive.exists():
            _ensure_base(say)
            say(f"building image {image.reference}")
            image.build()
    return [_pause_archive(), *(image.archive for image in images)]


def _pause_archive() -> Path:
    path = _archives() / f"pause-{PAUSE.output.name}.tar"
    if not path.exists():
        config = {"Entrypoint": ["/pause"], "User": "65535:65535"}
        archives.write(path, PAUSE_IMAGE, {"pause": binary("pause")}, config)
    return path


def _ensure_base(say: Callable[[str], None]) -> None:
    if BASE in _buildah("images", "--format", "{{.Name}}:{{.Tag}}").split():
        return
    say(f"making the base image of {SUITE}")
    root = cache() / "base"
    shutil.rmtree(root, ignore_errors=True)
    options = ("--variant=minbase", f"--include={PACKAGES}")
    run("debootstrap", *options, SUITE, root, MIRROR, timeout=BUILD_SECONDS)
    for unneeded in UNNEEDED:
        shutil.rmtree(root / unneeded, ignore_errors=True)
    for package in (root / "var/cache/apt").rglob("*.*"):
        if package.is_file():
            package.unlink()
    (root / "var/lib/apt/lists").mkdir()
    container = _buildah("from", "scratch").strip()
    _buildah("add", "--quiet", container, root, "/")
    _buildah("commit", "--quiet", container, BASE)
    _buildah("rm", container)
    shutil.rmtree(root)


def _buildah(*arguments: str | Path) -> str:
    store = cache() / "buildah"
    options = ("--root", store / "root", "--runroot", store / "run", "--storage-driver", "overlay")
    return run("buildah", *options, *arguments, timeout=BUILD_SECONDS, env=_environment())


def _environment() -> dict[str, str]:
    """buildah's own temporary files may be large: not in a small /tmp."""
    directory = cache() / "buildah" / "tmp"
    directory.mkdir(parents=True, exist_ok=True)
    return {"TMPDIR": str(directory), "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}


def _archives() -> Path:
    return cache() / "images"
