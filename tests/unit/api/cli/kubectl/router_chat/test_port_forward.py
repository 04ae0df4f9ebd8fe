"""A tunnel by kubectl: its port, its end, and what it says when there is none.

A cluster's own needs nodes, so a program that speaks as kubectl does stands for it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvasir.cli.kubectl.router_chat.port_forward import PortForwardError, forwarded


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch: Any) -> Callable[[str], Path]:
    """kubectl(code): a program of that name; what it was called with is in the file that is
    returned, with its process id."""
    note = tmp_path / "called"

    def make(code: str) -> Path:
        program = tmp_path / "kubectl"
        start = "import os, sys, time\n"
        start += f"open({str(note)!r}, 'w').write(f'{{os.getpid()}} {{sys.argv[1:]}}')\n"
        program.write_text(f"#!{sys.executable}\n{start}{code}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
        return note

    return make


def is_alive(note: Path) -> bool:
    try:
        os.kill(int(note.read_text().split()[0]), 0)
    except ProcessLookupError:
        return False
    return True


WORKS = "print('Forwarding from 127.0.0.1:4711 -> 8080', flush=True)\ntime.sleep(600)"


def test_the_port_is_there_until_the_end(kubectl: Any) -> None:
    note = kubectl(WORKS)
    with forwarded(["--context=c"], "ns", "router", 8080) as port:
        assert port == 4711
        assert is_alive(note)
        words = "['--context=c', 'port-forward', '--address=127.0.0.1', '-n', 'ns'"
        assert f"{words}, 'service/router', ':8080']" in note.read_text()
        assert os.getsid(int(note.read_text().split()[0])) != os.getsid(0)
    assert not is_alive(note)


def test_it_ends_with_an_error_too(kubectl: Any) -> None:
    note = kubectl(WORKS)
    with pytest.raises(KeyboardInterrupt), forwarded([], "ns", "router", 8080):
        raise KeyboardInterrupt
    assert not is_alive(note)


def test_what_it_says_of_each_connection_does_not_fill_up(kubectl: Any) -> None:
    much = "print('x' * 1000000, flush=True); open(sys.argv[0] + '.done', 'w')"
    note = kubectl(WORKS.replace("time.sleep", f"{much}\ntime.sleep"))
    with forwarded([], "ns", "router", 8080):
        done = note.parent / "kubectl.done"
        while not done.exists():
            assert is_alive(note)


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        (
            "sys.exit('error: unable to forward port because pod is not running')",
            "cannot be forwarded: unable to forward port because pod is not running",
        ),
        ("sys.exit(1)", "cannot be forwarded: it says nothing"),
        ("time.sleep(600)", r"is not forwarded after 0\.5 s"),
    ],
)
def test_no_tunnel(kubectl: Any, code: str, problem: str) -> None:
    kubectl(code)
    with (
        pytest.raises(PortForwardError, match=problem),
        forwarded([], "ns", "router", 8080, seconds=0.5 if "600" in code else 30),
    ):
        pytest.fail("there is no tunnel")


def test_no_kubectl(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with (
        pytest.raises(PortForwardError, match="kubectl cannot be run"),
        forwarded([], "ns", "router", 8080),
    ):
        pytest.fail("there is no tunnel")
