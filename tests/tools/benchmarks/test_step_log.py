from __future__ import annotations

import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))

from step_log import StepLog


def plan(new: list[int], starts: list[int], decodes: int) -> SimpleNamespace:
    return SimpleNamespace(
        rows=np.arange(len(new)),
        num_new=np.array(new),
        starts=np.array(starts),
        num_decodes=decodes,
        num_tokens=sum(new),
    )


@pytest.fixture
def scheduler() -> SimpleNamespace:
    plans = [
        plan([100, 600], [0, 0], 0),
        None,
        plan([1] * 33, [9] * 33, 33),
        plan([1] * 40, [19] * 40, 40),
        plan([1, 50], [30, 0], 1),
    ]
    return SimpleNamespace(schedule=iter(plans).__next__)


def test_steps_by_kind(scheduler) -> None:
    log = StepLog(scheduler)
    begin = time.perf_counter()
    given = [scheduler.schedule() for _ in range(5)]
    end = time.perf_counter()
    table = log.table("a work", end)
    rows = {row[0]: row[1:] for row in table.rows}
    assert given[1] is None
    assert {kind: row[0] for kind, row in rows.items()} == {
        "mixed, up to 1024 tokens": "1",
        "decodes, 33-64 rows": "2",
        "mixed, up to 64 tokens": "1",
    }
    # Means of tokens, and of the keys that decodes attend to.
    assert rows["decodes, 33-64 rows"][3:5] == ["36", "565"]
    assert rows["mixed, up to 64 tokens"][3:5] == ["51", "31"]
    assert sum(float(row[1]) for row in rows.values()) <= end - begin + 0.002


def test_a_work_begins_with_nothing(scheduler) -> None:
    log = StepLog(scheduler)
    scheduler.schedule()
    log.clear()
    assert log.table("nothing", time.perf_counter()).rows == []
    scheduler.schedule()
    scheduler.schedule()
    assert len(log.table("decodes", time.perf_counter()).rows) == 1
