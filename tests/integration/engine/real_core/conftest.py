"""A server over the real core in its own process, with the simulated runner."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kvasir.text.tokenizer import Tokenizer
from kvasir_engine.core.channels import CoreConfig
from kvasir_engine.core.spawn import CoreProcess
from kvasir_engine.core.zmq_client import ZmqCoreClient
from kvasir_engine.server.served_model import load_served_model
from kvasir_engine.server.server_settings import ServerSettings
from kvasir_engine.settings import make_settings

CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 258,
    "max_position_embeddings": 512,
    "eos_token_id": 257,
    "rms_norm_eps": 1e-5,
}


@pytest.fixture
def model_dir(tmp_path: Path, byte_tokenizer: Tokenizer) -> Path:
    # Beyond the model's vocabulary, as Gemma 3's <image_soft_token> is.
    byte_tokenizer.backend.add_special_tokens(["<image>"])
    byte_tokenizer.backend.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


@pytest.fixture
def start_real(model_dir: Path, serve_app: Any, until: Any) -> Callable[..., Any]:
    """async with start_real(secret="fleet", **engine settings) as a RunningServer that is ready."""

    @asynccontextmanager
    async def start(*, secret: str | None = None, **engine: Any) -> AsyncIterator[Any]:
        core = CoreProcess(
            CoreConfig(make_settings(str(model_dir), device="sim", **engine), str(model_dir), 1)
        )
        client = ZmqCoreClient(core.channels)
        ended = asyncio.create_task(asyncio.to_thread(core.wait))
        settings = ServerSettings(
            "tiny", model_dir, fleet_secret=secret, chat_template="{{ messages }}"
        )
        try:
            async with serve_app(client, load_served_model(settings), settings) as server:
                await client.wait_ready()
                await until(lambda: server.lifecycle.ready)
                yield server
        finally:
            client.close()
            await asyncio.to_thread(core.stop)
            await ended

    return start
