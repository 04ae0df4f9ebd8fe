from __future__ import annotations

import pytest

from kvasir_engine.request import EngineRequest, Resume, SampleDelta
from kvasir_engine.sampling_params import SamplingParams
from kvasir_engine.server.generation.run import PromptRun
from kvasir_engine.text.output_assembler import OutputAssembler


def run(resume: Resume | None = None) -> PromptRun:
    request = EngineRequest("r", 0, [1, 2, 3], SamplingParams(max_tokens=5), resume=resume)
    return PromptRun(request, OutputAssembler(request, None), None)


@pytest.mark.parametrize(("reported", "shown"), [(None, 2), (0, 0), (16, 16)])
def test_what_was_reported_as_cached_before_a_break_is_reported_again(
    reported: int | None, shown: int
) -> None:
    made = run()
    assert made.num_cached_tokens == 0
    made.cached_tokens = reported
    made.assembler.push(SampleDelta(0, [7], None, num_cached_tokens=2))
    assert made.num_cached_tokens == shown


def test_resumed_tokens_were_made_elsewhere() -> None:
    assert run().num_resumed_tokens == 0
    assert run(Resume([7, 8], 5, 0)).num_resumed_tokens == 2
