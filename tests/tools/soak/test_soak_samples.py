"""Processes are told by their cgroup and command line, and their figures are the kernel's."""

from __future__ import annotations

import mmap
import os
import threading
from pathlib import Path

import pytest
from soaking.sampling import changed, lives, role_of, sample, totals

CONTAINER = "c" * 64
POD = "04c49994-5f82-4240-b74e-a0ed8361690a"


def process(proc: Path, pid: int, cgroup: str, command: str) -> None:
    directory = proc / str(pid)
    directory.mkdir()
    (directory / "cgroup").write_text(f"5:cpu:/\n4:memory:{cgroup}\n")
    (directory / "cmdline").write_text(command.replace(" ", "\0"))
    fields = ["S", *map(str, range(1, 40))]
    (directory / "stat").write_text(f"{pid} (a b) {' '.join(fields)}")


def test_only_the_products_processes_on_nodes_count(tmp_path: Path) -> None:
    inside = f"/kvasir-n1/kubepods/burstable/pod{POD}/{CONTAINER}"
    process(tmp_path, 10, inside, "/bin/python /bin/kvasir router --port=1")
    process(tmp_path, 11, inside, "/pause")
    process(tmp_path, 12, "/user", "/bin/python /bin/kvasir router")
    process(tmp_path, 13, inside, "python -m kvasir_engine.core.process /tmp/x 1")
    (tmp_path / "self").mkdir()
    found = {each.pid: each for each in lives(tmp_path)}
    assert {pid: each.role for pid, each in found.items()} == {10: "router", 13: "engine core"}
    assert (found[10].pod, found[10].container, found[10].started) == (POD, CONTAINER, 19)


@pytest.mark.parametrize(
    ("command", "role"),
    [
        ("/opt/bin/python /opt/bin/kvasir serve x", "engine parent"),
        ("python -m kvasir_engine.server.process.api /tmp/x 0 1", "engine api"),
        ("/opt/bin/python /opt/bin/kvasir operator --namespace=a", "operator"),
        ("/pause", None),
    ],
)
def test_roles(command: str, role: str | None) -> None:
    assert role_of(command.replace(" ", "\0").encode()) == role


def test_figures_of_a_process_follow_what_it_has() -> None:
    before = sample(os.getpid())
    ending = threading.Event()
    extra = threading.Thread(target=ending.wait)
    extra.start()
    read, write = os.pipe()
    # Pages of its own: malloc may have 32 MiB left from what was freed
    with mmap.mmap(-1, 32 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as ballast:
        ballast.write(b"x" * len(ballast))
        after = sample(os.getpid())
    for descriptor in (read, write):
        os.close(descriptor)
    ending.set()
    extra.join()
    assert after.fds == before.fds + 2
    assert after.threads == before.threads + 1
    assert after.rss_mib - before.rss_mib > 30
    assert after.anonymous_mib - before.anonymous_mib > 30


def test_a_process_that_is_gone_has_none() -> None:
    with pytest.raises(FileNotFoundError):
        sample(2**22 + 1)


def test_metrics_are_summed_over_labels() -> None:
    text = '# HELP a b\na{x="1 2"} 1.0\na{x="3"} 2.5\nb 4\nc_bucket{le="1"} 9\n'
    found = totals(text)
    assert found == {"a": 3.5, "b": 4.0}
    assert changed(found, {"a": 3.5, "b": 0.0, "absent": 0.0}) == {"b": 4.0}
