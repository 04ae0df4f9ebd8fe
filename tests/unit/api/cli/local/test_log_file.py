from __future__ import annotations

from pathlib import Path

from kvasir.cli.local.log_file import LogFile


def test_lines_are_prefixed_and_the_file_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "up.log"
    log = LogFile(path, max_bytes=40)
    for number in range(9):
        log.write("a-0", f"line {number}")
    log.close()
    assert path.read_text() == "a-0 | line 6\na-0 | line 7\na-0 | line 8\n"
    assert path.with_name("up.log.1").read_text().startswith("a-0 | line 3\n")
    assert len(list(path.parent.iterdir())) == 2
    LogFile(path).close()
    assert path.read_text() == ""
