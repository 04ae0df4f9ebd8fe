"""`kvasir up` with the tiny model, once for the tests of all clients."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvasir.cli.local.ports import free_ports

collect_ignore = ["python"]  # in environments of their own
_MODEL = """
apiVersion: kvasir.dev/v1alpha1
kind: LLMDeployment
metadata:
  name: kvasir-tiny
spec:
  model:
    uri: builtin://kvasir-tiny
  replicas: 1
  engine:
    args: [--generation-config, {folder}]
"""
"""One engine, whose default temperature is 0: answers are exact, also of clients that set none."""
_FOREIGN = re.compile(r"(OPENAI|ANTHROPIC|LANGSMITH|LANGCHAIN|LITELLM|PYDANTIC_AI)_")


@pytest.fixture(scope="session")
def client_environ() -> dict[str, str]:
    """The environment of clients: nothing of another server's, and nothing from elsewhere."""
    left = {name: value for name, value in os.environ.items() if not _FOREIGN.match(name)}
    left.pop("PYTHONPATH", None)
    return left | {"NO_PROXY": "127.0.0.1", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}


@pytest.fixture(scope="session")
def router_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a router with one engine behind it."""
    folder = tmp_path_factory.mktemp("up")
    (folder / "models.yaml").write_text(_MODEL.format(folder=folder))
    (folder / "generation_config.json").write_text('{"temperature": 0}')
    [port] = free_ports(1)
    kvasir = str(Path(sys.executable).parent / "kvasir")
    served = ["-f", str(folder / "models.yaml"), "--port", str(port), "--log-dir", str(folder)]
    process = subprocess.Popen(
        [kvasir, "up", *served],
        env=os.environ | {"OMP_NUM_THREADS": "1"},  # a second one would only wait for the first
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout
    said = []
    for line in process.stdout:
        said.append(line)
        if line.startswith("Ready after"):
            break
    else:
        pytest.fail(f"kvasir up ended: {''.join(said)}")
    yield f"http://127.0.0.1:{port}"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
