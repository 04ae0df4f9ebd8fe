"""Outlines of long JSON bodies, made as their bytes come in: where the members are that the router
reads, and how many values they hold.

The scanner is `body_scan.c`, compiled at installation and by `kvasir_router.compiling`: nothing is
decoded and nothing is allocated for what is nested or repeated, and the interpreter's lock is not
held meanwhile (what a KiB costs: benchmarks/router_bodies.py). Where it has not been compiled, a
long body is decoded when it is whole (`envelope`).
"""

import ctypes
import shutil
import struct
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from functools import cache
from hashlib import sha256
from itertools import starmap
from pathlib import Path
from typing import NamedTuple

SCANNED_BYTES = 64 * 1024
"""Bodies up to this length are not scanned: decoding them takes little."""

MAX_DEPTH = 512
"""Arrays and objects in each other that a scanned body may have."""
MAX_ELEMENTS = 4096
"""Elements of the first member that are noted."""
MAX_STRINGS = 1024
"""Strings of 256 bytes or more, five levels deep or deeper, that are noted."""

SOURCE = Path(__file__).with_suffix(".c")
FOLDER = Path(sys.prefix) / "lib" / "kvasir_body_scan"
"""Hold the compiled scanner, named by a digest of its source."""

_PIECE = 64 * 1024
_PART_NUMBERS = 6
_PART = f"={_PART_NUMBERS}I"
_STRING = "=2I"
_MAX_NAMES = 48
_READING, _WHOLE, _NOT_JSON, _TOO_DEEP, _NO_OBJECT, _ESCAPED_NAME = range(6)


