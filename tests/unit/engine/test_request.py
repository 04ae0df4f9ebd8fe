from __future__ import annotations

import subprocess
import sys

from kvasir_engine.request import EngineRequest, FinishReason
from kvasir_engine.sampling_params import SamplingParams


def test_finish_reasons_are_openais_words() -> None:
    assert [str(reason) for reason in FinishReason] == ["stop", "length", "abort", "error"]


def test_resumed_output_is_no_prompt() -> None:
    request = EngineRequest("r", 0, [1, 2, 3], SamplingParams())
    assert request.num_prompt_tokens == 3
    assert (request.client, request.block_hashes, request.cache_salt) == (0, b"", "")


def test_the_core_imports_without_sockets_server_or_torch() -> None:
    code = """
import sys
for name in ("torch", "transformers", "zmq", "msgspec", "fastapi"):
    sys.modules[name] = None
import kvasir_engine.core.loop, kvasir_engine.kv.manager, kvasir_engine.scheduler.admission
import kvasir_engine.settings, kvasir_engine.request
"""
    subprocess.run([sys.executable, "-c", code], check=True)
