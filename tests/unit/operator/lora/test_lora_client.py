"""What engines are asked, and what their answers mean."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from kvasir.resource import labels
from kvasir.wire.fleet_secret_file import FleetSecretFile
from kvasir_operator.lora.lora_client import LoraClient, LoraRefusedError, refusal
from kvasir_operator.settings import OperatorSettings


@pytest.fixture
def engine() -> Iterator[Any]:
    """An engine that answers `status` and `answer`, and notes what it was asked."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            server.asked.append((self.path, json.loads(body), dict(self.headers)))
            self.send_response(server.status)
            self.send_header("Content-Length", str(len(server.answer)))
            self.end_headers()
            self.wfile.write(server.answer)

        def log_message(self, *_: Any) -> None:
            pass

    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.asked, server.status, server.answer = [], 200, b"Success"
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def pod(port: int, kind: str = "") -> dict[str, Any]:
    ports = [{"name": "grpc", "containerPort": 1}, {"name": "http", "containerPort": port}]
    return {
        "metadata": {"labels": {labels.ENGINE_TYPE: kind} if kind else {}},
        "spec": {"containers": [{"name": "sidecar"}, {"name": "engine", "ports": ports}]},
        "status": {"podIP": "127.0.0.1"},
    }


@pytest.mark.parametrize(
    ("kind", "prefix", "is_trusted"),
    [("", "/v1", True), ("vllm", "/v1", False), ("sglang", "", False), ("custom", "/v1", False)],
)
async def test_each_type_is_asked_in_its_way_and_only_ours_gets_the_secret(
    engine: Any, kind: str, prefix: str, is_trusted: bool
) -> None:
    client = LoraClient(OperatorSettings(fleet_secret=FleetSecretFile("s3cret")))
    target = pod(engine.server_port, kind)
    await client.load(target, "sql", "/models/sql")
    await client.unload(target, "sql")
    await client.close()
    load, unload = engine.asked
    assert load[:2] == (
        f"{prefix}/load_lora_adapter",
        {"lora_name": "sql", "lora_path": "/models/sql"},
    )
    assert unload[:2] == (f"{prefix}/unload_lora_adapter", {"lora_name": "sql"})
    assert ("s3cret" in str(load[2])) is is_trusted


async def test_an_engine_that_refuses_or_is_gone_says_so(engine: Any) -> None:
    client = LoraClient(OperatorSettings())
    engine.status = 400
    engine.answer = b'{"error": {"message": "rank 64 is greater than 16"}}' + b" " * (1 << 20)
    with pytest.raises(LoraRefusedError, match=r"rank 64 is greater than 16 \(status 400\)"):
        await client.load(pod(engine.server_port), "sql", "/x")
    with pytest.raises(LoraRefusedError, match="The engine did not answer") as told:
        await client.load(pod(1), "sql", "/x")
    assert not told.value.answered
    await client.close()


@pytest.mark.parametrize(
    ("status", "body", "told", "is_there"),
    [
        (
            400,
            '{"error":{"message":"The lora adapter \'a\' has already been loaded."}}',
            "has already",
            True,
        ),
        (400, '{"message":"has already been loaded"}', "has already", True),
        (
            400,
            '{"success":false,"error_message":"LoRA adapter a is already loaded"}',
            "already",
            True,
        ),
        (500, '{"message":"already"}', "already", False),
        (501, '{"error":{"message":"no LoRA"}}', "no LoRA (status 501)", False),
        (404, '{"detail":"Not Found"}', "The engine has no /p (status 404)", False),
        (404, "", "The engine has no /p (status 404)", False),
        (404, '{"error":{"message":"No adapter found for /x"}}', "No adapter found", False),
        (500, "a\nplain \x1b[31mtext", "a plain [31mtext (status 500)", False),
        (500, "[]", "It gave no reason (status 500)", False),
    ],
)
def test_what_an_answer_says(status: int, body: str, told: str, is_there: bool) -> None:
    found = refusal(status, body.encode(), "/p")
    assert told in str(found)
    assert found.is_there is is_there
    assert len(str(refusal(500, b"x" * 5000, "/p"))) <= 256
