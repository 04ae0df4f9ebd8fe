"""Every fault a router has to live with, by real processes: python e2e/router_faults.py [--quick]

Three simulated engines, a router, and engines that are faulty on purpose. Each fault counts the
requests that were lost, which are to be none, and says after how many seconds the router knew and
served as before. Prints a table; the exit status is 1 when a request was lost or something else did
not hold. --quick takes less than four minutes, --only picks faults by their functions' names, and
with --times, for a quiet machine, what took longer than it may fails too.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from faults import answer_faults, client_faults, engine_faults, event_faults, task_faults
from faults.rig import Rig, Row, table

FAULTS: tuple[Callable[[Rig], Awaitable[Row]], ...] = (
    engine_faults.killed,
    engine_faults.stopped,
    engine_faults.foreign_stopped,
    engine_faults.refused,
    engine_faults.poison,
    answer_faults.status_500,
    answer_faults.half_a_body,
    answer_faults.bad_framing,
    answer_faults.garbage_events,
    answer_faults.slow_engine,
    answer_faults.client_leaves,
    client_faults.slow_clients,
    client_faults.many_names,
    client_faults.large_bodies,
    client_faults.bad_requests,
    client_faults.fuzz,
    event_faults.lying,
    event_faults.restarted,
    event_faults.lagging,
    task_faults.tasks_fail,
    task_faults.tasks_hang,
    task_faults.worker_tasks_fail,
    task_faults.worker_tasks_hang,
    engine_faults.all_down,
    engine_faults.rolling_restart,
)
LONG = (event_faults.lagging, task_faults.tasks_hang, task_faults.worker_tasks_hang)
"""Left out by --quick."""


async def run(folder: Path, quick: bool, only: list[str]) -> list[Row]:
    """The chosen faults, one after the other on the same fleet."""
    rig, rows = Rig(folder, quick), []
    try:
        await rig.start()
        for fault in FAULTS:
            name = fault.__name__
            if (quick and fault in LONG) or (only and name not in only):
                continue
            begun = time.monotonic()
            try:
                row = await fault(rig)
            except Exception as error:
                row = Row(name, failed=[f"{type(error).__name__}: {error}"])
            rows.append(row)
            print(f"{time.monotonic() - begun:6.1f} s  {table([row]).splitlines()[1]}", flush=True)
            if not row.is_good:
                print(rig.router.log.read_text()[-3000:], file=sys.stderr)
    finally:
        await rig.stop()
    return rows


def main() -> None:
    """Run them, print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true")
    names = [fault.__name__ for fault in FAULTS]
    parser.add_argument("--only", nargs="*", default=[], choices=names, metavar="FAULT")
    parser.add_argument("--times", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = asyncio.run(run(Path(folder), options.quick, options.only))
    print(table(rows))
    late = options.times and any(row.late for row in rows)
    if not rows or late or not all(row.is_good for row in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
