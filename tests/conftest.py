"""Hypothesis profiles: `ci` (the default) repeats the same examples, HYPOTHESIS_PROFILE=deep
searches longer and anew each time, `unshrunk` only tells whether an example fails. And what engine
and router compare answers with."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# Small tensors: a second thread only waits for the first. Read when torch is imported, also by
# the processes that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# As the router sets it: gRPC's threads in a forked child crash some before their program runs.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
# A job in the background of a shell inherits that Ctrl-C is ignored, and so would what tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Without a GPU kernels run in Triton's interpreter. Read when triton is imported.
if not Path("/dev/nvidiactl").exists():
    os.environ["TRITON_INTERPRET"] = "1"


import pytest
import structlog
from hypothesis import HealthCheck, Phase, settings
from support.file_order import mixed

pytest_plugins = ("harness.fixtures",)

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
    print_blob=True,
    report_multiple_bugs=False,
    suppress_health_check=_SLOW,
)
settings.register_profile(
    "unshrunk",
    parent=settings.get_profile("ci"),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mix files that wait with files that compute, where several processes take them in turn."""
    if hasattr(config, "workerinput"):
        files = [item.nodeid.partition("::")[0] for item in items]
        places = {name: at for at, name in enumerate(mixed(files))}
        items.sort(key=lambda item: places[item.nodeid.partition("::")[0]])


@pytest.fixture(autouse=True)
def _logging_as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Undo what a test configures, e.g. by running a command in this process.

    A logger that kept its configuration would no longer be heard by later tests' `capture_logs`.
    """
    before, configure = structlog.get_config(), structlog.configure

    def uncached(**settings: Any) -> None:
        configure(**settings | {"cache_logger_on_first_use": False})

    monkeypatch.setattr(structlog, "configure", uncached)
    yield
    configure(**before)


TOLERANCE = 1e-3
"""Of log-probabilities: a resumed token's come from another shape of GEMM."""


def differences(one: Any, other: Any, at: str = "") -> list[str]:
    """Where two merged answers differ; numbers may by TOLERANCE."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return [d for key in one for d in differences(one[key], other[key], f"{at}.{key}")]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = enumerate(zip(one, other, strict=True))
        return [d for i, (a, b) in pairs for d in differences(a, b, f"{at}[{i}]")]
    if isinstance(one, float) and isinstance(other, float):
        same = math.isclose(one, other, abs_tol=TOLERANCE, rel_tol=TOLERANCE)
    else:
        same = one == other
    return [] if same else [f"{at}: {one!r} is not {other!r}"]


@pytest.fixture(name="differences")
def differences_fixture() -> Callable[[Any, Any], list[str]]:
    """differences(answer, other): where they differ."""
    return differences
