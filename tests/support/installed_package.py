"""Packages as pip leaves them, in a folder that a test puts on Python's path."""

from collections.abc import Mapping
from pathlib import Path


def install_package(
    site: Path, name: str, source: str, entry_points: Mapping[str, Mapping[str, str]]
) -> None:
    """Write module `name` and its metadata; `entry_points`: by group, then by name."""
    metadata = site / f"{name}-1.0.dist-info"
    metadata.mkdir(parents=True)
    (site / f"{name}.py").write_text(source)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = []
    for group, points in entry_points.items():
        lines += [f"[{group}]", *(f"{point} = {target}" for point, target in points.items())]
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n")
