"""A fleet of simulated engines that a small machine can hold, and text for it.

Tokens are scaled: one simulated token stands for `scale` real ones. Prompts, outputs, the KV
cache and the tokens of a step are divided by it; a step over n tokens takes as long as `scale`
steps over n real ones, and attention, which grows with the square, `scale` squared as long. So
rates, latencies and shares of time stay those of the real fleet, and the work of everything around
the model is divided. `speed` then runs all clocks faster. A word of the benchmark's own tokenizer
is one token and has 4 * scale - 1 letters, so that prompts have real sizes in bytes.
"""

from __future__ import annotations

import json
import os
import random
import string
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import ROOT, wait_for
from router_tools import process

from kvasir.cli.local.ports import free_ports

# llm-d's pods run Qwen3-32B on two H100s and compute 15,928 prompt tokens a second; the measured
# device, Llama-3.1-8B on an H200, computes 41,320. Their KV bytes a token and GPU are about alike.
SLOWER = 41_320 / 15_928
PROFILE = ROOT / "engine/kvasir_engine/assets/profiles/h200-llama-3.1-8b-bf16.json"
SECRET = "benchmark"
VOCABULARY = 1800
_ROLES = ("<system>", "<user>", "<assistant>", "<tool>")
_TEMPLATE = (
    "{% for m in messages %}{{ '<' + m.role + '> ' + (m.content or '') + ' ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
)


@dataclass(frozen=True)
class Scale:
    """Scale between simulated quantities and real ones."""

    tokens: int
    speed: float

    def count(self, real_tokens: int) -> int:
        return max(1, real_tokens // self.tokens)


class Words:
    """The vocabulary, and texts of it."""

    def __init__(self, scale: Scale, seed: int = 1) -> None:
        source = random.Random(seed)
        length = max(4 * scale.tokens - 1, 3)
        words: set[str] = set()
        while len(words) < VOCABULARY:
            words.add("".join(source.choices(string.ascii_lowercase, k=length)))
        self.words = sorted(words)

    def text(self, source: random.Random, tokens: int) -> str:
        """Return a text of that many tokens."""
        return " ".join(source.choices(self.words, k=tokens))

    def write_model(self, folder: Path, max_tokens: int) -> None:
        """Write the files that an engine reads of a model, without weights."""
        folder.mkdir()
        names = ["<unk>", "<eos>", *_ROLES]
        specials = [
            {"id": i, "content": name, "special": True, "single_word": False, "lstrip": False}
            | {"rstrip": False, "normalized": False}
            for i, name in enumerate(names)
        ]
        vocabulary = {word: i for i, word in enumerate([*names, *self.words])}
        tokenizer = {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": specials,
            "normalizer": None,
            "pre_tokenizer": {"type": "WhitespaceSplit"},
            "post_processor": None,
            "decoder": None,
            "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"},
        }
        config = {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 1,
            "num_attention_heads": 1,
            "num_key_value_heads": 1,
            "head_dim": 64,
            "rms_norm_eps": 1e-5,
            "vocab_size": len(vocabulary),
            "max_position_embeddings": max_tokens,
            "eos_token_id": 1,
            "torch_dtype": "bfloat16",
        }
        settings = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "unk_token": "<unk>",
            "eos_token": "<eos>",
            "chat_template": _TEMPLATE,
        }
        for name, content in (
            ("tokenizer.json", tokenizer),
            ("config.json", config),
            ("tokenizer_config.json", settings),
        ):
            (folder / name).write_text(json.dumps(content))


def scaled_profile(scale: Scale, kv_tokens: int) -> dict[str, Any]:
    """The measured device's profile made that of llm-d's pods, with `kv_tokens` real tokens of KV
    cache."""
    profile: dict[str, Any] = json.loads(PROFILE.read_text())
    once, twice = scale.tokens / scale.speed, scale.tokens**2 / scale.speed
    points = profile["gemm_points"]
    profile["gemm_points"] = [[count, ms * SLOWER * once] for count, ms in points]
    profile["small_us_per_token"] *= SLOWER * once
    profile["overhead_ms"] *= once
    profile["attention_flops_per_pair"] *= SLOWER * twice
    profile["kv_bytes_per_token"] *= twice
    profile["num_kv_blocks"] = kv_tokens // scale.tokens // 16
    return profile


@dataclass(frozen=True)
class Engine:
    """A running engine's ports."""

    http: int
    grpc: int
    events: int
    replay: int

    def entry(self, number: int, with_events: bool) -> dict[str, Any]:
        """Return the engine's entry in a discovery file."""
        entry = {"id": f"r{number}", "url": f"http://127.0.0.1:{self.http}", "grpc_port": self.grpc}
        if with_events:
            entry["kv_events"] = f"tcp://127.0.0.1:{self.events}"
            entry["kv_replay"] = f"tcp://127.0.0.1:{self.replay}"
        return entry


@contextmanager
def sim_fleet(
    folder: Path,
    model: Path,
    scale: Scale,
    *,
    replicas: int,
    kv_tokens: int,
    max_num_seqs: int = 256,
) -> Iterator[list[Engine]]:
    """`kvasir serve --device sim`, several times. Raises RuntimeError when one does not start."""
    profile = folder / "profile.json"
    profile.write_text(json.dumps(scaled_profile(scale, kv_tokens)))
    ports = iter(free_ports(4 * replicas))
    engines = [Engine(*(next(ports) for _ in range(4))) for _ in range(replicas)]
    environment = {
        "PYTHONPATH": f"{ROOT}/api:{ROOT}/engine",
        "KVASIR_FLEET_SECRET": SECRET,
        "OMP_NUM_THREADS": "1",
    }
    cpus = os.sched_getaffinity(0)
    with ExitStack() as stack:
        running = [
            stack.enter_context(
                process(
                    *_command(engine, model, profile, scale, max_num_seqs),
                    cpus=cpus,
                    environment=environment,
                )
            )
            for engine in engines
        ]
        for engine, started in zip(engines, running, strict=True):
            wait_for(
                f"http://127.0.0.1:{engine.http}/ready",
                within=120,
                process_alive=lambda started=started: started.poll() is None,
            )
        yield engines


def _command(
    engine: Engine, model: Path, profile: Path, scale: Scale, max_num_seqs: int
) -> list[str]:
    return [
        *(sys.executable, "-m", "kvasir", "serve", str(model), "--device", "sim"),
        *("--speed-profile", str(profile), "--served-model-name", "bench"),
        *("--port", str(engine.http), "--grpc-port", str(engine.grpc)),
        *("--kv-events-endpoint", f"tcp://127.0.0.1:{engine.events}"),
        *("--kv-events-replay-endpoint", f"tcp://127.0.0.1:{engine.replay}"),
        *("--max-num-batched-tokens", str(max(8192 // scale.tokens, 512))),
        *("--max-num-seqs", str(max_num_seqs), "--drain-timeout", "0"),
    ]
