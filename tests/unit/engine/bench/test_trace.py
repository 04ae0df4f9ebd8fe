from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvasir_engine.bench.trace import gpu_time


def written(directory: Path, *events: tuple[str, str, float, float]) -> Path:
    file = directory / "trace.json"
    names = ("cat", "name", "ts", "dur")
    made = [dict(zip(names, event, strict=True)) for event in events]
    file.write_text(json.dumps({"traceEvents": [{"ph": "M", "name": "no activity"}, *made]}))
    return file


def test_only_what_runs_on_the_gpu_counts(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        ("kernel", "a", 10, 5),
        ("cuda_runtime", "launch", 0, 100),
        ("gpu_memcpy", "copy", 20, 5),
        ("kernel", "a", 27, 3),
    )
    found = gpu_time(file)
    assert (found.span_us, found.busy_us) == (20, 13)
    assert found.idle_share == pytest.approx(7 / 20)
    assert [(each.name, each.calls, each.microseconds) for each in found.kernels] == [
        ("a", 2, 8),
        ("copy", 1, 5),
    ]


def test_a_kernel_set_up_during_another_counts_from_its_end(tmp_path: Path) -> None:
    file = written(tmp_path, ("kernel", "a", 0, 10), ("kernel", "b", 4, 9), ("kernel", "c", 5, 2))
    found = gpu_time(file)
    assert found.busy_us == found.span_us == 13
    assert {each.name: each.microseconds for each in found.kernels} == {"a": 10, "b": 3, "c": 0}


def test_a_trace_without_a_gpu_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no activity of a GPU"):
        gpu_time(written(tmp_path, ("cpu_op", "add", 0, 1)))
