"""Choices of algorithms and their file; the library itself where there is a GPU."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kvasir_engine.device.gpu_kind import GpuKind
from kvasir_engine.kernels.gemm.algorithm_table import AlgorithmTable, format_algorithms
from kvasir_engine.kernels.gemm.cublaslt import Algorithm, algorithm_of, cublaslt

KEY = (256, 4096, 1024)
WORDS = (7, 1 << 63, 0, 0, 0, 0, 0, 1)


def never() -> None:
    raise AssertionError("chosen again")


def test_what_was_chosen_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "gemm" / "gpu.json"
    first = AlgorithmTable(file)
    assert first.get(KEY, lambda: WORDS) == WORDS
    assert first.get((8, 1, 1), lambda: None) is None
    first.save()
    second = AlgorithmTable(file)
    assert second.get(KEY, never) == WORDS
    assert second.get((8, 1, 1), never) is None
    assert [path.name for path in file.parent.iterdir()] == ["gpu.json"]


@pytest.mark.parametrize("content", ["{", "[[1, 2]]", "[[1, 2, 3, [4]]]", "[[1, 2, 3, 4]]"])
def test_a_file_that_makes_no_sense_is_written_anew(tmp_path: Path, caplog, content: str) -> None:
    file = tmp_path / "gpu.json"
    file.write_text(content)
    with caplog.at_level(logging.WARNING):
        choices = AlgorithmTable(file)
    assert "timed again" in caplog.text
    assert choices.get(KEY, lambda: WORDS) == WORDS
    choices.save()
    assert json.loads(file.read_text()) == [[*KEY, list(WORDS)]]


def test_a_directory_that_cannot_be_written_is_no_error(tmp_path: Path, caplog) -> None:
    (tmp_path / "taken").write_text("")
    choices = AlgorithmTable(tmp_path / "taken" / "gpu.json")
    choices.get(KEY, lambda: WORDS)
    choices.save()
    assert "cannot be saved" in caplog.text


def test_what_is_shipped_comes_first_and_is_not_kept_again(tmp_path: Path) -> None:
    shipped, file = tmp_path / "shipped.json", tmp_path / "kept" / "gpu.json"
    other = (9, *WORDS[1:])
    lines = {KEY: WORDS, (64, 4096, 1024): None, (64, 1, 1): other, (128, 1, 1): other}
    shipped.write_text(format_algorithms(lines))
    choices = AlgorithmTable(file, shipped)
    assert choices.get(KEY, never) == WORDS
    assert choices.get((64, 4096, 1024), never) is None
    assert choices.shipped_algorithms(1) == [other]
    choices.save()
    assert not file.parent.exists()
    choices.get((8, 8, 8), lambda: None)
    choices.save()
    assert json.loads(file.read_text()) == [[8, 8, 8, None]]


@pytest.mark.parametrize(
    ("times", "words"),
    [
        ([(1.0, WORDS), (1.2, None)], WORDS),
        ([(1.0, WORDS), (1.001, None)], None),
        ([(0.5, None), (0.6, WORDS)], None),
    ],
)
def test_torch_chooses_unless_it_is_clearly_slower(times, words) -> None:
    from kvasir_engine.kernels.gemm.tuned_gemm import chosen

    def algorithm(words: tuple[int, ...] | None) -> Algorithm | None:
        return None if words is None else algorithm_of(words)

    assert chosen([(time, algorithm(each)) for time, each in times]) == words


def test_shipped_tables_can_be_read() -> None:
    """Whatever GPU they are for."""
    from kvasir_engine.kernels.gemm import tuned_gemm as gemms
    from kvasir_engine.kernels.gemm.algorithm_table import read_algorithms

    tables = list(Path(gemms.__file__).parent.glob("algorithms-*.json"))
    assert tables
    for table in tables:
        choices = read_algorithms(table)
        assert (256, 28672, 4096) in choices
        assert all(tokens >= gemms.MIN_TUNED_TOKENS for tokens, _, _ in choices)


class FakeLibrary:
    """cuBLASLt of a GPU that is not here: what it launches fails or does nothing."""

    version = 130100

    def __init__(self, status: int = 0) -> None:
        self.status, self.launched = status, 0

    def problem(self, *_: object) -> None:
        """Describe nothing."""

    def launch_gemm(self, *_: object) -> int:
        self.launched += 1
        return self.status


@pytest.fixture
def gemms_on(tmp_path: Path, monkeypatch) -> Callable[..., Any]:
    """gemms_on(kind, library): the autotuned GEMMs of a GPU that is not here; timing takes a second
    of a clock that nothing else moves, and finds WORDS."""
    from kvasir_engine.kernels.gemm import tuned_gemm as module

    monkeypatch.setenv("KVASIR_CACHE", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "GPU")
    clock = [0.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock[0]))

    def fastest(*_: object) -> tuple[int, ...]:
        clock[0] += 1
        return WORDS

    def made(kind: GpuKind, library: FakeLibrary | None = None) -> Any:
        clock[0] = 0
        monkeypatch.setattr(module, "gpu_kind", lambda _: kind)
        gemms = module.TunedGemms(library or FakeLibrary(), torch.device("cpu"))
        monkeypatch.setattr(gemms, "_fastest", fastest)
        return gemms

    return made


H100 = GpuKind(9, 0, 132, 3350)
SHIPPED = torch.empty(28672, 4096, dtype=torch.bfloat16, device="meta")
OTHER = torch.empty(512, 256, dtype=torch.bfloat16)


def test_a_gpu_like_a_measured_one_times_nothing_that_was_measured(gemms_on, caplog) -> None:
    with caplog.at_level(logging.INFO):
        gemms_on(H100)
        assert caplog.text == "", "it has a table of its own"
        gemms = gemms_on(GpuKind(9, 0, 132, 5500))
    assert "that for GpuKind" not in caplog.text
    assert "that for 9.0-132sm-4920gbs is used" in caplog.text
    assert gemms.tune([SHIPPED], [256, 8192], deadline=-1) == 0
    # Of fewer multiprocessors, or with another version: candidates at most.
    assert gemms_on(GpuKind(9, 0, 114, 2040)).tune([SHIPPED], [256], deadline=-1) == 1
    other = FakeLibrary()
    other.version = 130200
    caplog.clear()
    with caplog.at_level(logging.INFO):
        assert gemms_on(H100, other).tune([SHIPPED], [256], deadline=-1) == 1
    assert "130200 has no table" in caplog.text
    assert "found by timing" in caplog.text


def test_a_start_times_within_its_budget_and_the_next_one_goes_on(gemms_on) -> None:
    sizes = [512, 256, 128, 64, 32]
    first = gemms_on(H100)
    assert first.tune([OTHER], sizes, deadline=2.5) == 2
    first.save()
    # What was not timed is served by the next larger one that was.
    x = torch.empty(40, 256, dtype=torch.bfloat16)
    assert first.tuned_gemm(x, OTHER).shape == (40, 512)
    second = gemms_on(H100)
    assert second.tune([OTHER], sizes, deadline=0.5) == 1
    second.save()
    assert gemms_on(H100).tune([OTHER], sizes, deadline=0.5) == 0


def test_an_algorithm_that_fails_is_told_once_and_left(gemms_on, caplog) -> None:
    library = FakeLibrary(status=15)
    gemms = gemms_on(H100, library)
    gemms.tune([OTHER], [64])
    x = torch.empty(64, 256, dtype=torch.bfloat16)
    assert gemms.tuned_gemm(x, OTHER) is None
    assert gemms.tuned_gemm(x, OTHER) is None
    assert library.launched == 1
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "64 x 512 x 256 fails" in caplog.text


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs cuBLASLt on a GPU")
def test_products_are_right(tmp_path: Path, monkeypatch) -> None:
    from kvasir_engine.kernels.gemm.tuned_gemm import TunedGemms

    monkeypatch.setenv("KVASIR_CACHE", str(tmp_path))
    device = torch.device("cuda", 0)
    library = cublaslt(device)
    assert library is not None
    weights = [torch.randn(512, 256, dtype=torch.bfloat16, device=device) for _ in range(3)]
    gemms = TunedGemms(library, device)
    gemms.tune(weights, [72, 256])
    # Whatever was fastest here: every algorithm that is named is launched.
    problem = library.problem(200, 512, 256, 256, torch.bfloat16)
    for algorithm in library.candidates(problem, 8):
        gemms._algorithms[256, 512, 256] = algorithm_of(tuple(algorithm.data))
        x = torch.randn(200, 256, dtype=torch.bfloat16, device=device)
        got = gemms.tuned_gemm(x, weights[1])
        want = x.double() @ weights[1].double().T
        assert got is not None
        assert (got.double() - want).norm() / want.norm() < 1e-2
    assert gemms.tuned_gemm(x[:16], weights[1]) is None
    assert gemms.tuned_gemm(torch.cat([x, x]), weights[1]) is None
