from __future__ import annotations

from pathlib import Path

from kvasir_engine.server.gpu_faults.fault_page import FaultPage


def test_one_process_writes_and_others_read(tmp_path: Path) -> None:
    writer = FaultPage(tmp_path / "page", create=True)
    reader = FaultPage(tmp_path / "page")
    assert (reader.is_set, reader.reason) == (False, "")
    writer.write("GPU g: Xid 79")
    assert (reader.is_set, reader.reason) == (True, "GPU g: Xid 79")
    assert FaultPage(tmp_path / "page").is_set, "a process that starts later knows it too"


def test_a_long_sentence_is_cut_at_a_whole_character(tmp_path: Path) -> None:
    page = FaultPage(tmp_path / "page", create=True)
    page.write("x" + "é" * 1000)
    assert page.reason == "x" + "é" * 255
