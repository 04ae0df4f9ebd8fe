"""Paged batches and attention written out query by query in float64, for every backend."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from support.engines.attention_cases import (
    BLOCK,
    check,
    make_batch,
    make_spec,
    move,
    poison,
    written_out,
)


@pytest.fixture(scope="session")
def paged() -> SimpleNamespace:
    """The functions above."""
    return SimpleNamespace(
        BLOCK=BLOCK,
        make_spec=make_spec,
        make_batch=make_batch,
        written_out=written_out,
        check=check,
        move=move,
        poison=poison,
    )
