"""`kvasir serve MODEL`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand

from kvasir_engine.server.process import flags

_EPILOG = """\b
Examples:
  kvasir serve builtin://kvasir-tiny
  kvasir serve ./Llama-3.1-8B-Instruct --served-model-name llama --api-key s3cret
  kvasir serve Qwen/Qwen3-8B --tensor-parallel-size 2 --max-model-len 32768
  kvasir serve sim --device sim --model-config ./Llama-3.1-8B --speed-profile h200-llama-3.1-8b-bf16

\b
Environment: KVASIR_API_KEY, KVASIR_FLEET_SECRET, KVASIR_CACHE, KVASIR_LOG_LEVEL,
HF_ENDPOINT, HF_TOKEN, HF_HOME, HF_HUB_OFFLINE
Ends with 0 after SIGTERM or Ctrl-C, 2 for settings that cannot work, 1 for a failure."""

_TAKES_SEVERAL = ("--served-model-name", "--api-key")


class ServeCommand(TyperCommand):
    """Accepts `--served-model-name a b c`, as vLLM does, beside the flag repeated."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Repeat the flag before each further value, then parse."""
        return super().parse_args(ctx, spread(args))


def spread(args: list[str]) -> list[str]:
    """`--flag a b` as `--flag a --flag b` for the flags that take several values."""
    spread_: list[str] = []
    flag = None
    for arg in args:
        if arg.startswith("-"):
            flag = arg if arg in _TAKES_SEVERAL else None
        elif flag is not None and spread_[-1] != flag:
            spread_.append(flag)
        spread_.append(arg)
    return spread_


app = typer.Typer(add_completion=False)


@app.command(cls=ServeCommand, epilog=_EPILOG, name="serve")
def serve(
    model: flags.Model,
    device: flags.DeviceFlag = "auto",
    dtype: flags.Dtype = "auto",
    max_model_len: flags.MaxModelLen = None,
    revision: flags.Revision = None,
    tokenizer: flags.TokenizerDir = None,
    chat_template: flags.ChatTemplate = None,
    generation_config: flags.GenerationConfig = "auto",
    trust_remote_code: flags.TrustRemoteCode = False,
    load_format: flags.LoadFormatFlag = "auto",
    model_impl: flags.ModelImplFlag = "auto",
    enforce_eager: flags.EnforceEager = False,
    model_config: flags.ModelConfigDir = None,
    speed_profile: flags.SpeedProfileFlag = "instant",
    tensor_parallel_size: flags.TensorParallel = 1,
    seed: flags.Seed = 0,
    block_size: flags.BlockSize = 16,
    gpu_memory_utilization: flags.GpuMemory = 0.9,
    kv_cache_memory_bytes: flags.KvBytes = None,
    enable_prefix_caching: flags.PrefixCaching = True,
    max_num_seqs: flags.MaxNumSeqs = 256,
    max_num_batched_tokens: flags.MaxBatched = 8192,
    long_prefill_token_threshold: flags.LongPrefill = 0,
    scheduling_policy: flags.Policy = "fcfs",
    max_queued_requests: flags.MaxQueued = 4096,
    overlap: flags.Overlap = True,
    host: flags.Host = "127.0.0.1",
    port: flags.Port = 8000,
    served_model_name: flags.ServedNames = None,
    api_key: flags.ApiKeys = None,
    api_key_file: flags.ApiKeyFile = None,
    max_logprobs: flags.MaxLogprobs = 20,
    max_body_bytes: flags.MaxBody = 64 << 20,
    api_processes: flags.ApiProcesses = 1,
    grpc_port: flags.GrpcPort = None,
    kv_events_endpoint: flags.KvEvents = "",
    kv_events_replay_endpoint: flags.KvReplay = "",
    drain_timeout: flags.DrainTimeout = 30.0,
    stuck_after: flags.StuckAfter = 120.0,
    fleet_secret_file: flags.FleetSecretFile = None,
    metrics_prefix: flags.MetricsPrefix = "kvasir_",
) -> None:
    """Serve one model over HTTP (OpenAI's protocol), and gRPC for routers."""
    from kvasir_engine.errors import UserError
    from kvasir_engine.server.process.start_serving import start
    from kvasir_engine.settings import make_settings

    try:
        settings = make_settings(
            model,
            device=device,
            dtype=dtype,
            max_model_len=max_model_len,
            revision=revision,
            tokenizer=tokenizer,
            trust_remote_code=trust_remote_code,
            load_format=load_format,
            model_impl=model_impl,
            enforce_eager=enforce_eager,
            speed_profile=speed_profile,
            tensor_parallel_size=tensor_parallel_size,
            seed=seed,
            block_size=block_size,
            gpu_memory_utilization=gpu_memory_utilization,
            kv_cache_memory_bytes=kv_cache_memory_bytes,
            enable_prefix_caching=enable_prefix_caching,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            long_prefill_token_threshold=long_prefill_token_threshold,
            policy=scheduling_policy,
            max_queued_requests=max_queued_requests,
            overlap=overlap,
            max_logprobs=max_logprobs,
            kv_events_endpoint=kv_events_endpoint,
            kv_events_replay_endpoint=kv_events_replay_endpoint,
        )
        engine = start(
            settings,
            model_config=model_config,
            api_processes=api_processes,
            grpc_port=grpc_port,
            served_model_names=tuple(served_model_name or ()),
            chat_template=chat_template,
            generation_config=generation_config,
            host=host,
            port=port,
            api_keys=(*(api_key or ()), *_lines(api_key_file, "--api-key-file")),
            fleet_secret=_fleet_secret(fleet_secret_file),
            max_body_bytes=max_body_bytes,
            stuck_after=stuck_after,
            drain_timeout=drain_timeout,
            metrics_prefix=metrics_prefix,
        )
    except UserError as error:
        print(f"kvasir serve: {error}", file=sys.stderr)
        raise typer.Exit(2) from error
    raise typer.Exit(engine.run())


def _fleet_secret(file: Path | None) -> str | None:
    if file is None:
        return os.environ.get("KVASIR_FLEET_SECRET") or None
    return next(iter(_lines(file, "--fleet-secret-file")), None)


def _lines(file: Path | None, flag: str) -> list[str]:
    """The non-empty lines of a secret's file."""
    from kvasir_engine.settings import SettingsError

    if file is None:
        return []
    try:
        lines = [line.strip() for line in file.read_text().splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{flag} {file} cannot be read: {error}.") from error
    found = [line for line in lines if line]
    if not found:
        raise SettingsError(f"{flag} {file} is empty.")
    return found
