from __future__ import annotations

from typing import Any

from kvasir.text.tokenizer import Tokenizer
from kvasir_engine.metric_registry import MetricRegistry
from kvasir_engine.request import EngineRequest, Resume, SampleDelta
from kvasir_engine.sampling_params import SamplingParams
from kvasir_engine.server.generation.api_metrics import ApiMetrics
from kvasir_engine.server.generation.generation import Generation
from kvasir_engine.server.generation.run import PromptRun
from kvasir_engine.server.loop_turns import LoopTurns
from kvasir_engine.server.openai.answer import usage_of
from kvasir_engine.text.output_assembler import OutputAssembler


def generation(tokenizer: Tokenizer, core: Any, *requests: EngineRequest) -> Generation:
    runs = [
        PromptRun(request, OutputAssembler(request, tokenizer), None, first_choice=at)
        for at, request in enumerate(requests)
    ]
    return Generation(core, ApiMetrics(MetricRegistry("kvasir_", "tiny")), runs, LoopTurns())


def test_it_is_the_sum_over_prompts_and_choices(
    byte_tokenizer: Tokenizer, scripted_core: Any
) -> None:
    requests = [EngineRequest("r", 2 * i, [1] * (20 + i), SamplingParams(n=2)) for i in (0, 1)]
    made = generation(byte_tokenizer, scripted_core, *requests)
    for run in made.runs:
        for choice in (0, 1):
            handle = run.request.handle + choice
            run.assembler.push(SampleDelta(handle, [7, 8], num_cached_tokens=16))
    assert usage_of(made) == {
        "prompt_tokens": 41,
        "completion_tokens": 8,
        "total_tokens": 49,
        "prompt_tokens_details": {"cached_tokens": 32},
    }


def test_resumed_output_counts_and_stop_strings_do_not_count_what_they_cut(
    byte_tokenizer: Tokenizer, scripted_core: Any
) -> None:
    resume = Resume(byte_tokenizer.encode("ab"), None, 0)
    request = EngineRequest("r", 0, [1], SamplingParams(stop=["d"]), resume=resume)
    made = generation(byte_tokenizer, scripted_core, request)
    [run] = made.runs
    run.assembler.resume()
    assert usage_of(made)["completion_tokens"] == 2
    run.assembler.push(SampleDelta(0, byte_tokenizer.encode("cdef")))
    assert usage_of(made)["completion_tokens"] == 4
