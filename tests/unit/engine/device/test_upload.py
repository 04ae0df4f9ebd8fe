"""Copies that keep nothing of the array they were made from."""

from __future__ import annotations

import numpy as np
import torch

from kvasir_engine.device.upload import (
    ALIGNED,
    aligned_starts,
    pack,
    unpack,
    upload,
    upload_all,
)


def test_the_array_may_be_reused_at_once() -> None:
    array = np.arange(6, dtype=np.int32).reshape(2, 3)
    tensor = upload(array, torch.device("cpu"))
    array[:] = -1
    assert tensor.dtype is torch.int32
    assert tensor.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_part_of_an_array_is_copied_as_it_reads() -> None:
    array = np.arange(10, dtype=np.int64)
    assert upload(array[1::3], torch.device("cpu")).tolist() == [1, 4, 7]


def test_several_arrays_travel_in_one_buffer() -> None:
    arrays: list[np.ndarray] = [
        np.array([1, 2, 3], dtype=np.int32),
        np.arange(12, dtype=np.float32).reshape(3, 4).T,
        np.empty((0, 5), dtype=np.int64),
        np.array([[7, 8]], dtype=np.int64),
    ]
    starts = aligned_starts(arrays)
    staged = torch.empty(starts[-1], dtype=torch.uint8)
    found = unpack(pack(staged, arrays, starts), arrays, starts)
    assert [each.numpy().tolist() for each in found] == [each.tolist() for each in arrays]
    assert [each.dtype for each in found] == [torch.int32, torch.float32, torch.int64, torch.int64]
    assert all(start % ALIGNED == 0 for start in starts)


def test_uploading_several_keeps_nothing_of_them() -> None:
    arrays = [np.array([1, 2], dtype=np.int64), np.array([0.5], dtype=np.float32)]
    found = upload_all(arrays, torch.device("cpu"))
    for array in arrays:
        array[:] = 9
    assert [each.tolist() for each in found] == [[1, 2], [0.5]]
