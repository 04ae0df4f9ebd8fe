"""Step plans as bytes, for the other ranks: typed, without pickle, made from step_plan.py's fields.

The encoding is the plan's values in the order of their fields, as little-endian 64-bit words: a
number is one word, a list or a mapping its length and its items, an array its shape and its data
padded to whole words. What a field holds is read from its type once, at import, so a new field
needs nothing here and a type that cannot be encoded fails at once. Both ends run the same code,
so no names or versions travel.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, TypeAlias, Union, get_args, get_origin, get_type_hints

import numpy as np

from kvasir_engine.step_plan import StepPlan

WORD = 8
_INT = struct.Struct("<q")
_FLOAT = struct.Struct("<d")
_VECTOR = struct.Struct("<2q")
"""The shape of an array of one axis, which nearly all are."""
_NOTHING = _INT.pack(0)
"""An empty list, or None."""

Write: TypeAlias = Callable[[list[bytes], Any], None]
Read: TypeAlias = Callable[["_Cursor"], Any]
Codec: TypeAlias = tuple[Write, Read]


class _Cursor:
    """Reads one word after another."""

    def __init__(self, data: bytearray) -> None:
        self.data = data
        self.at = 0

    def integer(self) -> int:
        value: int = _INT.unpack_from(self.data, self.at)[0]
        self.at += WORD
        return value

    def number(self) -> float:
        value: float = _FLOAT.unpack_from(self.data, self.at)[0]
        self.at += WORD
        return value

    def array(self, dtype: np.dtype[Any], count: int) -> np.ndarray[Any, Any]:
        """`count` items, sharing the memory of the message."""
        values = np.frombuffer(self.data, dtype, count, self.at)
        self.at += _padded(values.nbytes)
        return values


def _padded(size: int) -> int:
    return -(-size // WORD) * WORD


def _write_int(out: list[bytes], value: int) -> None:
    out.append(_INT.pack(value))


def _write_float(out: list[bytes], value: float) -> None:
    out.append(_FLOAT.pack(value))


def _array(dtype: np.dtype[Any]) -> Codec:
    def write(out: list[bytes], array: np.ndarray[Any, Any]) -> None:
        if array.dtype != dtype:
            raise TypeError(f"an array of {array.dtype} stands where the plan has one of {dtype}.")
        data = array.tobytes()
        if array.ndim == 1:
            out.append(_VECTOR.pack(1, len(array)))
        else:
            out.append(struct.pack(f"<{array.ndim + 1}q", array.ndim, *array.shape))
        out.append(data)
        rest = -len(data) % WORD
        if rest:
            out.append(bytes(rest))

    def read(cursor: _Cursor) -> np.ndarray[Any, Any]:
        shape = [cursor.integer() for _ in range(cursor.integer())]
        return cursor.array(dtype, math.prod(shape)).reshape(shape)

    return write, read


def _integers() -> Codec:
    """list[int] at an array's speed: allowed ids may be as many as the vocabulary."""
    write_array, read_array = _array(np.dtype(np.int64))

    def write(out: list[bytes], values: list[int]) -> None:
        write_array(out, np.array(values, dtype=np.int64))

    def read(cursor: _Cursor) -> list[int]:
        values: list[int] = read_array(cursor).tolist()
        return values

    return write, read


def _list(item: Codec) -> Codec:
    write_item, read_item = item

    def write(out: list[bytes], values: list[Any]) -> None:
        if not values:  # as nearly every list of nearly every plan
            out.append(_NOTHING)
            return
        _write_int(out, len(values))
        for value in values:
            write_item(out, value)

    def read(cursor: _Cursor) -> list[Any]:
        return [read_item(cursor) for _ in range(cursor.integer())]

    return write, read


def _mapping(key: Codec, value: Codec) -> Codec:
    write_keys, read_keys = _list(key)
    write_values, read_values = _list(value)

    def write(out: list[bytes], mapping: dict[Any, Any]) -> None:
        write_keys(out, list(mapping.keys()))
        write_values(out, list(mapping.values()))

    def read(cursor: _Cursor) -> dict[Any, Any]:
        keys = read_keys(cursor)
        return dict(zip(keys, read_values(cursor), strict=True))

    return write, read


def _optional(item: Codec) -> Codec:
    write_item, read_item = item

    def write(out: list[bytes], value: Any) -> None:
        if value is None:
            out.append(_NOTHING)
            return
        _write_int(out, 1)
        write_item(out, value)

    def read(cursor: _Cursor) -> Any:
        return read_item(cursor) if cursor.integer() else None

    return write, read


def _dataclass(kind: type[Any]) -> Codec:
    hints = get_type_hints(kind)
    codecs = [(each.name, *codec_of(hints[each.name])) for each in fields(kind)]

    def write(out: list[bytes], value: Any) -> None:
        for name, write_field, _ in codecs:
            write_field(out, getattr(value, name))

    def read(cursor: _Cursor) -> Any:
        return kind(*[read_field(cursor) for _, _, read_field in codecs])

    return write, read


def codec_of(kind: Any) -> Codec:
    """The functions that write and read values of type `kind`. Raises TypeError."""
    arguments = get_args(kind)
    match get_origin(kind) or kind:
        case t if t is int:
            return _write_int, _Cursor.integer
        case t if t is float:
            return _write_float, _Cursor.number
        case t if t is np.ndarray:
            return _array(np.dtype(get_args(arguments[1])[0]))
        case t if t is list:
            return _integers() if arguments[0] is int else _list(codec_of(arguments[0]))
        case t if t is dict:
            return _mapping(codec_of(arguments[0]), codec_of(arguments[1]))
        case t if t in (Union, UnionType) and len(arguments) == 2 and NoneType in arguments:
            return _optional(codec_of(next(a for a in arguments if a is not NoneType)))
        case type() as t if is_dataclass(t):
            return _dataclass(t)
    raise TypeError(f"{kind} cannot be sent to other ranks.")


_write_plan, _read_plan = codec_of(StepPlan)


def encode(plan: StepPlan) -> bytes:
    """The plan as bytes."""
    out: list[bytes] = []
    _write_plan(out, plan)
    return b"".join(out)


def decode(message: bytearray) -> StepPlan:
    """The plan that `encode` was given. Its arrays share the message's memory."""
    cursor = _Cursor(message)
    plan: StepPlan = _read_plan(cursor)
    if cursor.at != len(message):
        raise ValueError(f"a plan of {cursor.at} bytes came in a message of {len(message)}.")
    return plan
