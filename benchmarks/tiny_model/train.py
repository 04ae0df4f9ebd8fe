"""Train `builtin://kvasir-tiny` from nothing and write all its files but the card.

From the repository's root, in four stages, as the shipped model was made::

    python -m benchmarks.tiny_model.train --steps 6226 --output base
    python -m benchmarks.tiny_model.train --start base --mix arithmetic --steps 1445 --peak 1e-3 \\
        --seed 1 --output second
    python -m benchmarks.tiny_model.train --start second --mix lists --steps 4300 --peak 1e-3 \\
        --seed 2 --output third
    python -m benchmarks.tiny_model.train --start third --mix thinking --steps 3600 --peak 1e-3 \\
        --seed 3 --output engine/kvasir_engine/assets/tiny

With one H200 this takes about twenty minutes. On a CPU add `--shrink 8`: an eighth of the rows in
each step, a weaker model, hours on many cores. The data of each step depend on `--seed`, `--mix`
and the step's number alone, so two runs differ only by the numerics of the device.
"""

import argparse
import math
import time
from pathlib import Path
from random import Random

import numpy as np
import torch
import torch.nn.functional as F
from benchmarks.tiny_model import data, model, thinking, vocabulary
from benchmarks.tiny_model.draw import Draw, Sample
from benchmarks.tiny_model.tasks import CARD
from numpy.typing import NDArray
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset
from transformers import LlamaForCausalLM

CHUNK = 32
Batch = list[NDArray[np.int64]]


class Steps(Dataset[Batch]):
    """The batch of each step, made in the loader's worker processes."""

    def __init__(self, tokenizer: Tokenizer, arguments: argparse.Namespace) -> None:
        self._tokenizer, self._arguments = tokenizer.to_str(), arguments
        self._encoder: data.Encoder | None = None

    def __len__(self) -> int:
        steps: int = self._arguments.steps
        return steps

    def __getitem__(self, step: int) -> Batch:
        if self._encoder is None:  # one for each worker process
            self._encoder = data.Encoder(Tokenizer.from_str(self._tokenizer))
        mix = data.MIXES[self._arguments.mix]
        return data.batch(self._arguments.seed, step, self._encoder, mix, self._arguments.shrink)


