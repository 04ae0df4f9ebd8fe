"""The flags of `kvasir serve`, by topic. Where vLLM has the flag, name and meaning are vLLM's."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer


def _flag(name: str, help_: str, panel: str, **extra: Any) -> Any:
    return typer.Option(name, help=help_, rich_help_panel=panel, **extra)


MODEL, CACHE, STEP, HTTP, OPS = "Model", "KV cache", "Scheduling", "HTTP", "Operations"

Model = Annotated[
    str,
    typer.Argument(
        help="A directory, a Hugging Face id (ORG/NAME), hf://ORG/NAME@REV or builtin://kvasir-tiny.",
        metavar="MODEL",
    ),
]
DeviceFlag = Annotated[
    Literal["auto", "cpu", "cuda", "sim"],
    _flag("--device", "sim computes nothing: a step sleeps as --speed-profile says.", MODEL),
]
Dtype = Annotated[
    Literal["auto", "float32", "bfloat16", "float16"],
    _flag("--dtype", "auto = the model's own on a GPU, float32 on a CPU.", MODEL),
]
MaxModelLen = Annotated[
    int | None,
    _flag("--max-model-len", "Longest prompt plus output, tokens; default: what fits.", MODEL),
]
Revision = Annotated[str | None, _flag("--revision", "Branch, tag or commit on the hub.", MODEL)]
TokenizerDir = Annotated[
    str | None, _flag("--tokenizer", "Directory of another tokenizer; default: MODEL's.", MODEL)
]
ChatTemplate = Annotated[
    str | None, _flag("--chat-template", "File or text of another chat template.", MODEL)
]
GenerationConfig = Annotated[
    str,
    _flag(
        "--generation-config",
        "Default sampling parameters: auto (MODEL's), vllm (none) or a directory.",
        MODEL,
    ),
]
TrustRemoteCode = Annotated[
    bool, _flag("--trust-remote-code", "Allow Python code that MODEL brings.", MODEL)
]
LoadFormatFlag = Annotated[
    Literal["auto", "safetensors", "dummy"],
    _flag("--load-format", "dummy = random weights, for benchmarks.", MODEL),
]
ModelImplFlag = Annotated[
    Literal["auto", "native", "transformers"],
    _flag("--model-impl", "Whose model code runs; auto = ours where we have it.", MODEL),
]
EnforceEager = Annotated[
    bool, _flag("--enforce-eager", "No CUDA graphs: starts sooner, decodes slower.", MODEL)
]
ModelConfigDir = Annotated[
    str | None,
    _flag("--model-config", "With --device sim: the directory that stands in for MODEL.", MODEL),
]
SpeedProfileFlag = Annotated[
    str, _flag("--speed-profile", "With --device sim: a shipped profile's name or a file.", MODEL)
]
TensorParallel = Annotated[
    int, _flag("--tensor-parallel-size", "GPUs (or CPU processes) that share the model.", MODEL)
]
Seed = Annotated[int, _flag("--seed", "Of unseeded requests' seeds and of dummy weights.", MODEL)]

BlockSize = Annotated[int, _flag("--block-size", "Tokens of a KV block.", CACHE)]
GpuMemory = Annotated[
    float, _flag("--gpu-memory-utilization", "Share of the GPU's memory to use.", CACHE)
]
KvBytes = Annotated[
    int | None,
    _flag("--kv-cache-memory-bytes", "KV memory instead of that share; CPU: 1 GiB.", CACHE),
]
PrefixCaching = Annotated[
    bool,
    _flag(
        "--enable-prefix-caching/--no-enable-prefix-caching", "Reuse KV of shared prefixes.", CACHE
    ),
]

MaxNumSeqs = Annotated[int, _flag("--max-num-seqs", "Sequences that run at once.", STEP)]
MaxBatched = Annotated[
    int, _flag("--max-num-batched-tokens", "Tokens of one step, prompts and outputs.", STEP)
]
LongPrefill = Annotated[
    int,
    _flag("--long-prefill-token-threshold", "Most tokens of one prompt in a step; 0 = any.", STEP),
]
Policy = Annotated[
    Literal["fcfs", "priority"], _flag("--scheduling-policy", "Who is served first.", STEP)
]
MaxQueued = Annotated[
    int, _flag("--max-queued-requests", "Requests that may wait; beyond: 429.", STEP)
]
Overlap = Annotated[
    bool, _flag("--overlap/--no-overlap", "Plan a step while the last one runs.", STEP)
]

Host = Annotated[str, _flag("--host", "Address to listen on.", HTTP)]
Port = Annotated[int, _flag("--port", "Port to listen on.", HTTP, min=1, max=65535)]
ServedNames = Annotated[
    list[str] | None,
    _flag("--served-model-name", "Names that requests may use; several are allowed.", HTTP),
]
ApiKeys = Annotated[
    list[str] | None,
    _flag("--api-key", "Accepted keys; several are allowed.", HTTP, envvar="KVASIR_API_KEY"),
]
ApiKeyFile = Annotated[
    Path | None, _flag("--api-key-file", "A file of accepted keys, one a line.", HTTP)
]
MaxLogprobs = Annotated[int, _flag("--max-logprobs", "Most logprobs a request may ask.", HTTP)]
MaxBody = Annotated[int, _flag("--max-body-bytes", "Largest request body.", HTTP, min=1024)]
ApiProcesses = Annotated[
    int, _flag("--api-processes", "Processes that parse, tokenise and stream.", HTTP)
]

GrpcPort = Annotated[
    int | None, _flag("--grpc-port", "Serve gRPC for routers here too.", OPS, min=1, max=65535)
]
KvEvents = Annotated[
    str, _flag("--kv-events-endpoint", "ZMQ address for KV events, as tcp://*:5557.", OPS)
]
KvReplay = Annotated[
    str, _flag("--kv-events-replay-endpoint", "ZMQ address to replay them, as tcp://*:5558.", OPS)
]
DrainTimeout = Annotated[
    float, _flag("--drain-timeout", "Seconds that running requests get after SIGTERM.", OPS, min=0)
]
StuckAfter = Annotated[
    float, _flag("--stuck-after", "Seconds of one step after which /health fails.", OPS, min=1)
]
FleetSecretFile = Annotated[
    Path | None,
    _flag("--fleet-secret-file", "What routers prove themselves by; or KVASIR_FLEET_SECRET.", OPS),
]
MetricsPrefix = Annotated[str, _flag("--metrics-prefix", "Of the metrics' names.", OPS)]
