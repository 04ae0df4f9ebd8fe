from __future__ import annotations

from pathlib import Path

import pytest

from kvasir_engine.server.gpu_faults.gpu_probe import GpuState, ProbeError, XidEvent
from kvasir_engine.server.gpu_faults.simulated_probe import SimulatedProbe

SOUND = GpuState("sim-0", row_remap_failed=False, uncorrectable_errors=0)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "faults"


def append(file: Path, text: str) -> None:
    with file.open("a") as opened:
        opened.write(text)


def test_lines_happen_once_and_those_from_before_never(file: Path) -> None:
    append(file, "xid 79\n")
    probe = SimulatedProbe(file)
    assert probe.open() == ("sim-0",)
    append(file, "xid 13\nxid 48\n")
    assert probe.look(0).events == (XidEvent("sim-0", 13), XidEvent("sim-0", 48))
    seen = probe.look(0)
    assert (seen.events, seen.states) == ((), (SOUND,))


def test_a_file_that_is_not_there_may_come(file: Path) -> None:
    probe = SimulatedProbe(file)
    probe.open()
    assert probe.look(0).states == (SOUND,)
    append(file, "lost\n")
    assert probe.look(0).states[0].lost
    append(file, "found\nremap\necc 3\nreset\n")
    assert probe.look(0).states == (GpuState("sim-0", False, True, True, 3),)


def test_a_line_that_is_being_written_waits(file: Path) -> None:
    probe = SimulatedProbe(file)
    probe.open()
    append(file, "xid 7")
    assert probe.look(0).events == ()
    append(file, "9\n")
    assert probe.look(0).events == (XidEvent("sim-0", 79),)


@pytest.mark.parametrize("line", ["", "xid", "xid -1", "xid x", "nonsense", "xid 0"])
def test_other_lines_are_left_out(file: Path, line: str) -> None:
    probe = SimulatedProbe(file)
    probe.open()
    append(file, f"{line}\n")
    seen = probe.look(0)
    assert (seen.events, seen.states) == ((), (SOUND,))


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ProbeError, match="cannot be read"):
        SimulatedProbe(tmp_path).open()
