"""A gRPC server over a real channel; only the core is scripted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2_grpc
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from kvasir.text.tokenizer import Tokenizer
from kvasir.wire.fleet_secret_file import FleetSecretFile
from kvasir.wire.proto.engine.v1 import engine_pb2 as pb
from kvasir.wire.proto.engine.v1 import engine_pb2_grpc
from kvasir_engine.core.client import LoadSnapshot
from kvasir_engine.inputs import RequestMaker
from kvasir_engine.messages import CoreInfo
from kvasir_engine.metric_registry import MetricRegistry
from kvasir_engine.request import EngineRequest, SampleDelta
from kvasir_engine.server.auth import Keyring
from kvasir_engine.server.generation.api_metrics import ApiMetrics
from kvasir_engine.server.generation.request_log import RequestLog
from kvasir_engine.server.large_bodies.body_workers import BodyWorkers
from kvasir_engine.server.large_bodies.worker_messages import Setup
from kvasir_engine.server.lifecycle import Lifecycle
from kvasir_engine.server.openai.intake import Intake
from kvasir_engine.server.reports.reporter import PromptReporter
from kvasir_engine.server.rpc.engine_service import EngineService
from kvasir_engine.server.rpc.generate_reader import GenerateReader
from kvasir_engine.server.rpc.grpc_server import GrpcServer

BLOCK = 4


CONTEXT = 64


WORDS = ["hello", "Ġworld", "Ġstop", "Ġend", "Ġa", "Ġb"]


def make_tokenizer() -> Tokenizer:
    """Whole words and single bytes, with <eos>."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.WordLevel({t: i for i, t in enumerate([*alphabet, *WORDS])}, "a"))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<eos>", special=True)])
    return Tokenizer(backend, {"eos_token": "<eos>"})


TOKENIZER = make_tokenizer()


EOS = TOKENIZER.special_id("eos_token")


class ScriptedStream(AsyncIterator[list[SampleDelta]]):
    def __init__(self, core: ScriptedCore, request: EngineRequest) -> None:
        self._core, self.request = core, request
        self.queue: asyncio.Queue[list[SampleDelta] | Exception | None] = asyncio.Queue()

    async def __anext__(self) -> list[SampleDelta]:
        item = await self.queue.get()
        if item is None:
            raise StopAsyncIteration
        if isinstance(item, Exception):
            raise item
        return item

    async def aclose(self) -> None:
        self._core.closed.append(self.request.request_id)

    def send(self, *tokens: int, sample: int = 0, **fields: Any) -> None:
        handle = self.request.handle + sample
        self.queue.put_nowait([SampleDelta(handle, list(tokens), **fields)])


class ScriptedCore:
    """A CoreClient whose answers the test writes."""

    alive = True

    def __init__(self) -> None:
        self.submitted: asyncio.Queue[ScriptedStream] = asyncio.Queue()
        self.closed: list[str] = []
        self.finished: list[int] = []
        self.refusal: Exception | None = None
        self.snapshot = LoadSnapshot(0, 0, 0, 0.0, 0.0)

    async def wait_ready(self) -> CoreInfo:
        return CoreInfo(
            max_model_len=CONTEXT,
            block_size=BLOCK,
            num_blocks=[10],
            vocab_size=TOKENIZER.vocab_size,
            startup_seconds={},
        )

    async def submit(self, request: EngineRequest) -> ScriptedStream:
        if self.refusal is not None:
            raise self.refusal
        request.handle = 100
        stream = ScriptedStream(self, request)
        self.submitted.put_nowait(stream)
        return stream

    def finish_sample(self, request: EngineRequest, sample: int) -> None:
        self.finished.append(sample)

    def load(self) -> LoadSnapshot:
        return self.snapshot

    async def drain(self) -> None:
        return None

    def close(self) -> None:
        return None


async def collect(call: Any) -> tuple[dict[int, str], dict[int, str], pb.Usage]:
    """Joined text and finish reason of each sample, and the usage of the last message."""
    texts: dict[int, str] = {}
    reasons: dict[int, str] = {}
    response = pb.GenerateResponse()
    async with asyncio.timeout(10):
        async for response in call:
            for chunk in response.chunks:
                texts[chunk.index] = texts.get(chunk.index, "") + chunk.text
                reasons[chunk.index] = chunk.finish_reason
    return texts, reasons, response.usage


async def failure(call: Any) -> grpc.aio.AioRpcError:
    try:
        async with asyncio.timeout(10):
            async for _ in call:
                pass
    except grpc.aio.AioRpcError as error:
        return error
    pytest.fail("the call succeeded")


def _no_setup() -> Setup:
    raise OSError("this rig's model has no files that a worker could read")


class Rig:
    """A server on a free port, its scripted core and a channel to it."""

    tokenizer, block_size, max_model_len = TOKENIZER, BLOCK, CONTEXT
    hello, world, stop, end = (TOKENIZER.backend.token_to_id(word) for word in WORDS[:4])
    eos = EOS
    collect, failure = staticmethod(collect), staticmethod(failure)

    def __init__(
        self,
        api_keys: tuple[str, ...] = (),
        secret: str = "",
        secret_file: Path | None = None,
        tokenizer: Tokenizer = TOKENIZER,
    ) -> None:
        self.core = ScriptedCore()
        self.lifecycle = Lifecycle(self.core)
        self.reporter = PromptReporter(TOKENIZER, BLOCK)
        self.fleet_secret = FleetSecretFile(secret, secret_file)
        keyring = Keyring(api_keys, self.fleet_secret)
        maker = RequestMaker(tokenizer, None, (EOS or 0,), TOKENIZER.vocab_size, BLOCK, 5)
        self.intake = Intake(maker, CONTEXT)
        service = EngineService(
            self.core,
            GenerateReader(self.intake, BodyWorkers(_no_setup, 2**20)),
            self.lifecycle,
            ApiMetrics(MetricRegistry("kvasir_", "m")),
            self.reporter,
            keyring,
            RequestLog(enabled=False, max_prompt=0),
        )
        self.server = GrpcServer(
            service,
            self.lifecycle,
            keyring,
            host="127.0.0.1",
            port=0,
        )

    async def start(self) -> None:
        await self.lifecycle.start()
        await self.server.start()
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{self.server.port}")
        self.stub = engine_pb2_grpc.EngineStub(self.channel)
        self.health = health_pb2_grpc.HealthStub(self.channel)

    async def close(self) -> None:
        await self.channel.close()
        await self.server.stop(0)

    async def generate(self, metadata: Any = (), **fields: Any) -> tuple[Any, ScriptedStream]:
        """A running call and its stream in the core."""
        call = self.stub.Generate(pb.GenerateRequest(**fields), metadata=metadata)
        async with asyncio.timeout(10):
            return call, await self.core.submitted.get()


StartRig = Callable[..., Awaitable[Rig]]
