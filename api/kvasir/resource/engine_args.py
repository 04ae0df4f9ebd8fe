"""The engine's command line that an LLMDeployment means, with a cluster and without."""

from __future__ import annotations

from collections.abc import Sequence

from kvasir.resource.llmdeployment import EngineConfig, LLMDeployment


def engine_command(
    deployment: LLMDeployment,
    *,
    host: str,
    port: int,
    model: str | None = None,
    tensor: int | None = None,
    program: Sequence[str] = ("kvasir",),
) -> list[str]:
    """The command that starts one replica, listening on `host`:`port`.

    `model` replaces the URI where the weights already lie in a directory. `tensor` is the number of
    GPUs where the deployment leaves it open; else as many as it asks for. `program` is what runs
    Kvasir's CLI.
    """
    spec = deployment.spec
    command = [*program, "serve", model or spec.model.uri, "--host", host, "--port", str(port)]
    command += ["--served-model-name", *deployment.served_names]
    if spec.model.revision is not None and model is None:
        command += ["--revision", spec.model.revision]
    if spec.model.quantization != "auto":
        command += ["--quantization", spec.model.quantization]
    if spec.engine.kv_cache_dtype != "auto":
        command += ["--kv-cache-dtype", spec.engine.kv_cache_dtype]
    if spec.model.trust_remote_code:
        command.append("--trust-remote-code")
    wanted = spec.parallelism.tensor
    size = wanted if isinstance(wanted, int) else tensor or spec.resources.limits.gpus
    if size > 1:
        command += ["--tensor-parallel-size", str(size)]
    command += ["--drain-timeout", str(spec.lifecycle.drain_seconds)]
    return command + _config_flags(spec.engine.config) + spec.engine.args


def _config_flags(config: EngineConfig) -> list[str]:
    """A flag for every field that was set to something else than its default."""
    flags: list[str] = []
    for name, value in config.model_dump(exclude_defaults=True).items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            flags.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            flags += [f"--{flag}", str(value)]
    return flags