def losses(llama: LlamaForCausalLM, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The sum of the cross entropy over the labelled positions; rows are right-padded."""
    logits = llama(input_ids=inputs, use_cache=False).logits
    return F.cross_entropy(
        logits.flatten(0, 1).float(), labels.flatten(), ignore_index=-100, reduction="sum"
    )


def learning_rate(step: int, steps: int, peak: float) -> float:
    """Linear warm-up over 300 steps, then a cosine to a hundredth of the peak."""
    warm = min(1.0, (step + 1) / 300)
    return peak * warm * (0.01 + 0.99 * (0.5 + 0.5 * math.cos(math.pi * step / steps)))


def held_out(name: str, count: int, tokens: int = 96) -> list[Sample]:
    task = {**CARD, **thinking.CARD}[name.split("@")[0]]
    return [task(Draw(Random(f"probe/{name}/{i}"), tokens, held_out=True)) for i in range(count)]


@torch.no_grad()
def exact(
    llama: LlamaForCausalLM, encoder: data.Encoder, samples: list[Sample], device: str
) -> float:
    """The share of samples whose whole answer is the likeliest token at every position."""
    right = 0
    for start in range(0, len(samples), CHUNK):
        rows, masks = [], []
        for sample in samples[start : start + CHUNK]:
            asked, _ = encoder.message(data.Message("user", sample.prompt))
            answer, mask = encoder.message(data.Message("assistant", sample.answer, sample.thought))
            rows.append(torch.tensor(asked + answer))
            masks.append(torch.tensor([False] * len(asked) + mask))
        ids = pad_sequence(rows, batch_first=True).to(device)
        said = pad_sequence(masks, batch_first=True).to(device)[:, 1:]
        chosen = llama(input_ids=ids, use_cache=False).logits[:, :-1].argmax(-1)
        right += int(((chosen == ids[:, 1:]) | ~said).all(1).sum())
    return right / len(samples)


def report(llama: LlamaForCausalLM, encoder: data.Encoder, device: str, count: int) -> str:
    sets = {name: held_out(name, count) for name in (*CARD, *thinking.CARD)}
    sets["recall@1500"] = held_out("recall@1500", count // 4, 1500)
    with torch.compiler.set_stance("force_eager"):  # every set has its own shapes
        scores = {name: exact(llama, encoder, samples, device) for name, samples in sets.items()}
    return " ".join(f"{name}={score:.3f}" for name, score in scores.items())


def optimizer(llama: LlamaForCausalLM, fused: bool) -> torch.optim.AdamW:
    matrices = [p for p in llama.parameters() if p.dim() > 1]
    vectors = [p for p in llama.parameters() if p.dim() == 1]
    groups = [{"params": matrices, "weight_decay": 0.05}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.98), fused=fused)


def train(arguments: argparse.Namespace, tokenizer: Tokenizer) -> LlamaForCausalLM:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    llama = model.new_model(arguments.seed)
    if arguments.start:
        llama.load_state_dict(load_file(arguments.start / "model.safetensors"), strict=False)
    llama = llama.to(device)
    if device == "cuda":
        torch.set_float32_matmul_precision("high")
        torch._dynamo.config.recompile_limit = 32
        for layer in llama.model.layers:
            layer.compile(dynamic=False)
    loader = DataLoader(
        Steps(tokenizer, arguments),
        batch_size=None,
        num_workers=arguments.workers,
        prefetch_factor=16,
    )
    encoder = data.Encoder(tokenizer)
    adam, began = optimizer(llama, fused=device == "cuda"), time.monotonic()
    print(f"{sum(p.numel() for p in llama.parameters())} parameters on {device}", flush=True)
    for step, batch in enumerate(loader):
        for group in adam.param_groups:
            group["lr"] = learning_rate(step, arguments.steps, arguments.peak)
        loss = update(llama, adam, batch, device)
        if step % 100 == 0:
            spent = time.monotonic() - began
            print(f"step {step} loss {loss.item():.4f} after {spent:.1f} s", flush=True)
        if (step + 1) % arguments.probe_every == 0:
            print(f"step {step + 1}: {report(llama, encoder, device, 64)}", flush=True)
            model.save(llama, arguments.output)
    return llama


def update(
    llama: LlamaForCausalLM, adam: torch.optim.AdamW, batch: list[torch.Tensor], device: str
) -> torch.Tensor:
    """Make one optimizer step over all buckets, and return the mean loss of a labelled token."""
    tokens = sum(int((rows[1] != -100).sum()) for rows in batch)
    total = torch.zeros((), device=device)
    for rows in batch:
        inputs, labels = rows.to(device, non_blocking=True)
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss = losses(llama, inputs, labels) / tokens
        loss.backward()  # type: ignore[no-untyped-call]  # torch gives it no annotations
        total += loss.detach()
    torch.nn.utils.clip_grad_norm_(llama.parameters(), 1.0)
    adam.step()
    adam.zero_grad(set_to_none=True)
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--start", type=Path, help="folder of a model to go on from")
    parser.add_argument("--mix", choices=data.MIXES, default="broad", help="what is trained on")
    parser.add_argument("--steps", type=int, default=6226)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--peak", type=float, default=2e-3, help="largest learning rate")
    parser.add_argument("--workers", type=int, default=14, help="processes that make data")
    parser.add_argument("--shrink", type=int, default=1, help="divides the rows of each step")
    parser.add_argument("--probe-every", type=int, default=2000, help="steps between probes")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    if arguments.start:
        tokenizer = Tokenizer.from_file(str(arguments.start / "tokenizer.json"))
    else:
        tokenizer = vocabulary.train(data.vocabulary_texts(arguments.seed, 4000))
    tokenizer = vocabulary.with_thinking(tokenizer)
    vocabulary.save(tokenizer, arguments.output)
    llama = train(arguments, tokenizer)
    model.save(llama, arguments.output)
    device = str(llama.device.type)
    print(f"end: {report(llama, data.Encoder(tokenizer), device, 500)}")


if __name__ == "__main__":
    main()
