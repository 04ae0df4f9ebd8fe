"""A former release: its chart, and its images, built from its commit."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from harness import images
from harness.commands import run
from harness.errors import HarnessError
from harness.images import Image
from harness.node import Node
from harness.places import REPOSITORY, cache

VERSION = "0.1.0"
COMMIT = "94aadbbc6efb48cd7f86a2e9c0021b8b54388229"


def source() -> Path:
    """The release's tree, checked out once. Raises HarnessError where a clone lacks the commit."""
    directory = cache() / "sources" / COMMIT
    if directory.exists():
        return directory
    unfinished = directory.with_suffix(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    archive = unfinished / "source.tar"
    try:
        run("git", "archive", "--output", archive, COMMIT, cwd=REPOSITORY)
    except HarnessError:
        raise HarnessError(
            f"this clone has no commit {COMMIT[:8]}, release {VERSION}: run `git fetch --unshallow`"
        ) from None
    run("tar", "-xf", archive, cwd=unfinished)
    archive.unlink()
    unfinished.rename(directory)
    return directory


def chart() -> Path:
    """The release's chart."""
    return source() / "charts" / "kvasir"


def images_of(tree: Path) -> tuple[Image, ...]:
    """The release's images, whose tag is its version; downloads have had none of their own."""
    parts = (images.SIM, images.ROUTER, images.OPERATOR)
    return tuple(replace(each, source=tree, tag=VERSION) for each in parts)


def give_images(nodes: list[Node], say: Callable[[str], None]) -> None:
    """Build the release's images, and import them on `nodes`."""
    made = images_of(source())
    images.build(made, say)
    for node in nodes:
        there = node.images()
        for image in made:
            if image.reference not in there:
                say(f"{node.name} takes {image.reference}")
                node.import_image(image.archive)
