"""Step plans as bytes (MessagePack by msgspec), for the other ranks.

Both ends run the same code, so no versions travel. An array is its bytes, or its shape and its
bytes where it has not one axis.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from kvasir_engine.step_plan import Int32Array, StepPlan

_ITEM = np.dtype(np.int32)
"""Data type of every array in a plan."""


def _pack(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if not isinstance(value, np.ndarray) or value.dtype != _ITEM:
        kind = f"an array of {value.dtype}" if isinstance(value, np.ndarray) else f"{value!r}"
        raise TypeError(f"{kind} stands where a plan has an array of {_ITEM}.")
    return value.tobytes() if value.ndim == 1 else (value.shape, value.tobytes())


def _unpack(_kind: Any, packed: Any) -> Any:
    # A copy, since torch wants to be able to write to what it wraps.
    if isinstance(packed, bytes):
        return np.frombuffer(bytearray(packed), _ITEM)
    shape, data = packed
    return np.frombuffer(bytearray(data), _ITEM).reshape(shape)


_encoder = msgspec.msgpack.Encoder(enc_hook=_pack)
_masks_decoder: msgspec.msgpack.Decoder[Int32Array] = msgspec.msgpack.Decoder(
    np.ndarray, dec_hook=_unpack
)
_decoder = msgspec.msgpack.Decoder(StepPlan, dec_hook=_unpack)


def encode(plan: StepPlan) -> bytes:
    """Return the plan as bytes."""
    return _encoder.encode(plan)


def encode_masks(masks: Int32Array) -> bytes:
    """Return a plan's masks, which follow it, as bytes."""
    return _encoder.encode(masks)


def decode_masks(message: bytes | bytearray) -> Int32Array:
    """Return the masks that `encode_masks` was given. Raises msgspec.DecodeError."""
    return _masks_decoder.decode(message)


def decode(message: bytes | bytearray) -> StepPlan:
    """Return the plan that `encode` was given. Raises msgspec.DecodeError."""
    return _decoder.decode(message)
