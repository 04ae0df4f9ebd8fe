"""Configuration that an API process is started with, as a file in the private runtime directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from kvasir_engine.core.channels import Channels
from kvasir_engine.server.server_settings import ServerSettings


class ApiConfig(msgspec.Struct):
    """The same for every API process of an engine."""

    server: ServerSettings
    grpc_port: int | None = None
    """None = no gRPC."""
    log_level: str = "info"


def write_api_config(channels: Channels, config: ApiConfig) -> None:
    """Write `config` for `read_api_config` in another process. Only this user can enter the
    directory."""
    _path(channels).write_bytes(msgspec.json.encode(config, enc_hook=str))


def read_api_config(channels: Channels) -> ApiConfig:
    """Return the configuration that `write_api_config` wrote."""
    return msgspec.json.decode(_path(channels).read_bytes(), type=ApiConfig, dec_hook=_decode)


def _path(channels: Channels) -> Path:
    return channels.directory / "api.json"


def _decode(kind: type[Any], value: Any) -> Any:
    return kind(value)
