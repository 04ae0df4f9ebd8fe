"""The runner of steps as CUDA graphs.

- full: a decode of up to 512 rows; captured are the forward pass, head and sampling.
- prefill: one prompt of up to 1,024 tokens and nothing else; captured is the forward pass.
- piecewise: any other step up to a measured number of tokens; captured is what lies between two
  attention layers.

A step that fits no captured graph runs eagerly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from kvasir_engine.attention.base import ForwardContext
from kvasir_engine.device.graph_capture import GraphPool
from kvasir_engine.models.causal_lm import CausalLM
from kvasir_engine.runner.batch import DeviceBatch, StepInputs
from kvasir_engine.runner.graphs.full import Draw, FullGraphs, Replayed
from kvasir_engine.runner.graphs.piecewise import PiecewiseGraphs
from kvasir_engine.runner.graphs.prefill import PrefillGraphs
from kvasir_engine.runner.prefix_groups import PrefixGroup, PrefixTiles
from kvasir_engine.step_plan import StepPlan


class CudaGraphRunner:
    """All CUDA graphs of a runner, in one private memory pool."""

    def __init__(
        self,
        model: CausalLM,
        context: ForwardContext,
        batch: DeviceBatch,
        forward: Callable[[StepInputs], torch.Tensor],
        draws: Sequence[Draw],
        *,
        prefix_tiles: PrefixTiles,
        splits_kv: bool,
        device: torch.device,
    ) -> None:
        """Capture nothing yet. `forward` and one of `draws` are the eager decode; there are none
        where sampling cannot be captured."""
        num_groups = len(batch.groups)
        self._pool = pool = GraphPool()
        self._full = FullGraphs(
            pool,
            batch.decode_inputs,
            forward,
            draws,
            padding_row=batch.padding_row,
            prefix_tiles=prefix_tiles,
            splits_kv=splits_kv,
            device=device,
        )
        self._prefill = PrefillGraphs(
            pool,
            model,
            context,
            num_groups=num_groups,
            max_blocks=batch.max_blocks,
            device=device,
        )
        self._piecewise = PiecewiseGraphs(
            pool, model, context, num_groups=num_groups, device=device
        )
        self._max_rows = batch.padding_row
        self._splits_kv = splits_kv

    def capture(self, *, shares_prefixes: bool, keep_free: int = 0) -> None:
        """Capture every mode, over the KV caches as they are, while more than `keep_free` bytes of
        the GPU are free."""
        self._pool.keep_free = keep_free
        self._full.capture(self._max_rows)
        if shares_prefixes:
            self._full.capture_largest("shared_prefix")
        if self._splits_kv:
            self._full.capture_largest("split_kv")
        self._piecewise.capture()
        self._prefill.capture()

    def clear(self) -> None:
        """Free all graphs; steps run eagerly from now on."""
        for graphs in (self._full, self._prefill, self._piecewise):
            graphs.clear()

    def decode(self, plan: StepPlan, groups: list[PrefixGroup]) -> Replayed | None:
        """Launch the forward pass of a decode step; None when it fits no full graph."""
        return self._full.run(plan, groups)

    def sample(self, replayed: Replayed, draw: int) -> torch.Tensor | None:
        """Launch head and sampling of a replayed decode by one of the draws: int32 [rows], None if
        not captured."""
        return self._full.sample(replayed, draw)

    def forward(self, inputs: StepInputs) -> torch.Tensor | None:
        """Launch the forward pass of a step with prompts: hidden states [>= tokens, hidden size],
        None when it fits no graph."""
        hidden = self._prefill.run(inputs)
        return self._piecewise.run(inputs) if hidden is None else hidden

    @property
    def steps(self) -> dict[str, int]:
        """Replayed steps by mode, those of full graphs also by variant."""
        full = self._full.steps
        return {
            "full": full.total(),
            "shared_prefix": full["shared_prefix"],
            "split_kv": full["split_kv"],
            "prefill": self._prefill.steps,
            "piecewise": self._piecewise.steps,
        }
