"""A YAML (or JSON) file that is checked as a whole when it is read, and noticed when it changes."""

from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from kvasir.validation import sentences

Schema = TypeVar("Schema", bound=BaseModel)


class YamlFileError(Exception):
    """The file cannot be used; one sentence on what to correct."""


def read_yaml(
    path: Path, what: str, schema: type[Schema], max_bytes: int, *, quote: bool = False
) -> Schema:
    """The file's content; `what` it is begins each message ("key file"). Raises YamlFileError,
    which quotes what is wrong only if told to: the file may hold secrets."""
    try:
        with path.open("rb") as file:
            text = file.read(max_bytes + 1)
    except OSError as error:
        raise YamlFileError(f"cannot read {what} {path}: {error.strerror}") from None
    if len(text) > max_bytes:
        raise YamlFileError(f"{what} {path} is larger than {max_bytes} bytes")
    try:
        return _checked(text, f"{what} {path}", schema, quote)
    except (ValueError, RecursionError) as error:  # PyYAML's own, as of a date that is none
        where = f": {error}" if quote else " (a value that cannot be read, as a date that is none)"
        raise YamlFileError(f"{what} {path} is not YAML{where}") from None


def _checked(text: bytes, file: str, schema: type[Schema], quote: bool) -> Schema:
    try:
        content: Any = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506
        return schema.model_validate(content)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" (line {mark.line + 1})" if mark is not None else ""
        if quote:
            where = f": {' '.join(str(error).split())}"
        raise YamlFileError(f"{file} is not YAML{where}") from None
    except ValidationError as error:
        problem = next(sentences(error, schema, whole="the file", quote=quote))
        raise YamlFileError(f"{file}: {problem}") from None


class FileWatch:
    """Says when a file has become another one, by its time, size and inode; also when another file
    is moved to its place, as editors and mounted Secrets do."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, ...] | None = None

    def changed(self) -> bool:
        """Since the last call; a file that is gone has changed, too."""
        stamp = self._stamp()
        before, self._seen = self._seen, stamp
        return stamp != before

    def _stamp(self) -> tuple[int, ...] | None:
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_ino, status.st_size
