"""The runner that computes step plans with torch, on CPU and CUDA alike."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch

from kvasir_engine.attention.base import (
    AttentionBackend,
    ForwardContext,
    QueryBuffer,
    forward_context,
)
from kvasir_engine.device.capability import kernels_run_on
from kvasir_engine.device.collectives import collectives_capturable
from kvasir_engine.device.device_errors import require_usable, seen_at_once
from kvasir_engine.device.host_copy import HostCopy
from kvasir_engine.device.out_of_memory import is_shortage
from kvasir_engine.device.upload import upload_all
from kvasir_engine.device.vocab_shard import VocabShard
from kvasir_engine.kv.cache_spec import KVScales, page_bytes
from kvasir_engine.kv.groups import KVGroupSpec
from kvasir_engine.models.causal_lm import CausalLM
from kvasir_engine.runner.batch import DeviceBatch, StepInputs
from kvasir_engine.runner.graphs.cuda_graph_runner import CudaGraphRunner
from kvasir_engine.runner.graphs.full import Draw, Replayed
from kvasir_engine.runner.kv_cache import copy_blocks
from kvasir_engine.runner.prefix_groups import PrefixGroups, PrefixTiles
from kvasir_engine.runner.torch_step import TorchStep
from kvasir_engine.sampling.sampler import GrammarMasks, RowBiases, SampleBatch, Sampler
from kvasir_engine.sampling.sampling_state import SamplingState
from kvasir_engine.sampling.token_logprobs import prompt_logprobs
from kvasir_engine.step_plan import StepPlan


class TorchRunner:
    """One rank's model, KV caches and persistent batch."""

    def __init__(
        self,
        model: CausalLM,
        backends: list[AttentionBackend],
        *,
        groups: tuple[KVGroupSpec, ...],
        caches: list[torch.Tensor],
        num_rows: int,
        max_step_tokens: int,
        max_model_len: int,
        vocab_size: int,
        device: torch.device,
        dtype: torch.dtype | None = None,
    ) -> None:
        """`dtype` is the model's, by default the caches'."""
        self.model = model
        self.device = device
        self.groups = groups
        self.max_model_len = max_model_len
        self.vocab_size = vocab_size
        group_of_layer = {layer: g for g, spec in enumerate(groups) for layer in spec.layers}
        self._context = ForwardContext(
            backends=backends,
            caches=caches,
            batches=[],
            group_of_layer=[group_of_layer[layer] for layer in sorted(group_of_layer)],
            queries=self._query_buffer(model, max_step_tokens, dtype or caches[0].dtype, device),
        )
        self.batch = DeviceBatch(
            num_rows=num_rows, max_tokens=max_model_len + 1, groups=groups, device=device
        )
        # A row more, the one that pads: its parameters are read and mean nothing.
        self.sampling = SamplingState(max_rows=num_rows + 1, vocab_size=vocab_size, device=device)
        self._sampler = Sampler(self.sampling)
        spec = model.attention_specs[0]
        self._prefix_tiles = PrefixTiles.for_heads(
            spec.num_heads // spec.num_kv_heads, self.batch.block_size
        )
        self.graphs = CudaGraphRunner(
            model,
            self._context,
            self.batch,
            self._model,
            self._draws(),
            prefix_tiles=self._prefix_tiles,
            splits_kv=any(group.window is None for group in groups),
            device=device,
        )
        self._prefixes = self._prefix_groups(model, groups, caches)
        self._inputs: StepInputs | None = None
        self._hidden: torch.Tensor | None = None
        self._replayed: Replayed | None = None

    @staticmethod
    def _query_buffer(
        model: CausalLM, tokens: int, dtype: torch.dtype, device: torch.device
    ) -> QueryBuffer | None:
        """Return the layers' query buffer, None where they attend by torch's own operations."""
        if not kernels_run_on(device):
            return None
        return QueryBuffer(model.attention_specs, tokens, dtype, device)

    @staticmethod
    def _prefix_groups(
        model: CausalLM, groups: tuple[KVGroupSpec, ...], caches: list[torch.Tensor]
    ) -> PrefixGroups | None:
        """Return the finder of shared prefixes; None with windows, where prefixes are soon
        unseen."""
        if len(groups) > 1 or groups[0].window is not None:
            return None
        spec = model.attention_specs[0]
        return PrefixGroups(
            block_bytes=page_bytes(spec.cache, groups[0].block_size, caches[0].itemsize),
            query_bytes=4 * spec.num_heads * spec.head_dim,
        )

    def use_caches(self, caches: list[torch.Tensor]) -> None:
        """Replace the KV caches, one a layer; nothing may be in flight."""
        self._context.caches = caches

    @property
    def caches(self) -> list[torch.Tensor]:
        """The KV caches, one a layer."""
        return self._context.caches

    def use_kv_scales(self, scales: Sequence[KVScales]) -> None:
        """Multiply the numbers of float8 caches by these, one a layer, from now on; graphs that
        were captured before keep theirs."""
        self._context.kv_scales = scales

    @seen_at_once()
    @torch.inference_mode()
    def forward(self, plan: StepPlan) -> None:
        """Runner.forward."""
        self.batch.apply(plan)
        if plan.forced is not None:
            self.sampling.count(plan.forced[:, 0], plan.forced[:, 2])
        for spec, pairs in zip(self.groups, plan.copies, strict=False):
            copy_blocks([self._context.caches[layer] for layer in spec.layers], pairs)
        groups = []
        if self._prefixes is not None:
            self._prefixes.apply(plan)
            groups = self._prefixes.groups_of(plan.rows[: plan.num_decodes])
        self._replayed = self.graphs.decode(plan, groups)
        if self._replayed is not None:
            self._inputs, self._hidden = self._replayed.inputs, self._replayed.hidden
            return
        self._inputs = self.batch.inputs(plan)
        if groups:
            # Models with shared prefixes have one KV group.
            (batch,) = self._inputs.batches
            batch.shared = self._prefix_tiles.on_device(groups, plan.num_decodes, self.device)
        self._hidden = self.graphs.forward(self._inputs)
        if self._hidden is None:
            self._hidden = self._model(self._inputs)

    def _model(self, inputs: StepInputs) -> torch.Tensor:
        self._context.batches = inputs.batches
        with forward_context(self._context):
            return self.model(inputs.token_ids, inputs.positions)

    @property
    def shares_prefixes(self) -> bool:
        """True when shared prefixes are attended to once."""
        return self._prefixes is not None

    @property
    def can_capture(self) -> bool:
        """True when steps of this model and its backends can be captured as CUDA graphs."""
        safe = all(backend.graph_safe for backend in self._context.backends)
        return self.model.graph_safe and safe and collectives_capturable()

    @torch.inference_mode()
    def capture(self, keep_free: int = 0) -> None:
        """Capture steps as CUDA graphs, over the caches as they are, while more than `keep_free`
        bytes of the GPU are free."""
        self.graphs.capture(shares_prefixes=self.shares_prefixes, keep_free=keep_free)

    @seen_at_once()
    @torch.inference_mode()
    def sample(self, plan: StepPlan) -> TorchStep:
        """Runner.sample."""
        inputs, hidden = self._inputs, self._hidden
        if inputs is None or hidden is None:
            raise RuntimeError("sample() was called before forward().")
        if plan.inits:
            # Only now: the device computes meanwhile.
            self.sampling.init_rows(plan.inits)
        replayed, self._replayed = self._replayed, None
        if replayed is not None and self._is_plain(plan):
            sharded = self._shard_to_sample(plan) is not None
            tokens = self.graphs.sample(replayed, int(sharded))
            if tokens is not None:
                self._inputs = self._hidden = None
                return TorchStep(plan, HostCopy({"tokens": tokens}), [])
        self.batch.advance(inputs)
        if self._prefixes is not None:
            self._prefixes.fork(plan)
        if plan.forks:
            self.batch.fork(plan.forks)
            self.sampling.fork_rows(plan.forks)
        prompts = self._prompt_logprobs(plan, hidden)
        sampled = self._sample(plan, inputs, hidden)
        self._inputs = self._hidden = None
        return TorchStep(plan, HostCopy(sampled), prompts)

    def _is_plain(self, plan: StepPlan) -> bool:
        """Return True when every row of a decode samples one token, with nothing more to it."""
        return (
            plan.top_logprobs < 0
            and plan.masked is None
            and plan.biased is None
            and not (plan.forks or plan.prompt_logprobs)
            and np.array_equal(plan.sample_rows, plan.rows)
            and not self.sampling.has_edits[plan.rows].any()
        )

    def _shard_to_sample(self, plan: StepPlan) -> VocabShard | None:
        """Return this rank's part of the vocabulary where its best scores, instead of all logits,
        are enough for the step's tokens."""
        edited = plan.masked is not None or plan.biased is not None
        whole = plan.top_logprobs >= 0 or edited
        if whole or not self.sampling.choose_by_score(plan.sample_rows):
            return None
        return self.model.vocab_shard

    def _draws(self) -> list[Draw]:
        """Return what samples decodes within graphs: from all logits, and from this rank's."""
        if not self._sampler.by_kernel:
            return []
        shard, sample = self.model.vocab_shard, self._sample_decodes
        return [sample] if shard is None else [sample, partial(sample, shard=shard)]

    def _sample_decodes(
        self, hidden: torch.Tensor, inputs: StepInputs, shard: VocabShard | None = None
    ) -> torch.Tensor:
        """Sample, append and count as computed a token for each of a decode's rows."""
        # Not at the top: it imports triton, which the CPU does not need.
        from kvasir_engine.sampling.sample_kernel import SampledInto, sample

        batch = self.batch
        return sample(
            self.model.logits(hidden) if shard is None else self.model.shard_logits(hidden),
            inputs.rows,
            # A decode computes a row's last token: the next one's position is its length.
            inputs.batches[0].seq_lens,
            self.sampling.tables,
            SampledInto(batch.history, batch.num_tokens, batch.num_computed, batch.padding_row),
            shard=shard,
        )

    def recover(self, error: Exception) -> bool:
        """Runner.recover."""
        short_of_memory = is_shortage(error)
        if self.device.type == "cuda":
            # First: nothing may be freed on a device that has failed.
            require_usable(self.device, error)
        self._inputs = self._hidden = self._replayed = None
        if self.device.type == "cuda" and short_of_memory:
            torch.cuda.empty_cache()
        return short_of_memory

    def close(self) -> None:
        """Runner.close."""
        self._inputs = self._hidden = self._replayed = None
        self.graphs.clear()
        self.use_caches([])

    def _sample(
        self, plan: StepPlan, inputs: StepInputs, hidden: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        if not len(plan.sample_rows):
            return {"tokens": torch.empty(0, dtype=torch.int32, device=self.device)}
        chosen = (plan.sample_entries.astype(np.int64), plan.sample_rows.astype(np.int64))
        entries, rows = upload_all(chosen, self.device)
        batch = SampleBatch(
            rows=rows,
            rows_cpu=plan.sample_rows,
            positions=self.batch.num_tokens[rows].long(),
            history=self.batch.history,
            num_prompt=self.batch.num_prompt,
            masks=self._masks(plan),
            biases=_biases(plan),
        )
        last, shard = hidden[inputs.query_ends[entries]], self._shard_to_sample(plan)
        if shard is None:
            sampled = self._sampler(self.model.logits(last), batch, plan.top_logprobs)
        else:
            sampled = self._sampler.of_shard(self.model.shard_logits(last), batch, shard)
        self.batch.accept(rows, sampled.tokens)
        logprobs = {} if sampled.logprobs is None else sampled.logprobs._asdict()
        return {"tokens": sampled.tokens, **logprobs}

    def _masks(self, plan: StepPlan) -> GrammarMasks | None:
        if plan.masked is None:
            return None
        if plan.masks is None:
            raise RuntimeError("sample() was called before the plan had its masks.")
        given = (plan.masked.astype(np.int64), plan.masks)
        return GrammarMasks(*upload_all(given, self.device))

    def _prompt_logprobs(
        self, plan: StepPlan, hidden: torch.Tensor
    ) -> list[tuple[int, int, HostCopy]]:
        """Return reports for the prompt positions the plan names: row, first position, results."""
        reports = []
        ends = np.cumsum(plan.num_new)
        for wanted in plan.prompt_logprobs:
            row = int(plan.rows[wanted.entry])
            begin = int(ends[wanted.entry] - plan.num_new[wanted.entry])
            begin += wanted.first - int(plan.starts[wanted.entry])
            count = wanted.last - wanted.first
            found = prompt_logprobs(
                hidden[begin : begin + count],
                lambda part: self.model.logits(part).float(),
                self.batch.history[row, wanted.first + 1 : wanted.last + 1].long(),
                vocab_size=self.vocab_size,
                top=wanted.top,
            )
            reports.append((row, wanted.first, HostCopy(found._asdict())))
        return reports


def _biases(plan: StepPlan) -> RowBiases | None:
    return None if plan.biased is None else RowBiases(plan.biased.tolist(), plan.biases)
