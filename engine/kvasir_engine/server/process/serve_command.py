"""`kvasir serve MODEL`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from kvasir.cli.config_file import read_options
from kvasir.cli.flags import flags_of, takes_flags_of
from kvasir_engine.serve_panels import HTTP, MODEL, OPS, PANELS
from kvasir_engine.server.server_settings import ServerSettings
from kvasir_engine.settings import EngineSettings, SettingsError, make_settings

_EPILOG = """\b
Examples:
  kvasir serve builtin://kvasir-tiny
  kvasir serve ./Llama-3.1-8B-Instruct --served-model-name llama --api-key s3cret
  kvasir serve Qwen/Qwen3-8B --max-model-len 32768 --enable-log-requests
  kvasir serve --config serve.yaml       # model: ./Llama-3.1-8B-Instruct, port: 8001, ...
  kvasir serve sim --device sim --model-config ./Llama-3.1-8B --speed-profile h200-llama-3.1-8b-bf16

\b
Environment: KVASIR_API_KEY, KVASIR_FLEET_SECRET, KVASIR_CACHE, KVASIR_LOG_LEVEL,
HF_ENDPOINT, HF_TOKEN, HF_HOME, HF_HUB_OFFLINE
Ends with 0 after SIGTERM or Ctrl-C, 2 for settings that cannot work, 3 for a fault of its GPU,
1 for any other failure."""

_TAKES_SEVERAL = ("--served-model-name", "--api-key")


class ServeCommand(TyperCommand):
    """Accept `--served-model-name a b c`, as vLLM does, beside the flag repeated."""

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


def _option(help_: str, panel: str, **extra: Any) -> Any:
    return typer.Option(help=help_, rich_help_panel=panel, **extra)


app = typer.Typer(add_completion=False)


@app.command(cls=ServeCommand, epilog=_EPILOG, name="serve")
@takes_flags_of(EngineSettings, ServerSettings, panels=PANELS)
def serve(
    model: Annotated[
        str,
        typer.Argument(
            help="A directory, a Hugging Face id (ORG/NAME), hf://ORG/NAME@REV or builtin://kvasir-tiny.",
            metavar="MODEL",
        ),
    ],
    model_config: Annotated[
        str | None,
        _option("With --device sim: the directory that stands in for MODEL.", MODEL),
    ] = None,
    served_model_name: Annotated[
        list[str] | None,
        _option("Names that requests may use; several are allowed.", HTTP),
    ] = None,
    api_key: Annotated[
        list[str] | None,
        _option("Accepted keys; several are allowed.", HTTP, envvar="KVASIR_API_KEY"),
    ] = None,
    api_key_file: Annotated[
        Path | None,
        _option("A file of accepted keys, one a line; read again when it changes.", HTTP),
    ] = None,
    api_processes: Annotated[int, _option("Processes that parse, tokenise and stream.", HTTP)] = 1,
    grpc_port: Annotated[
        int | None, _option("Serve gRPC for routers here too.", OPS, min=1, max=65535)
    ] = None,
    fleet_secret_file: Annotated[
        Path | None,
        _option(
            "What routers prove themselves by, one secret a line; read again when it changes. Or "
            "KVASIR_FLEET_SECRET.",
            OPS,
        ),
    ] = None,
    config: Annotated[
        Path | None,
        _option(
            "YAML file with options by name; those given here come first.",
            OPS,
            is_eager=True,
            callback=read_options,
        ),
    ] = None,
    **flags: Any,
) -> None:
    """Serve one model over HTTP (OpenAI's protocol), and gRPC for routers."""
    from kvasir_engine.errors import UserError
    from kvasir_engine.server.process.start_serving import start

    of_server = {name: flags.pop(name) for name in flags_of(ServerSettings)}
    try:
        settings = make_settings(model, policy=flags.pop("scheduling_policy"), **flags)
        engine = start(
            settings,
            model_config=model_config,
            api_processes=api_processes,
            grpc_port=grpc_port,
            served_model_names=tuple(served_model_name or ()),
            api_keys=tuple(api_key or ()),
            file_api_keys=_file_api_keys(api_key_file),
            api_key_file=api_key_file,
            fleet_secret=_fleet_secret(fleet_secret_file),
            fleet_secret_file=fleet_secret_file,
            **of_server,
        )
    except UserError as error:
        print(f"kvasir serve: {error}", file=sys.stderr)
        raise typer.Exit(2) from error
    raise typer.Exit(engine.run())


def _fleet_secret(file: Path | None) -> str | None:
    """The text that holds the fleet's secrets; None = there is none."""
    from kvasir.secret_file import SecretError
    from kvasir.wire.fleet_secret import parse_fleet_secret
    from kvasir.wire.fleet_secret_file import FleetSecretFile

    where = "KVASIR_FLEET_SECRET" if file is None else "--fleet-secret-file"
    try:
        if file is not None:
            return FleetSecretFile.read_text(file)
        text = os.environ.get("KVASIR_FLEET_SECRET", "").strip()
        return text if text and parse_fleet_secret(text) else None
    except SecretError as error:
        raise SettingsError(f"{where}: {error}.") from error


def _file_api_keys(file: Path | None) -> str | None:
    """The text of the file of keys; None = there is none."""
    from kvasir.secret_file import SecretError
    from kvasir_engine.server.auth import ApiKeyFile

    try:
        return None if file is None else ApiKeyFile.read_text(file)
    except SecretError as error:
        raise SettingsError(f"--api-key-file: {error}.") from error
