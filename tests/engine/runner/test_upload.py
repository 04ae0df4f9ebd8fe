"""Copies that keep nothing of the array they were made from."""

from __future__ import annotations

import numpy as np
import torch

from kvasir_engine.runner.upload import upload


def test_the_array_may_be_reused_at_once() -> None:
    array = np.arange(6, dtype=np.int32).reshape(2, 3)
    tensor = upload(array, torch.device("cpu"))
    array[:] = -1
    assert tensor.dtype is torch.int32
    assert tensor.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_part_of_an_array_is_copied_as_it_reads() -> None:
    array = np.arange(10, dtype=np.int64)
    assert upload(array[1::3], torch.device("cpu")).tolist() == [1, 4, 7]
