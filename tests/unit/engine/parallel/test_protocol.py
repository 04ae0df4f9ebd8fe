"""What ranks tell each other survives the way, and failures keep their sentence."""

from __future__ import annotations

import msgspec
import pytest

from kvasir_engine.loader.load_error import ModelLoadError
from kvasir_engine.parallel.plan_channel import ReaderEnd
from kvasir_engine.parallel.protocol import (
    MAX_REPORT_CHARS,
    Progress,
    RankError,
    Report,
    WorkerConfig,
)
from kvasir_engine.settings import SettingsError, make_settings


def test_a_worker_gets_all_settings() -> None:
    settings = make_settings(
        "módel", tensor_parallel_size=4, max_num_seqs=7, block_size=32, dtype="bfloat16"
    )
    plans = ReaderEnd(3, 4, 5, slots=64, slot_bytes=1024)
    config = WorkerConfig(2, "/run/störe", "/models/x", settings, plans, reports=9)
    assert msgspec.json.decode(msgspec.json.encode(config), type=WorkerConfig) == config


@pytest.mark.parametrize("kind", [ModelLoadError, SettingsError])
def test_what_the_user_can_mend_keeps_its_type_and_sentence(kind: type[ValueError]) -> None:
    report = Report(Progress.FAILED, kind.__name__, "raise --max-model-len", "Traceback")
    error = msgspec.json.decode(report.encode(), type=Report).error(rank=1)
    assert type(error) is kind
    assert str(error) == "raise --max-model-len"


def test_other_errors_name_the_rank() -> None:
    error = Report(Progress.FAILED, "OutOfMemoryError", "CUDA out of memory").error(rank=3)
    assert type(error) is RankError
    assert str(error) == "tensor-parallel rank 3 ended: OutOfMemoryError: CUDA out of memory"


def test_a_report_is_one_bounded_line() -> None:
    report = Report(Progress.FAILED, "E", "two\nlines", "x" * 10 * MAX_REPORT_CHARS)
    line = report.encode()
    assert line.index(b"\n") == len(line) - 1
    assert len(line) < 2 * MAX_REPORT_CHARS
    assert msgspec.json.decode(line, type=Report).message == "two\nlines"
