"""`kvasir plan`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from kvasir.cli.deployment_option import read_deployments
from kvasir.cli.errors import EXIT_FAILED, EXIT_USAGE, fail
from kvasir.engine_values import KVCacheDtype, QuantizationName
from kvasir.model_uri import ModelURIError, parse_model_uri
from kvasir.models.config_overrides import ConfigOverrides, read_overrides
from kvasir.models.fit import GPUS, Workload
from kvasir.models.fit.devices import Device, DeviceError, cpu, known_gpus, local_gpu, named_gpu
from kvasir.models.fit.fit_plan import Plan, overrides_of, plan_deployment, plan_model
from kvasir.models.hf_config import ConfigError, load_config, parse_shape
from kvasir.models.local_config import find_config
from kvasir.models.model_shape import ModelShape
from kvasir.resource import LLMDeployment

_EPILOG = f"""\b
Examples:
  kvasir plan -f manifests/llama-8b.yaml --gpu l40s
  kvasir plan --model ./Llama-3.1-70B --gpu h100 --max-model-len 32768
  kvasir plan --model hf://Qwen/Qwen3-8B --config ./config.json --gpu-memory 80GiB
  kvasir plan --model ./Llama-3.1-8B --json | jq '.[0].options[] | select(.fits)'

\b
Weights are counted from the model's config.json; what a step needs beside them
(activations, graphs) is estimated. Exit status 1: a model does not fit as asked.

\b
GPUs: {", ".join(list(GPUS)[:8])},
      {", ".join(list(GPUS)[8:])}
Environment: HF_HOME (where configs of hf:// models are found; nothing is downloaded)"""

app = typer.Typer(rich_markup_mode=None)


@app.command(epilog=_EPILOG)
def plan(
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="LLMDeployments to check.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="A model instead: its directory, its config.json, or a model URI."),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="The model's config.json, when it is not on this machine.")
    ] = None,
    gpu: Annotated[
        str | None, typer.Option(help="Kind of GPU. Default: this machine's; with --model, all.")
    ] = None,
    memory: Annotated[
        str | None, typer.Option("--gpu-memory", help="Memory of each GPU, such as 80GiB.")
    ] = None,
    tensor_parallel_size: Annotated[
        int | None, typer.Option(min=1, help="GPUs of one replica. Default: as few as do.")
    ] = None,
    max_model_len: Annotated[
        int | None, typer.Option(min=1, help="Longest sequence. Default: the model's own.")
    ] = None,
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"] | None,
        typer.Option(help="Type of the weights. Default: the model's."),
    ] = None,
    quantization: Annotated[
        QuantizationName, typer.Option(help="Format of the weights; fp8 also of plain ones.")
    ] = "auto",
    kv_cache_dtype: Annotated[
        KVCacheDtype,
        typer.Option(help="Type of the KV cache. Default: fp8 with KV scales, where the GPU can."),
    ] = "auto",
    gpu_memory_utilization: Annotated[
        float | None, typer.Option(min=0.05, max=1.0, help="Share of the memory. Default: 0.9.")
    ] = None,
    hf_overrides: Annotated[
        str | None,
        typer.Option(metavar="JSON", help="Fields to put into the model's config.json."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Tell whether models fit on GPUs: weights and KV cache against the memory there is."""
    given = {
        "max_model_len": max_model_len,
        "dtype": dtype,
        "kv_cache_dtype": None if kv_cache_dtype == "auto" else kv_cache_dtype,
        "gpu_memory_utilization": gpu_memory_utilization,
    }
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    try:
        device = named_gpu(gpu, memory)
        fields = read_overrides(hf_overrides or {}, "--hf-overrides")
        overrides = ConfigOverrides(fields, quantization=quantization)
        if model is not None and file is None:
            work, shape = Workload(**options), _shape(model, config, overrides)
            devices = [device] if device else known_gpus()
            plans = [plan_model(model, shape, devices, work, tensor_parallel=tensor_parallel_size)]
        elif file is not None and model is None:
            if options or tensor_parallel_size or hf_overrides or quantization != "auto":
                fail("with -f the file says how the model is run; change it there", EXIT_USAGE)
            plans = _file(file, device, config)
        else:
            fail("give either -f FILE or --model MODEL (see kvasir plan --help)", EXIT_USAGE)
    except (ConfigError, DeviceError, ModelURIError) as error:
        fail(error, EXIT_USAGE)
    _show(plans, as_json)


def _file(file: Path, device: Device | None, config: Path | None) -> list[Plan]:
    """Raises ConfigError and DeviceError."""
    deployments = read_deployments(file)
    if config is not None and len(deployments) > 1:
        fail(f"--config is of one model, but {file} has {len(deployments)}", EXIT_USAGE)
    made = [each for each in deployments if each.spec.external is None]
    if not made:
        fail(f"{file}: servers of others serve every model (spec.external); nothing to plan")
    return [_deployment(deployment, device, config) for deployment in made]


def _deployment(deployment: LLMDeployment, device: Device | None, config: Path | None) -> Plan:
    model, kind = deployment.spec.model, deployment.spec.engine.type
    if kind == "custom":
        fail(
            f"{deployment.name}: spec.engine.type custom: the memory that it needs is not known;"
            " give --model to see what Kvasir's engine would need",
            EXIT_USAGE,
        )
    if kind != "kvasir":
        note = (
            f"{deployment.name}: an estimate by the memory that Kvasir's engine needs, not {kind}'s"
        )
        typer.echo(note, err=True)
    if deployment.spec.profile is not None and device is None:
        fail(
            f"{deployment.name}: spec.profile {deployment.spec.profile} is of an"
            " LLMDeploymentClass, which only a cluster has; say with --gpu what GPUs it is for",
            EXIT_USAGE,
        )
    shape = _shape(model.uri, config, overrides_of(deployment.spec), model.revision)
    if device is None:
        device = local_gpu() if deployment.spec.resources.gpus else cpu()
    return plan_deployment(deployment, shape, device)


def _shape(
    model: str, config: Path | None, overrides: ConfigOverrides, revision: str | None = None
) -> ModelShape:
    """Raises ConfigError and ModelURIError."""
    found = load_config(config or find_config(parse_model_uri(model), revision))
    return parse_shape(overrides.apply(found))


def _show(plans: list[Plan], as_json: bool) -> None:
    """Print the plans, and end the command with 1 if a model does not fit."""
    if as_json:
        print(json.dumps([plan.as_json() for plan in plans], indent=2))
    else:
        from kvasir.cli.plan_table import print_plan

        for plan in plans:
            print_plan(plan)
    if not all(plan.fits for plan in plans):
        raise typer.Exit(EXIT_FAILED)
