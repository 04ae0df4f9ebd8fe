"""Which errors are a lack of memory."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kvasir_engine.device.out_of_memory import raise_on_out_of_memory

TOO_MUCH = 1 << 60


def of_torch() -> object:
    return torch.empty(TOO_MUCH, dtype=torch.uint8)


def of_numpy() -> object:
    return np.zeros(TOO_MUCH, dtype=np.uint8)


def of_python() -> object:
    return bytearray(TOO_MUCH)


@pytest.mark.parametrize("allocate", [of_torch, of_numpy, of_python])
def test_every_allocator_on_the_host_ends_with_the_given_sentence(allocate) -> None:
    with (
        pytest.raises(ValueError, match="lower it") as caught,
        raise_on_out_of_memory(lambda: ValueError("lower it")),
    ):
        allocate()
    assert caught.value.__cause__ is not None


def test_a_devices_allocator_too() -> None:
    with (
        pytest.raises(ValueError, match="lower it"),
        raise_on_out_of_memory(lambda: ValueError("lower it")),
    ):
        raise torch.OutOfMemoryError("CUDA out of memory")


@pytest.mark.parametrize("error", [RuntimeError("shape mismatch"), ValueError("no"), OSError(12)])
def test_other_errors_stay_what_they_are(error: Exception) -> None:
    with (
        pytest.raises(type(error)) as caught,
        raise_on_out_of_memory(lambda: ValueError("lower it")),
    ):
        raise error
    assert caught.value is error
