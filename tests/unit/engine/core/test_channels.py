"""The runtime directory."""

from __future__ import annotations

from pathlib import Path

from kvasir_engine.core.channels import (
    HANDLES_PER_CLIENT,
    MAX_CLIENTS,
    Channels,
    CoreConfig,
)
from kvasir_engine.settings import make_settings


def test_a_core_config_survives_its_file(tmp_path: Path) -> None:
    settings = make_settings("m", max_num_seqs=7, num_blocks=9, policy="priority", dtype="float16")
    config = CoreConfig(settings, "/models/m", num_clients=2, model_name="m", log_level="debug")
    channels = Channels(tmp_path)
    channels.write_config(config)
    assert channels.read_config() == config


def test_every_socket_has_its_own_path(tmp_path: Path) -> None:
    channels = Channels(tmp_path)
    paths = {channels.to_core, *(channels.to_client(i) for i in range(MAX_CLIENTS))}
    assert len(paths) == MAX_CLIENTS + 1


def test_all_handles_fit_in_32_bits() -> None:
    assert (MAX_CLIENTS + 1) * HANDLES_PER_CLIENT <= 2**31
