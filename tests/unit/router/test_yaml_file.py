"""YAML files that are checked as a whole."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from kvasir_router.yaml_file import MAX_DEPTH, YamlFileError, read_yaml


class Anything(BaseModel):
    keys: Any


@pytest.fixture
def read(tmp_path: Path):
    path = tmp_path / "file.yaml"

    def read(text: bytes, max_bytes: int = 2**24) -> Any:
        path.write_bytes(text)
        return read_yaml(path, "key file", Anything, max_bytes).keys

    return read


def nested(levels: int) -> bytes:
    """A mapping with lists in it: so many levels in all."""
    return b"keys: " + b"[" * (levels - 1) + b"]" * (levels - 1)


def test_lists_are_nested_up_to_a_depth(read) -> None:
    assert read(b"keys: [[1], [2]]") == [[1], [2]]
    assert read(nested(MAX_DEPTH)) != []
    with pytest.raises(YamlFileError, match="nested too deeply: more than 64 levels"):
        read(nested(MAX_DEPTH + 1))


def test_what_is_side_by_side_is_not_nested(read) -> None:
    many = [[]] * (MAX_DEPTH * 2)
    assert read(b"keys: " + str(many).encode()) == many


@pytest.mark.parametrize(
    "text",
    [b"keys:\n" + b"- " * 100_000, nested(100_000), b"keys:\n" + b"? " * 100_000],
    ids=["items", "lists", "keys"],
)
def test_no_depth_ends_the_process(read, text) -> None:
    with pytest.raises(YamlFileError, match="nested too deeply"):
        read(text)


def test_a_file_is_read_up_to_a_size(read) -> None:
    assert read(b"keys: 1", max_bytes=7) == 1
    with pytest.raises(YamlFileError, match="is larger than 6 bytes"):
        read(b"keys: 1", max_bytes=6)
