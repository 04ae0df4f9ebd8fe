"""Which errors end the process: a stand-in for CUDA's synchronisation, which no CPU has."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from kvasir_engine.device.device_errors import require_usable, seen_at_once
from kvasir_engine.device.process_end import end_by
from kvasir_engine.errors import DeviceError, FatalError

GPU = torch.device("cuda", 0)


@pytest.fixture
def synchronize(monkeypatch: pytest.MonkeyPatch) -> list[Exception]:
    """Errors that torch.cuda.synchronize raises, one a call."""
    errors: list[Exception] = []

    def wait(_device: torch.device) -> None:
        if errors:
            raise errors.pop()

    monkeypatch.setattr(torch.cuda, "synchronize", wait)
    return errors


@pytest.mark.parametrize(
    "error",
    [
        torch.AcceleratorError("CUDA error: an illegal memory access was encountered"),
        RuntimeError("CUDA error: unspecified launch failure\nCUDA kernel errors might be"),
        RuntimeError("Triton Error [CUDA]: an illegal instruction was encountered"),
        RuntimeError("CUBLAS_STATUS_EXECUTION_FAILED when calling cublasLtMatmul"),
    ],
)
def test_an_error_of_the_gpu_is_the_last(synchronize: list[Exception], error: Exception) -> None:
    with pytest.raises(DeviceError, match=r"^the GPU failed: [^\n]+$") as caught:
        require_usable(GPU, error)
    assert isinstance(caught.value, FatalError)


def test_one_that_shows_itself_later_too(synchronize: list[Exception]) -> None:
    synchronize.append(RuntimeError("CUDA error: device-side assert triggered"))
    with pytest.raises(DeviceError, match="device-side assert") as caught:
        require_usable(GPU, ValueError("a row too many"))
    assert isinstance(caught.value.__cause__, ValueError)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("Triton Error [CUDA]: out of memory"),
        ValueError("a row too many"),
    ],
)
def test_a_lack_of_memory_and_a_defect_are_not(
    synchronize: list[Exception], error: Exception
) -> None:
    require_usable(GPU, error)


@pytest.fixture
def ended() -> Iterator[list[str]]:
    """Reasons with which this process would have ended."""
    reasons: list[str] = []
    end_by(lambda error: reasons.append(f"{error}"))
    yield reasons
    end_by(None)


def test_the_process_ends_where_the_error_first_shows(ended: list[str]) -> None:
    """Here it goes on, and the error goes its way."""
    with pytest.raises(torch.AcceleratorError), seen_at_once():
        raise torch.AcceleratorError("CUDA error: device-side assert triggered\nSearch for")
    assert ended == ["the GPU failed: CUDA error: device-side assert triggered"]


def test_no_other_error_ends_it(ended: list[str]) -> None:
    for error in (ValueError("a row too many"), torch.OutOfMemoryError("CUDA out of memory.")):
        with pytest.raises(type(error)), seen_at_once():
            raise error
    assert ended == []


def test_an_error_found_while_recovering_ends_it_too(
    synchronize: list[Exception], ended: list[str]
) -> None:
    synchronize.append(RuntimeError("CUDA error: device-side assert triggered"))
    with pytest.raises(DeviceError):
        require_usable(GPU, ValueError("a row too many"))
    assert ended == ["the GPU failed: CUDA error: device-side assert triggered"]