class BodyError(ValueError):
    """A body that is no JSON object, or not one that the router reads: one sentence on why, and the
    field to blame if one is."""

    def __init__(self, message: str = "", param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class ValueSpan(NamedTuple):
    """Bytes of a body that are one value."""

    start: int
    end: int
    values: int
    """JSON values in it, itself included; names are not counted."""


class Element(NamedTuple):
    """Bytes of a body that are an element of the first member, and those that are the `content` of
    it; an end of 0 = it has none."""

    start: int
    end: int
    values: int
    content_start: int
    content_end: int
    content_values: int


class _Span(ctypes.Structure):
    _fields_ = (
        ("start", ctypes.c_uint64),
        ("end", ctypes.c_uint64),
        ("values", ctypes.c_uint64),
    )


class _State(ctypes.Structure):
    """The public part of `struct scan`."""

    _fields_ = (
        ("at", ctypes.c_uint64),
        ("values", ctypes.c_uint64),
        ("status", ctypes.c_uint32),
        ("depth", ctypes.c_uint32),
        ("elements", ctypes.c_uint32),
        ("names", ctypes.c_uint32),
        ("strings", ctypes.c_uint32),
        ("members", _Span * _MAX_NAMES),
        ("parts", ctypes.c_uint32 * (MAX_ELEMENTS * _PART_NUMBERS)),
        ("texts", ctypes.c_uint32 * (MAX_STRINGS * 2)),
    )


class BodyScan:
    """One body's, up to its end."""

    def __init__(self, names: Sequence[str]) -> None:
        """`names`: of the members to find, up to 48 of up to 47 ASCII characters. Elements of the
        first one are noted if it is an array. Raises RuntimeError where `is_available` is false."""
        library = _library()
        if library is None:
            raise RuntimeError("The body scanner is not compiled.")
        self._names = names
        self._library = library
        self._memory = ctypes.create_string_buffer(library.scan_size())
        self._state = _State.from_buffer(self._memory)
        library.scan_begin(self._memory, _names_blob(tuple(names)), len(names))

    def feed(self, part: bytes) -> None:
        """Read on. What is wrong is told at the end."""
        self._library.scan_feed(self._memory, part, len(part))

    def end(self) -> "Outline":
        """Return the outline of the whole body. Raises BodyError."""
        status, state = self._library.scan_end(self._memory), self._state
        if status != _WHOLE:
            raise BodyError(_reason(status, state.at))
        members = {
            name: ValueSpan(each.start, each.end, each.values)
            for name, each in zip(self._names, state.members, strict=False)
            if each.end
        }
        parts = self._copy(_State.parts.offset, state.elements * struct.calcsize(_PART))
        strings = self._copy(_State.texts.offset, state.strings * struct.calcsize(_STRING))
        return Outline(members, parts, state.at, strings)

    def _copy(self, start: int, size: int) -> bytes:
        return bytes(memoryview(self._memory)[start : start + size])


class Outline:
    """Members of a body by their names, the last one of a name, and elements of the first one that
    was looked for."""

    __slots__ = ("_parts", "_strings", "members", "size")

    def __init__(
        self, members: dict[str, ValueSpan], parts: bytes, size: int, strings: bytes = b""
    ) -> None:
        self.members = members
        self._parts = parts
        self._strings = strings
        self.size = size
        """Bytes of the body."""

    def elements(self) -> Iterator[Element]:
        """Return the elements, up to MAX_ELEMENTS. A list of them would be larger than many a body
        that they are in."""
        return starmap(Element, struct.iter_unpack(_PART, self._parts))

    def strings(self) -> Iterator[tuple[int, int]]:
        """Return where the long strings begin and end, up to MAX_STRINGS, quotes included, in
        the body as it was scanned."""
        return struct.iter_unpack(_STRING, self._strings)

    def raw(self, body: bytes, name: str) -> bytes:
        """Return the JSON of a member; empty if the body has none of this name."""
        span = self.members.get(name)
        return b"" if span is None else body[span.start : span.end]

    def replaced(self, body: bytes, name: str, value: bytes) -> bytes:
        """Return the body with another value of a member that it has. Bytes that were put in
        behind its first brace do not matter."""
        shift, span = len(body) - self.size, self.members[name]
        return b"".join((body[: span.start + shift], value, body[span.end + shift :]))

    def after_replacing(self, name: str, size: int) -> "Outline":
        """Return the outline of the body in which the member's value has become `size` bytes."""
        at = self.members[name].start
        grown = size - (self.members[name].end - at)

        def moved(span: ValueSpan) -> ValueSpan:
            if span.start > at:
                return ValueSpan(span.start + grown, span.end + grown, span.values)
            return ValueSpan(at, at + size, span.values) if span.start == at else span

        def moved_element(each: Element) -> bytes:
            by = grown if each.start > at else 0
            inner = by if each.content_end else 0
            return struct.pack(
                _PART,
                *(each.start + by, each.end + by, each.values),
                *(each.content_start + inner, each.content_end + inner, each.content_values),
            )

        members = {key: moved(span) for key, span in self.members.items()}
        parts = b"".join(map(moved_element, self.elements()))
        return Outline(members, parts, self.size + grown)


def outline_of(data: bytes | memoryview, names: Sequence[str]) -> Outline:
    """Return the outline of a whole JSON object. Raises BodyError."""
    scan = BodyScan(names)
    for at in range(0, len(data), _PIECE):
        scan.feed(bytes(data[at : at + _PIECE]))
    return scan.end()


def is_available() -> bool:
    """Return whether the scanner has been compiled, from the source that is here."""
    return _library() is not None


def compiled_file() -> Path:
    """Return where the compiled form of the present source belongs."""
    key = sysconfig.get_platform().encode() + SOURCE.read_bytes()
    return FOLDER / f"{sha256(key).hexdigest()[:32]}.so"


def build() -> bool:
    """Compile the scanner, if there is a C compiler and it has not been done; return whether it is
    there now."""
    wanted, compiler = compiled_file(), shutil.which("cc") or shutil.which("gcc")
    if wanted.exists() or compiler is None:
        return wanted.exists()
    wanted.parent.mkdir(parents=True, exist_ok=True)
    made = wanted.with_suffix(f".{sha256(str(sys.argv).encode()).hexdigest()[:8]}")
    options = ("-O2", "-Wall", "-Wextra", "-shared", "-fPIC")
    if subprocess.run([compiler, *options, "-o", made, SOURCE], check=False).returncode:
        return False
    made.replace(wanted)
    for old in wanted.parent.glob("*.so"):
        if old != wanted:
            old.unlink(missing_ok=True)
    _library.cache_clear()
    return True


def _reason(status: int, at: int) -> str:
    if status == _TOO_DEEP:
        return f"The body is nested too deeply for a request: more than {MAX_DEPTH} levels."
    if status == _NO_OBJECT:
        return "The body must be a JSON object, and its `model` a string."
    if status == _ESCAPED_NAME:
        return "The names of a long body's fields must be written without backslashes."
    return f"The body is not a JSON object: malformed at byte {at}."


@cache
def _names_blob(names: tuple[str, ...]) -> bytes:
    return b"".join(name.encode() + b"\0" for name in names)


@cache
def _library() -> ctypes.CDLL | None:
    file = compiled_file()
    if not file.exists():
        return None
    library = ctypes.CDLL(str(file))
    library.scan_size.restype = ctypes.c_uint64
    library.scan_begin.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_uint32)
    library.scan_feed.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_uint64)
    library.scan_end.argtypes = (ctypes.c_char_p,)
    for function in (library.scan_feed, library.scan_end):
        function.restype = ctypes.c_uint32
    library.scan_begin.restype = None
    return library


if __name__ == "__main__":
    build()
