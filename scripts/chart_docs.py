"""Write each chart's README.md from its Chart.yaml and values.yaml: `make chart-docs`.

A value is documented by the comment above it; one that is not is an error.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import yaml

CHARTS = Path(__file__).parents[1] / "charts"
_HEAD = """\
<!-- Made by `make chart-docs` from Chart.yaml and values.yaml; do not edit. -->
# {name}

{description}

Chart {version}, Kvasir {appVersion}, Kubernetes {kubeVersion}. How to install it is told in
[docs/kubernetes.md](../../docs/kubernetes.md).

| value | default | what it is |
|---|---|---|
"""


class Value(NamedTuple):
    """A leaf of values.yaml, or a mapping that users fill."""

    path: str
    default: str
    """Default value, as JSON."""
    text: str


def values(text: str) -> Iterator[Value]:
    """All values, in their order. Raises ValueError for one without a comment."""
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    assert isinstance(root, yaml.MappingNode)  # noqa: S101 - Helm accepts nothing else
    yield from _walk(root, "", text.splitlines())


def _walk(node: yaml.MappingNode, path: str, lines: list[str]) -> Iterator[Value]:
    for key, value in node.value:
        name = f"{path}.{key.value}".lstrip(".")
        told = _comment(lines, key.start_mark.line)
        if isinstance(value, yaml.MappingNode) and value.value and not value.flow_style:
            yield from _walk(value, name, lines)
            continue
        if not told:
            raise ValueError(f"values.yaml line {key.start_mark.line + 1}: {name} has no comment")
        default = yaml.safe_load(yaml.serialize(value))
        yield Value(name, json.dumps(default), told)


def _comment(lines: list[str], at: int) -> str:
    """Return the comment in the lines right above, indented as the value is."""
    indent = len(lines[at]) - len(lines[at].lstrip())
    found: list[str] = []
    while at and lines[at - 1].startswith(" " * indent + "#"):
        at -= 1
        found.insert(0, lines[at].strip().removeprefix("#").strip())
    return " ".join(found)


def readme(chart: Path) -> str:
    """The file's whole text."""
    about = yaml.safe_load((chart / "Chart.yaml").read_text(encoding="utf-8"))
    rows = [
        f"| `{value.path}` | `{value.default}` | {value.text.replace('|', '&#124;')} |\n"
        for value in values((chart / "values.yaml").read_text(encoding="utf-8"))
    ]
    return _HEAD.format_map(about) + "".join(rows)


def main() -> None:
    """`--check` writes nothing and fails when a README is not what it should be."""
    stale = []
    for chart in sorted(CHARTS.iterdir()):
        path, text = chart / "README.md", readme(chart)
        if "--check" in sys.argv and (not path.exists() or path.read_text("utf-8") != text):
            stale.append(path)
        elif "--check" not in sys.argv:
            path.write_text(text, encoding="utf-8")
    if stale:
        sys.exit(f"{', '.join(map(str, stale))} not as values.yaml says; run `make chart-docs`")


if __name__ == "__main__":
    main()
