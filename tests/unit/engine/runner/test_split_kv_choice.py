"""When decodes' keys are divided by length."""

from __future__ import annotations

import numpy as np
import pytest

from kvasir_engine.runner.split_kv_choice import needs_split_kv


@pytest.mark.parametrize(
    ("lengths", "differ"),
    [
        ([], False),
        ([100_000], False),
        ([64_000, 1_000], False),
        ([64_000] + [1_000] * 7, True),
        ([64_000] + [1_000] * 63, True),
        ([64_000] * 64, False),
        (list(range(200, 2000, 30)), False),
        # Over soon, however short the others are.
        ([3_000] + [10] * 63, False),
        ([1 << 30] * 512, False),
    ],
)
def test_one_long_context_among_short_ones(lengths: list[int], differ: bool) -> None:
    assert needs_split_kv(np.array(lengths, dtype=np.int32)) is differ
