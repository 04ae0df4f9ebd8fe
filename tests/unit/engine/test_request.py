from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from kvasir_engine.grammar.thinking import Thinking
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


@pytest.mark.parametrize(("may_be_free", "barred"), [(False, [7]), (True, [])])
def test_what_is_asked_for_comes_before_the_end(may_be_free: bool, barred: list[int]) -> None:
    class Grammar:
        def matcher(self, stop_ids: Any) -> Any:
            assert list(stop_ids) == [7, 9]
            return self

        def restart(self) -> None:
            """Nothing was taken in."""

    request = EngineRequest(
        "r",
        0,
        [1],
        SamplingParams(stop_token_ids=[9]),
        eos_token_ids=[7],
        thinking=Thinking(1, 2, opened=True),
        may_be_free=may_be_free,
    )
    mask = np.zeros(1, dtype=np.int32)
    request.matcher(Grammar()).fill(mask)  # type: ignore[arg-type]
    assert mask.view(np.uint32)[0] == 2**32 - 1 - sum(1 << each for each in barred)
