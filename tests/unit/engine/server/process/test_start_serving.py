from __future__ import annotations

import shutil
import socket
from pathlib import Path
from typing import Any

import pytest

import kvasir_engine
from kvasir.cli.local.ports import free_ports
from kvasir_engine.server.process.start_serving import StartError, start
from kvasir_engine.settings import SettingsError, make_settings

TINY = Path(kvasir_engine.__file__).parent / "assets" / "tiny"
OPTIONS = {"model_config": None, "api_processes": 1, "grpc_port": None}


def test_a_stand_in_is_for_the_simulator_only() -> None:
    settings = make_settings(str(TINY), device="cpu")
    with pytest.raises(SettingsError, match="--device sim"):
        start(settings, **{**OPTIONS, "model_config": str(TINY)})


def test_a_bad_tokenizer_is_one_sentence_and_no_process(tmp_path: Path) -> None:
    shutil.copy(TINY / "config.json", tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(StartError, match=r"tokenizer\.json"):
        start(make_settings(str(tmp_path), device="sim"), **OPTIONS)


def test_a_bad_template_is_one_sentence_and_no_process() -> None:
    with pytest.raises(StartError, match="/no/such"):
        start(make_settings(str(TINY), device="sim"), **OPTIONS, chat_template="/no/such.jinja")


@pytest.mark.parametrize("flag", ["--port", "--grpc-port"])
def test_a_port_in_use_is_one_sentence_and_no_process(flag: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports = [*free_ports(1), taken.getsockname()[1]]
        http, grpc = ports if flag == "--grpc-port" else reversed(ports)
        settings = make_settings(str(TINY), device="sim")
        with pytest.raises(StartError, match=f"{taken.getsockname()[1]}.*{flag}"):
            start(settings, **{**OPTIONS, "grpc_port": grpc}, port=http)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ({"ssl_certfile": Path("/no/such.crt")}, "cannot read /no/such.crt"),
        ({"ssl_certfile": TINY / "config.json"}, "with key .*: this is no PEM file"),
        ({"ssl_keyfile": Path("/no/such.key")}, "--ssl-keyfile goes with --ssl-certfile"),
        ({"max_log_len": 9}, "--max-log-len goes with --enable-log-requests; give both"),
        ({"root_path": "llm"}, "--root-path must begin with / and not end with it, got 'llm'"),
        ({"root_path": "/llm/"}, "--root-path must begin with / and not end with it"),
        ({"allowed_origins": ["[https://a.example]"]}, "--allowed-origins .* is no JSON list"),
    ],
)
def test_what_clients_cannot_be_served_with_is_one_sentence_and_no_process(
    flags: dict[str, Any], sentence: str
) -> None:
    settings = make_settings(str(TINY), device="sim")
    with pytest.raises((StartError, SettingsError), match=sentence):
        start(settings, **OPTIONS, **flags)
