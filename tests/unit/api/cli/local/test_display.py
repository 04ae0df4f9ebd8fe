"""What `kvasir up` says, and where it says it."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from kvasir.cli.local.child_process import ChildSpec
from kvasir.cli.local.display import Display
from kvasir.cli.local.local_fleet import Fleet
from kvasir.cli.local.log_file import LogFile
from kvasir.cli.local.process_supervisor import Member

ROUTER = ChildSpec("router", ("true",), {}, "http://127.0.0.1:8080/ready", grace=1.0)
ERROR = '{"level": "error", "event": "it broke"}'


@pytest.fixture
def terminal() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def display(terminal: io.StringIO, tmp_path: Path) -> Iterator[Display]:
    fleet = Fleet([], ROUTER, "http://127.0.0.1:8080", ["tiny", "big"], "http://127.0.0.1:8081")
    log = LogFile(tmp_path / "up.log")
    yield Display(fleet, log, Console(file=terminal, width=200))
    log.close()


def test_each_change_is_a_line_where_there_is_no_terminal(
    display: Display, terminal: io.StringIO
) -> None:
    display.changed(Member(ROUTER, state="ready"))
    assert terminal.getvalue().endswith(" s  router is ready\n")


def test_stopping_is_not_told_once_all_was_ready(display: Display, terminal: io.StringIO) -> None:
    display.ready()
    display.changed(Member(ROUTER, state="stopping"))
    assert terminal.getvalue() == ""
    display.changed(Member(ROUTER, state="restarting"))
    assert "router is restarting" in terminal.getvalue()


@pytest.mark.parametrize("key", [None, "s3cret"])
def test_ready_tells_how_to_use_it_without_the_key_itself(
    display: Display,
    key: str | None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("KVASIR_API_KEY", raising=False)
    if key:
        monkeypatch.setenv("KVASIR_API_KEY", key)
    display.ready()
    said = capsys.readouterr().out
    assert "http://127.0.0.1:8080 serves tiny, big" in said
    assert '"model": "tiny"' in said
    assert "up.log" in said
    assert "http://127.0.0.1:8081 shows replicas" in said
    assert ("$KVASIR_API_KEY" in said) == (key is not None)
    assert "s3cret" not in said


def test_a_line_goes_to_the_log_and_an_error_also_to_the_terminal(
    display: Display, terminal: io.StringIO, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    display.line("tiny-0", ERROR)
    assert terminal.getvalue() == "", "the end of a failed start tells it"
    display.ready()
    display.line("tiny-0", "all is well")
    display.line("tiny-0", f"{ERROR}\x1b[2J")
    capsys.readouterr()
    log = (tmp_path / "up.log").read_text()
    assert log.count("it broke") == 2
    assert "all is well" in log
    said = terminal.getvalue()
    assert said.startswith("tiny-0 | ")
    assert "it broke" in said
    assert "all is well" not in said
    assert "\x1b" not in said + log
