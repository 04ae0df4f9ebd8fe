"""Hypothesis profiles: `ci` (the default) repeats the same examples, HYPOTHESIS_PROFILE=deep
searches longer and anew each time."""

from __future__ import annotations

import os
from pathlib import Path

# Small tensors: a second thread only waits for the first. Read when torch is imported, also by
# the processes that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Without a GPU kernels run in Triton's interpreter. Read when triton is imported.
if not Path("/dev/nvidiactl").exists():
    os.environ["TRITON_INTERPRET"] = "1"


from hypothesis import HealthCheck, settings

_SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]

settings.register_profile(
    "ci",
    derandomize=True,
    deadline=None,
    max_examples=60,
    stateful_step_count=40,
    report_multiple_bugs=False,
    suppress_health_check=_SLOW,
)
settings.register_profile(
    "deep",
    deadline=None,
    max_examples=2000,
    stateful_step_count=80,
    report_multiple_bugs=False,
    suppress_health_check=_SLOW,
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))
