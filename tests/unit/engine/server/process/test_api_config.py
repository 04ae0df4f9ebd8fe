from __future__ import annotations

import time
from pathlib import Path

from kvasir_engine.core.channels import Channels
from kvasir_engine.server.process.api_config import ApiConfig, read_api_config, write_api_config
from kvasir_engine.server.server_settings import ServerSettings


def test_every_process_reads_what_was_written(tmp_path: Path) -> None:
    settings = ServerSettings(
        "org/model",
        tmp_path / "model",
        served_model_names=("a", "b"),
        tokenizer_dir=tmp_path / "tokenizer",
        api_keys=("k",),
        file_api_keys="l",
        api_key_file=tmp_path / "keys",
        fleet_secret="s",
        created=int(time.time()) - 1000,
    )
    config = ApiConfig(settings, grpc_port=8001, log_level="debug")
    write_api_config(Channels(tmp_path), config)
    assert read_api_config(Channels(tmp_path)) == config
    assert read_api_config(Channels(tmp_path)).server.created == settings.created
