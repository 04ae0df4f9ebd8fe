"""The right answers: from a simulated engine of this checkout, which takes no time at all."""

from __future__ import annotations

import json
import sys
import tempfile
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.commands import wait_for
from harness.processes import ProcessTable, guard
from harness.traffic.plan import Question
from kvasir.cli.local.ports import free_ports

MODEL = "truth"


def right_answers(questions: Iterable[Question], model: str) -> dict[Question, str]:
    """The text of each question's answer. A simulated engine's greedy tokens depend on nothing but
    their positions, so every engine of the model gives the same."""
    with reference_engine(model) as url:
        return {question: _ask(url, question) for question in questions}


@contextmanager
def reference_engine(model: str) -> Iterator[str]:
    """The base URL of a simulated engine on this machine, which serves `model` as MODEL."""
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory() as directory:
        processes = ProcessTable(Path(directory))
        with guard(Path(directory)) as watcher:
            processes.spawn(
                *("truth", Path(sys.executable).parent / "kvasir", "serve", model),
                *("--device", "sim", "--host", "127.0.0.1", "--port", str(port)),
                *("--served-model-name", MODEL),
            )
            try:
                wait_for("the engine that knows the answers", lambda: _is_ready(url), 120)
                yield url
            finally:
                processes.kill_all()
                watcher.communicate()


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/ready", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _ask(url: str, question: Question) -> str:
    request = urllib.request.Request(
        f"{url}/v1/chat/completions",
        json.dumps(question.body(MODEL, stream=False)).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return str(json.load(answer)["choices"][0]["message"]["content"])
