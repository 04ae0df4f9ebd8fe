"""Offline inference: the core in the calling process, no server and no sockets."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from tqdm import tqdm

from kvasir.text.tokenizer import Tokenizer
from kvasir_engine.core.build import build_core
from kvasir_engine.grammar.constraint import Constraint
from kvasir_engine.grammar.constraint_error import ConstraintError
from kvasir_engine.grammar.matcher import Grammar
from kvasir_engine.inputs import Message, Prompt, RequestMaker, cache_salt
from kvasir_engine.interrupts import hold_interrupts
from kvasir_engine.kv.prefix_seed import random_seed
from kvasir_engine.loader.model_directory import resolve_files
from kvasir_engine.outputs import (
    BeamSearchOutput,
    BeamSearchSequence,
    GenerationError,
    RequestOutput,
)
from kvasir_engine.request import EngineRequest, SampleDelta
from kvasir_engine.sampling_params import BeamSearchParams, ParameterError, SamplingParams
from kvasir_engine.scheduler import admission
from kvasir_engine.scheduler.step_results import StepNews
from kvasir_engine.settings import SettingsError, make_settings
from kvasir_engine.text.output_assembler import OutputAssembler
from kvasir_engine.text.parsing.reasoning import PromptEnd

UNBOUNDED = sys.maxsize


class LLM:
    """A model loaded into this process.

    `model` is a directory, a Hugging Face id or a URI; further arguments have the names of
    `kvasir serve`'s flags: `LLM("builtin://kvasir-tiny", max_num_seqs=64, dtype="float32")`.
    `reasoning_parser` names the form of the model's reasoning, for thinking_token_budget.

    Raises ModelLoadError or SettingsError with what to change.
    """

    def __init__(
        self,
        model: str,
        *,
        tokenizer: str | None = None,
        revision: str | None = None,
        chat_template: str | None = None,
        reasoning_parser: str = "auto",
        **settings: Any,
    ) -> None:
        settings.setdefault("max_queued_requests", UNBOUNDED)
        made = make_settings(model, tokenizer=tokenizer, revision=revision, **settings)
        if made.kv_events_endpoint:
            raise SettingsError(
                "kv_events_endpoint does not work with LLM, which publishes no events; "
                "use AsyncLLM or kvasir serve."
            )
        model_dir, self.settings = resolve_files(made)
        seed = random_seed()
        self._core = build_core(self.settings, model_dir, prefix_seed=seed)
        self._maker = RequestMaker.load(
            model_dir,
            self.settings,
            chat_template=chat_template,
            reasoning_parser=reasoning_parser,
            vocab_size=self._core.built_runner.vocab_size,
            prefix_seed=seed,
        )
        self._next_handle = 0
        self._grammars: dict[int, Grammar] = {}
        """Grammars of requests that have not begun, by handle."""
        self._next_id = 0

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Complete each prompt; outputs come in the prompts' order.

        One SamplingParams serves all prompts; a list gives each its own. Raises ParameterError
        for a parameter out of range and ValueError for a prompt that cannot be served; nothing
        runs then. Raises GenerationError, which has all outputs, when a step failed.
        """
        many = _as_list(prompts)
        params = _one_each(sampling_params, len(many))
        ranks = list(priority) if priority is not None else [0] * len(many)
        jobs = []
        for prompt, each, rank in zip(many, params, ranks, strict=True):
            text, ids = self._maker.tokenise(prompt)
            jobs.append(self._job(text, ids, each, rank, cache_salt(prompt)))
        return self._run(jobs, use_tqdm)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation, or each of several, through the model's chat template."""
        self._maker.check_text("messages")
        template = self._maker.chat_template
        if template is None:
            raise ValueError("the model has no chat template; pass chat_template to LLM(...).")
        conversations: list[Any] = list(messages)
        if conversations and isinstance(conversations[0], Mapping):
            conversations = [conversations]
        params = _one_each(sampling_params, len(conversations))
        jobs = []
        for conversation, each in zip(conversations, params, strict=True):
            text = template.render(
                list(conversation),
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                template_kwargs=dict(chat_template_kwargs or {}),
            )
            # The template writes the special tokens itself.
            ids = self._maker.tokenizer.encode(text, add_special_tokens=False)
            job = self._job(text, ids, each)
            end = PromptEnd.of_chat(text, conversation, continued=continue_final_message)
            job.request.thinking = self._maker.limited_thinking(job.request.params, end)
            jobs.append(job)
        return self._run(jobs, use_tqdm)

    def beam_search(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: BeamSearchParams,
        *,
        use_tqdm: bool = True,
    ) -> list[BeamSearchOutput]:
        """The best `beam_width` continuations of each prompt by summed log-probability."""
        outputs = self.generate(prompts, params.sampling_params(), use_tqdm=use_tqdm)
        return [
            BeamSearchOutput(
                [
                    BeamSearchSequence(
                        tokens=[*output.prompt_token_ids, *beam.token_ids],
                        text=beam.text,
                        cum_logprob=beam.cumulative_logprob,
                        finish_reason=beam.finish_reason,
                    )
                    for beam in output.outputs
                ]
            )
            for output in outputs
        ]

    def reset_prefix_cache(self) -> None:
        """Forget all cached prompt blocks."""
        self._core.scheduler.kv.reset_cache()

    def get_tokenizer(self) -> Tokenizer:
        """Return the model's tokenizer. Raises ParameterError if it was left out."""
        self._maker.check_text("get_tokenizer")
        return self._maker.tokenizer

    def close(self) -> None:
        """Free the device."""
        self._core.loop.biases.close()
        self._core.built_runner.runner.close()

    def _job(
        self,
        text: str | None,
        ids: list[int],
        params: SamplingParams,
        priority: int = 0,
        salt: str = "",
    ) -> OutputAssembler:
        self._check_processors(params)
        request = self._maker.request(
            str(self._next_id), ids, params, priority=priority, cache_salt=salt
        )
        self._next_id += 1
        request.handle = self._next_handle
        self._next_handle += params.n
        refusal = admission.check(self._core.scheduler, request)
        if refusal is not None:
            raise ValueError(refusal.message)
        if request.constraint:
            self._grammars[request.handle] = self._grammar(Constraint.of_key(request.constraint))
        tokenizer = self._maker.tokenizer if params.detokenize else None
        return OutputAssembler(request, tokenizer, text)

    def _check_processors(self, params: SamplingParams) -> None:
        """Refuse functions that cannot reach the logits."""
        if not params.logits_processors:
            return
        ranks = self.settings.tensor_parallel_size
        if ranks > 1 or self.settings.device == "sim":
            what = f"tensor_parallel_size {ranks}" if ranks > 1 else "device sim"
            raise ParameterError(
                "logits_processors",
                f"logits_processors do not work with {what}: functions are not sent to other "
                "processes, and a simulated engine has no logits; leave them out.",
            )

    def _grammar(self, constraint: Constraint) -> Grammar:
        compiler = self._core.grammars
        if compiler is None:
            raise ParameterError(
                "structured_outputs",
                "structured_outputs needs llguidance or xgrammar, a tokenizer and a device that "
                "computes.",
            )
        try:
            return compiler.compile(constraint).grammar.result()
        except ConstraintError as error:
            sentence = f"structured_outputs cannot be enforced: {error}."
            raise ParameterError("structured_outputs", sentence) from error

    def _run(self, jobs: list[OutputAssembler], use_tqdm: bool) -> list[RequestOutput]:
        by_handle = {
            job.request.handle + sample: job
            for job in jobs
            for sample in range(job.request.params.n)
        }
        failures: list[str] = []
        try:
            with hold_interrupts():
                for job in jobs:
                    grammar = self._grammars.pop(job.request.handle, None)
                    self._core.loop.add(job.request, grammar)
            with tqdm(total=len(jobs), desc="Prompts", disable=not use_tqdm) as bar:
                while not self._core.loop.idle:
                    with hold_interrupts():
                        news = self._core.loop.step()
                    if news is not None and (finished := self._deliver(news, by_handle, failures)):
                        bar.update(finished)
        except BaseException:
            self._abort([job.request for job in jobs])
            raise
        outputs = [job.output() for job in jobs]
        if failures:
            raise GenerationError(failures[0], outputs)
        return outputs

    def _deliver(
        self, news: StepNews, by_handle: dict[int, OutputAssembler], failures: list[str]
    ) -> int:
        """Push a step's news, errors to `failures`; returns how many requests it finished."""
        finished = 0
        plain = zip(news.handles.tolist(), news.tokens.tolist(), strict=True)
        deltas = [SampleDelta(handle, [token]) for handle, token in plain]
        for delta in (*deltas, *(delta for _, delta in news.deltas)):
            job = by_handle[delta.handle]
            if job.finished:
                continue
            update = job.push(delta)
            if update.stopped_by_string:
                self._core.loop.end(delta.handle)
            if update.error is not None:
                failures.append(update.error)
            finished += job.finished
        return finished

    def _abort(self, requests: list[EngineRequest]) -> None:
        """Leave the engine as it was before an interrupted call, so that it can be used again."""
        with hold_interrupts():
            for request in requests:
                for sample in range(request.params.n):
                    self._core.loop.end(request.handle + sample)
            while not self._core.loop.idle:
                self._core.loop.step()


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str | Mapping):
        return [prompts]
    many: list[Any] = list(prompts)
    return [many] if many and isinstance(many[0], int) else many


def _one_each(
    params: SamplingParams | Sequence[SamplingParams] | None, count: int
) -> list[SamplingParams]:
    if params is None:
        return [SamplingParams()] * count
    if isinstance(params, SamplingParams):
        return [params] * count
    if len(params) != count:
        raise ValueError(f"{len(params)} SamplingParams were given for {count} prompts.")
    return list(params)
