"""Choices of algorithms and their file; the library itself where there is a GPU."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
import torch

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

    tables = list(Path(gemms.__file__).parent.glob("*-cublaslt-*.json"))
    assert tables
    for table in tables:
        choices = read_algorithms(table)
        assert (256, 28672, 4096) in choices
        assert all(tokens >= gemms.MIN_TUNED_TOKENS for tokens, _, _ in choices)


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
