"""Logging is set up once a process, so each case runs in one of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvasir.logs import LogSettingError, configure_logging, is_error_line

API = Path(__file__).parents[3] / "api"
USE = """
import logging
from kvasir.logs import configure_logging, get_logger
configure_logging("engine")
log = get_logger("a.b")
log.debug("hidden")
log.info("started", port=8080)
logging.getLogger("other").warning("old %s", "style", extra={"color_message": "x", "port": 1})
try:
    1 / 0
except ZeroDivisionError:
    log.exception("broke", path=__import__("pathlib").Path("/x"))
"""


def lines(**environ: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", USE],
        env={**os.environ, "PYTHONPATH": str(API), **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == ""
    return done.stderr.splitlines()


def test_json_lines() -> None:
    started, old, broke = map(json.loads, lines())
    assert started.pop("timestamp").endswith("Z")
    assert started == {
        "event": "started",
        "level": "info",
        "logger": "a.b",
        "component": "engine",
        "port": 8080,
    }
    assert (old["event"], old["level"], old["component"]) == ("old style", "warning", "engine")
    assert old["port"] == 1
    assert "color_message" not in old
    assert broke["exception"].endswith("ZeroDivisionError: division by zero")
    assert broke["path"] == "/x"


def test_console_and_level() -> None:
    text = lines(KVASIR_LOG_FORMAT="console", KVASIR_LOG_LEVEL="DEBUG")
    assert "hidden" in text[0]
    assert "started" in text[1]
    assert "port=8080" in text[1]


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_error_lines_are_known_in_both_formats(log_format: str) -> None:
    errors = [line for line in lines(KVASIR_LOG_FORMAT=log_format) if is_error_line(line)]
    assert len(errors) == 1
    assert "broke" in errors[0]


def test_a_wrong_setting_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVASIR_LOG_LEVEL", "loud")
    with pytest.raises(LogSettingError, match=r"KVASIR_LOG_LEVEL must be one of debug, .*'loud'"):
        configure_logging("x")
    with pytest.raises(LogSettingError, match=r"KVASIR_LOG_FORMAT must be one of json, console"):
        configure_logging("x", level="info", log_format="xml")
