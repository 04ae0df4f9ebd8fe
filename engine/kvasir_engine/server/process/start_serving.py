"""Start of the processes, from checked flags."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvasir.certificates import TlsError, server_context
from kvasir.models.cache.use_lock import hold, hold_kernels
from kvasir.text.chat_template import TemplateError
from kvasir.text.json_files import TokenizerError
from kvasir.text.tokenizer_conversion import cache_directory
from kvasir.wire.fleet_secret_file import FleetSecretFile
from kvasir_engine.core.channels import CoreConfig
from kvasir_engine.errors import UserError
from kvasir_engine.kv.prefix_seed import engine_seed
from kvasir_engine.loader.model_directory import loaded_revision, resolve_files
from kvasir_engine.server.gpu_faults.xid_table import parse_xids
from kvasir_engine.server.loaded_adapters import NO_LORA, SEVERAL_PROCESSES
from kvasir_engine.server.process.api_config import ApiConfig
from kvasir_engine.server.process.supervisor import Engine, PortError, check_clients, start_engine
from kvasir_engine.server.served_model import load_served_model
from kvasir_engine.server.server_settings import ServerSettings
from kvasir_engine.settings import EngineSettings, SettingsError


class StartError(UserError):
    """The engine cannot start; one sentence says why and what to change."""


def _lora_refusal(settings: EngineSettings, api_processes: int) -> str:
    """Return why no LoRA adapter is loaded while the engine runs; "" if it is."""
    if settings.device != "sim":
        return NO_LORA
    return SEVERAL_PROCESSES if api_processes > 1 else ""


def start(
    settings: EngineSettings,
    *,
    model_config: str | None,
    api_processes: int,
    grpc_port: int | None,
    **server: Any,
) -> Engine:
    """Find the model (downloading it where asked), then start every process.

    `server` are fields of ServerSettings. Raises SettingsError, ModelLoadError or StartError.
    """
    check_clients(api_processes)
    if model_config is not None and settings.device != "sim":
        raise SettingsError("--model-config goes with --device sim; leave it out.")
    model_dir, settings = resolve_files(settings, model_config)
    hold(model_dir)
    if settings.device != "sim":
        hold_kernels(cache_directory())
    tokenizer_dir = None if settings.tokenizer is None else Path(settings.tokenizer)
    api = ServerSettings(
        model=settings.model,
        model_dir=model_dir,
        revision=loaded_revision(model_dir, settings.revision),
        hf_overrides=settings.hf_overrides,
        tokenizer_dir=tokenizer_dir,
        skip_tokenizer_init=settings.skip_tokenizer_init,
        trust_remote_code=settings.trust_remote_code,
        max_logprobs=settings.max_logprobs,
        lora_refusal=_lora_refusal(settings, api_processes),
        **server,
    )
    if api.ssl_keyfile is not None and api.ssl_certfile is None:
        raise SettingsError("--ssl-keyfile goes with --ssl-certfile; give both.")
    if api.max_log_len and not api.enable_log_requests:
        raise SettingsError("--max-log-len goes with --enable-log-requests; give both.")
    if api.root_path and (not api.root_path.startswith("/") or api.root_path.endswith("/")):
        raise SettingsError(
            f"--root-path must begin with / and not end with it, got {api.root_path!r}."
        )
    if api.sim_gpu_fault is not None and settings.device != "sim":
        raise SettingsError("--sim-gpu-fault goes with --device sim; leave it out.")
    # Refused here, if they are
    _ = api.origins
    parse_xids(api.gpu_fault_xids)
    try:
        # Read here once, so that a bad file is one sentence and not every process's traceback.
        name = load_served_model(api).name
        if api.tls is not None:
            server_context(*api.tls)
        core = CoreConfig(
            settings,
            str(model_dir),
            num_clients=api_processes,
            kv_events_topic=f"kv@{api.host}@{name}",
            model_name=name,
            metrics_prefix=api.metrics_prefix,
            fleet_secret=api.fleet_secret or "",
            fleet_secret_file=str(api.fleet_secret_file.absolute())
            if api.fleet_secret_file
            else "",
            prefix_seed=engine_seed(
                api.model,
                api.revision,
                fleet_secret=FleetSecretFile(api.fleet_secret or "").now.hash_key,
                published=grpc_port is not None or bool(settings.kv_events_endpoint),
            ),
        )
        return start_engine(core, ApiConfig(api, grpc_port=grpc_port))
    except (TokenizerError, TemplateError, PortError, TlsError) as error:
        raise StartError(str(error)) from error
