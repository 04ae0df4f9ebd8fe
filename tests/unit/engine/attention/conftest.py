"""Paged batches and attention written out query by query in float64, for every backend."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
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


DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class OnDevice:
    """A backend whose callers' tensors are on the CPU."""

    def __init__(self, backend, paged) -> None:
        self.real = backend
        self._paged = paged

    def attend(self, spec, q, cache, batch, **given):
        batch = self._paged.move(batch, DEVICE)
        if spec.sinks is not None:
            spec = replace(spec, sinks=spec.sinks.to(DEVICE, q.dtype))
        return self.real.attend(spec, q.to(DEVICE), cache.to(DEVICE), batch, **given).cpu()

    def write_new_kv(self, cache, k, v, slots, scales) -> None:
        moved = cache.to(DEVICE)
        self.real.write_new_kv(moved, k.to(DEVICE), v.to(DEVICE), slots.to(DEVICE), scales)
        cache.copy_(moved)


@pytest.fixture
def backend(triton_interpreter, paged):
    from kvasir_engine.attention.triton.decode_tuning import DecodeTuning
    from kvasir_engine.attention.triton_backend import TritonAttention

    made = TritonAttention(DEVICE, multiprocessors=2)
    made.decode_tuning = DecodeTuning(keys=16, min_keys=16)
    made.prefill_tuning = made.prefill_tuning.__class__(rows=16, keys=16)
    return OnDevice(made, paged)
