"""Run a decoder's modelling code from transformers with our attention over paged KV.

transformers calls a registered attention function in place of its own; everything else of the
model (projections, norms, rotary embedding, head) is its code.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface
from transformers.modeling_outputs import MoeModelOutputWithPast

from kvasir_engine.attention.base import AttentionSpec, attend, current_context
from kvasir_engine.models.launch_watch import WaitsForDeviceError, only_launches

ATTENTION_NAME = "kvasir_paged"
_SPEC = "kvasir_attention_spec"
"""Attribute of an attention module; it is set by the module's first call."""


def paged_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention interface: query [1, heads, tokens, head_dim], key and value with
    KV heads; returns [1, tokens, heads, head_dim].

    A module's first call is the probe: it only notes what the layer asks for.
    """
    spec: AttentionSpec | None = getattr(module, _SPEC, None)
    if spec is None:
        if attention_mask is not None or kwargs.get("s_aux") is not None:
            raise ValueError("its attention adds a mask, bias or sink of its own")
        if not getattr(module, "is_causal", True):
            raise ValueError("its attention is not causal")
        if key.shape != value.shape:
            raise ValueError("its keys and values differ in size")
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        heads, head_dim, kv_heads = query.shape[1], query.shape[3], key.shape[1]
        layer = int(module.layer_idx)  # type: ignore[arg-type]
        spec = AttentionSpec(layer, heads, kv_heads, head_dim, scale, sliding_window, softcap)
        setattr(module, _SPEC, spec)
        return torch.zeros_like(query).transpose(1, 2), None
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    queries = current_context().queries
    if queries is not None:
        # A CUDA graph would keep memory of its own for the queries of each layer.
        q = queries.queries_of(spec, len(q)).copy_(q)
    return attend(spec, q, k, v)[None], None


AttentionInterface.register(ATTENTION_NAME, paged_attention)


class _GivenHidden(nn.Module):
    """Stand in for the decoder below a head, and return hidden states already computed."""

    hidden: torch.Tensor

    def forward(self, *args: Any, **kwargs: Any) -> MoeModelOutputWithPast:
        """The hidden states as a decoder returns them."""
        return MoeModelOutputWithPast(last_hidden_state=self.hidden)


class TransformersForCausalLM(nn.Module):
    """A transformers model, built with `attn_implementation=ATTENTION_NAME`, as a CausalLM.

    `windows` are those of config.json: a layer that should have one and does not ask for it would
    silently see too much. Raises ValueError when the model cannot run over paged KV.
    """

    def __init__(self, model: Any, windows: tuple[int | None, ...]) -> None:
        super().__init__()
        prefix = model.base_model_prefix
        if not isinstance(getattr(model, prefix, None), nn.Module):
            raise ValueError("its decoder cannot be told from its head")
        self.decoder = getattr(model, prefix)
        if any("longrope" in str(getattr(m, "rope_type", "")) for m in self.decoder.modules()):
            raise ValueError("its LongRoPE factors depend on the longest sequence of a batch")
        # The head runs in the class's own forward, which may scale or cap the logits.
        self.given = _GivenHidden()
        setattr(model, prefix, self.given)
        self.head = model
        self.attention_specs = self._probe(windows)
        self.waits = self._waits()
        """Operation that keeps its steps from being captured as CUDA graphs; "" where none does."""

    @property
    def graph_safe(self) -> bool:
        """CausalLM.graph_safe."""
        return not self.waits

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """CausalLM.__call__."""
        out = self.decoder(input_ids=token_ids[None], position_ids=positions[None], use_cache=False)
        hidden: torch.Tensor = out.last_hidden_state[0]
        return hidden

    @property
    def vocab_shard(self) -> None:
        """CausalLM.vocab_shard: one rank computes all."""
        return

    def shard_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """CausalLM.shard_logits."""
        return self.logits(hidden)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """CausalLM.logits."""
        self.given.hidden = hidden[None]
        logits: torch.Tensor = self.head(inputs_embeds=hidden[None], use_cache=False).logits
        return logits[0].float()

    @torch.inference_mode()
    def _probe(self, windows: tuple[int | None, ...]) -> list[AttentionSpec]:
        """Run one token through the layers to see what each asks of attention."""
        self._run_one_token()
        found = [getattr(m, _SPEC) for m in self._attention_modules()]
        specs = sorted(found, key=lambda spec: spec.layer)
        if [spec.layer for spec in specs] != list(range(len(windows))):
            raise ValueError("some of its layers keep state other than attention's keys and values")
        for spec, window in zip(specs, windows, strict=True):
            if spec.window is None and window is not None:
                raise ValueError(f"layer {spec.layer} does not pass on its sliding window")
        return specs

    def _attention_modules(self) -> list[nn.Module]:
        return [module for module in self.decoder.modules() if hasattr(module, _SPEC)]

    def _run_one_token(self) -> None:
        """Run one token through layers without attention, and the head."""
        token = torch.zeros(1, dtype=torch.int64, device=next(self.decoder.parameters()).device)
        self.logits(self.forward(token, token))

    # In inference mode the watch would see operations undivided, such as a condition's.
    @torch.inference_mode(mode=False)
    @torch.no_grad()
    def _waits(self) -> str:
        """Run one token once more, to see whether anything waits for the device, as code does that
        looks at values: "" if nothing does, else what it is."""
        modules = self._attention_modules()
        specs = [getattr(module, _SPEC) for module in modules]
        for module in modules:
            delattr(module, _SPEC)
        try:
            with only_launches(next(self.decoder.parameters()).device):
                self._run_one_token()
        except WaitsForDeviceError as error:
            return str(error)
        finally:
            for module, spec in zip(modules, specs, strict=True):
                setattr(module, _SPEC, spec)
        return ""
