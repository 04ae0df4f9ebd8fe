"""One process under the monitor: its status, its output, and that nothing of it is left."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from kvasir.cli.local.child_process import MAX_LINE, Child, ChildSpec

MONITOR = Path(__file__).parents[5] / "api/kvasir/cli/local/monitor.py"
IGNORE_TERM = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); "
SLEEP = "import time; print('up', flush=True); time.sleep(600)"
# A grandchild in a session of its own: neither a process group nor a pipe leads to it.
SPAWN = (
    "import subprocess, sys, time; p = subprocess.Popen([sys.executable, '-S', '-c',"
    " 'import time; time.sleep(600)'], start_new_session=True, stdout=subprocess.DEVNULL);"
    " print(p.pid, flush=True); "
)


def spec(code: str, *, grace: float = 20.0, env: Mapping[str, str] = os.environ) -> ChildSpec:
    return ChildSpec("it", (sys.executable, "-S", "-c", code), env, "http://127.0.0.1:1/", grace)


class Lines(list[str]):
    """The lines of a child, and a way to await the first."""

    def __init__(self) -> None:
        super().__init__()
        self.first = asyncio.Event()

    def __call__(self, line: str) -> None:
        self.append(line)
        self.first.set()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until_gone(pid: int) -> None:
    end = time.monotonic() + 30
    while alive(pid):
        assert time.monotonic() < end, f"process {pid} is still there"
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("raise SystemExit(0)", 0),
        ("raise SystemExit(7)", 7),
        ("import os; os.kill(os.getpid(), 9)", 137),
        ("import os; os.kill(os.getpid(), 15)", 143),
    ],
)
async def test_the_exit_status_is_passed_on(code: str, status: int) -> None:
    child = await Child.start(spec(code), Lines())
    assert await child.wait() == status


async def test_a_command_that_does_not_exist() -> None:
    lines = Lines()
    missing = ChildSpec("it", ("/no/such/program",), os.environ, "", 1)
    child = await Child.start(missing, lines)
    assert await child.wait() == 127
    assert lines == ["cannot start /no/such/program: No such file or directory"]


async def test_output_of_both_streams_is_split_into_bounded_lines() -> None:
    code = (
        "import sys, os; os.write(1, b'one\\ntw'); os.write(2, b'o\\n');"
        f" os.write(1, b'x' * {3 * MAX_LINE} + b'\\n'); os.write(1, b'\\xff last')"
    )
    lines = Lines()
    child = await Child.start(spec(code), lines)
    await child.wait()
    assert lines[:2] == ["one", "two"]
    assert all(set(line) == {"x"} and len(line) <= MAX_LINE for line in lines[2:-1] if line)
    assert lines[-1] == "\N{REPLACEMENT CHARACTER} last"
    assert list(child.tail) == lines


async def test_term_ends_it_and_kills_it_after_the_grace() -> None:
    lines = Lines()
    polite = await Child.start(spec(SLEEP), lines)
    stubborn = await Child.start(spec(IGNORE_TERM + "time.sleep(600)", grace=0.2), more := Lines())
    await asyncio.gather(lines.first.wait(), more.first.wait())
    polite.terminate()
    stubborn.terminate()
    assert await polite.wait() == 128 + signal.SIGTERM
    assert await stubborn.wait() == 128 + signal.SIGKILL


async def test_kill_does_not_wait_for_the_grace() -> None:
    lines = Lines()
    child = await Child.start(spec(IGNORE_TERM + "time.sleep(600)", grace=600), lines)
    await lines.first.wait()
    child.terminate()
    child.kill()
    assert await child.wait() == 128 + signal.SIGKILL


@pytest.mark.parametrize("end", ["raise SystemExit(4)", "time.sleep(600)"])
async def test_what_it_started_ends_with_it(end: str) -> None:
    lines = Lines()
    child = await Child.start(spec(SPAWN + end), lines)
    await lines.first.wait()
    child.terminate()
    await child.wait()
    assert not alive(int(lines[0]))


async def test_nothing_is_left_when_the_parent_is_killed() -> None:
    code = SPAWN + "import os; print(os.getpid(), flush=True); time.sleep(600)"
    starter = (
        "import os, subprocess, sys;"
        f" subprocess.run([sys.executable, '-I', '-S', {str(MONITOR)!r}, str(os.getpid()), '20',"
        f" sys.executable, '-S', '-c', {code!r}])"
    )
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", starter, stdout=subprocess.PIPE
    )
    assert parent.stdout is not None
    pids = [int(await parent.stdout.readline()) for _ in range(2)]
    assert all(map(alive, pids))
    parent.kill()
    await parent.wait()
    for pid in pids:
        until_gone(pid)


async def test_the_command_ends_when_the_monitor_is_killed() -> None:
    lines = Lines()
    code = "import os, time; print(os.getppid(), os.getpid(), flush=True); time.sleep(600)"
    child = await Child.start(spec(code), lines)
    await lines.first.wait()
    monitor, command = map(int, lines[0].split())
    os.kill(monitor, signal.SIGKILL)
    await child.wait()
    until_gone(command)


def test_a_monitor_whose_parent_is_already_gone_starts_nothing(tmp_path: Path) -> None:
    made, nobody = tmp_path / "made", str(os.getpid() + 1)
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(MONITOR), nobody, "1", "touch", str(made)], timeout=30
    )
    assert done.returncode == 1
    assert not made.exists()
