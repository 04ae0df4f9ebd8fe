"""From settings to a runner: sizes, and what they say when they cannot be had."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from kvasir.cli.local.ports import free_ports
from kvasir_engine.loader.model_directory import resolve_model
from kvasir_engine.settings import SettingsError, make_settings
from kvasir_engine.startup import torch_build
from kvasir_engine.startup.gpu_memory import GpuMemory
from kvasir_engine.startup.torch_build import build_torch_runner, pick_device

TINY = resolve_model("builtin://kvasir-tiny")
PARTS = {"weights", "batch", "autotune", "profile", "kv_cache"}
TINY_BLOCK = 6 * 1024 * 16
"""Bytes: 6 layers, 2 KV heads of 64, 16 tokens, keys and values in fp32."""
PETABYTE = 1 << 50


def made(**settings: Any) -> Any:
    options = {"max_num_seqs": 4, "max_num_batched_tokens": 64, "device": "cpu", **settings}
    return build_torch_runner(make_settings("tiny", **options), TINY)


@pytest.fixture
def long_dir(tmp_path: Path) -> Path:
    """A model of little weight whose cache takes half a MiB a token and has room for 2**21."""
    shutil.copytree(TINY, tmp_path / "long")
    config = json.loads((TINY / "config.json").read_text())
    heads = {"head_dim": 512, "num_attention_heads": 64, "num_key_value_heads": 64}
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "max_position_embeddings": 1 << 21}
    (tmp_path / "long" / "config.json").write_text(json.dumps({**config, **heads, **sizes}))
    return tmp_path / "long"


def test_the_cache_fills_the_bytes_asked_for() -> None:
    built_runner = made(kv_cache_memory_bytes=100 * TINY_BLOCK)
    caches = built_runner.runner._context.caches
    assert built_runner.num_blocks == [101]
    assert sum(cache.nbytes for cache in caches) == 101 * TINY_BLOCK
    assert (built_runner.max_model_len, built_runner.vocab_size) == (1600, 1792)
    assert built_runner.timings.keys() == PARTS


def test_the_cache_is_no_larger_than_all_rows_can_use() -> None:
    assert made(kv_cache_memory_bytes=1 << 40).num_blocks == [4 * 128 + 64 // 16 + 1]


def test_a_context_that_blocks_asked_for_do_not_hold_names_their_size() -> None:
    with pytest.raises(SettingsError, match=r"KV cache of 0\.01 GiB holds 1904; lower --max"):
        made(num_blocks=120, max_model_len=2000)


def test_a_context_that_bytes_asked_for_do_not_hold_fits_in_the_bytes_suggested() -> None:
    with pytest.raises(SettingsError, match=r"to 304, or raise --kv-cache-memory-bytes") as error:
        made(kv_cache_memory_bytes=19 * TINY_BLOCK, max_model_len=2000)
    suggested = int(str(error.value).rstrip(".").rsplit(" ", 1)[1])
    built = made(kv_cache_memory_bytes=suggested, max_model_len=2000)
    assert built.max_model_len == 2000
    assert suggested <= 127 * TINY_BLOCK


def test_the_share_that_is_suggested_leaves_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a GPU whose driver is a stand-in, and whose largest step takes 60 GiB."""
    gib = 1 << 30
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (79 * gib, 80 * gib))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch_build, "_profile", lambda *_: 60 * gib)

    def budget(share: float) -> int:
        settings = make_settings("tiny", gpu_memory_utilization=share)
        memory = GpuMemory(torch.device("cuda"), share)
        runner: Any = None
        return torch_build._kv_budget(settings, runner, memory, 2 * gib, captures=False)

    with pytest.raises(SettingsError, match=r"utilization 0\.75 allows 60\.0 GiB of 80") as error:
        budget(0.75)
    share = float(str(error.value).rstrip(".").rsplit(" ", 1)[1])
    assert 2 * gib <= budget(share) < 3 * gib


def test_unknown_devices_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert pick_device("auto") == torch.device("cpu")
    with pytest.raises(SettingsError, match="use --device cpu"):
        pick_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert pick_device("auto") == torch.device("cuda")


def test_a_gpu_is_named_by_its_index_as_its_tensors_name_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # GEMMs autotuned for "cuda" were never found by tensors on "cuda:0".
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    assert torch_build._of_this_rank(torch.device("cuda")) == torch.device("cuda:0")
    assert torch_build._of_this_rank(torch.device("cpu")) == torch.device("cpu")


def test_the_state_of_too_many_rows_names_its_size_and_flags(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def exhausted(**_: Any) -> Any:
        return torch.empty(PETABYTE, dtype=torch.uint8)

    monkeypatch.setattr("kvasir_engine.runner.torch_runner.SamplingState", exhausted)
    with pytest.raises(SettingsError, match=r"4 sequences of 2048 tokens.* GiB on cpu.*-num-seqs"):
        made()


@pytest.mark.slow
def test_a_server_whose_cache_does_not_fit_says_how_much_was_asked(long_dir: Path) -> None:
    """The process as a user starts it ends with one sentence and status 2."""
    port = str(free_ports(1)[0])
    flags = ["--kv-cache-memory-bytes", str(PETABYTE), "--max-num-seqs", "8", "--port", port]
    command = [sys.executable, "-m", "kvasir", "serve", str(long_dir), "--load-format", "dummy"]
    done = subprocess.run(
        [*command, *flags], capture_output=True, text=True, check=False, timeout=120
    )
    said = " ".join((done.stdout + done.stderr).split())
    assert done.returncode == 2, said
    assert "the KV cache needs 8196.01 GiB on cpu" in said
    for flag in ("--kv-cache-memory-bytes", "--max-num-seqs", "--max-model-len"):
        assert flag in said
    assert "Traceback" not in said
