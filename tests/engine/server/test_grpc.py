"""The gRPC service over a real channel; only the core is scripted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from kvasir.block_hash import chain_hashes, root_hash
from kvasir.proto.engine.v1 import engine_pb2 as pb
from kvasir.proto.engine.v1 import engine_pb2_grpc
from kvasir.template.tokenizer import Tokenizer
from kvasir_engine.core.client import (
    CoreInfo,
    EngineDeadError,
    LoadSnapshot,
    RequestRejectedError,
)
from kvasir_engine.inputs import RequestMaker
from kvasir_engine.metric_registry import MetricRegistry
from kvasir_engine.request import EngineRequest, FinishReason, LogprobEntry, SampleDelta
from kvasir_engine.server.auth import Keyring
from kvasir_engine.server.generation.metrics import ApiMetrics
from kvasir_engine.server.lifecycle import Lifecycle
from kvasir_engine.server.reports.reporter import PromptReporter
from kvasir_engine.server.rpc.server import SERVICE_NAME, GrpcServer
from kvasir_engine.server.rpc.service import EngineService

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
HELLO, WORLD, STOP, END = (TOKENIZER.backend.token_to_id(word) for word in WORDS[:4])
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
            num_blocks=(10,),
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


class Rig:
    """A server on a free port, its scripted core and a channel to it."""

    def __init__(self, api_keys: tuple[str, ...] = (), secret: str | None = None) -> None:
        self.core = ScriptedCore()
        self.lifecycle = Lifecycle(self.core)
        self.reporter = PromptReporter(TOKENIZER, BLOCK)
        maker = RequestMaker(TOKENIZER, None, (EOS or 0,), TOKENIZER.vocab_size, BLOCK, 5)
        service = EngineService(
            self.core,
            maker,
            self.lifecycle,
            ApiMetrics(MetricRegistry("kvasir_", "m")),
            self.reporter,
            max_model_len=CONTEXT,
        )
        keyring = Keyring(api_keys, secret)
        self.server = GrpcServer(
            service,
            self.lifecycle,
            keyring,
            fleet_only=secret is not None,
            host="127.0.0.1",
            port=0,
        )

    async def start(self) -> None:
        await self.lifecycle.start()
        await self.server.start()
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{self.server.port}")
        self.stub = engine_pb2_grpc.EngineStub(self.channel)
        self.health = health_pb2_grpc.HealthStub(self.channel)

    async def stop(self) -> None:
        await self.channel.close()
        await self.server.stop(0)

    async def generate(self, **fields: Any) -> tuple[Any, ScriptedStream]:
        """A running call and its stream in the core."""
        call = self.stub.Generate(pb.GenerateRequest(**fields))
        async with asyncio.timeout(10):
            return call, await self.core.submitted.get()


StartRig = Callable[..., Awaitable[Rig]]


@pytest.fixture
async def start_rig() -> AsyncIterator[StartRig]:
    rigs: list[Rig] = []

    async def start(*args: Any, **kwargs: Any) -> Rig:
        rigs.append(Rig(*args, **kwargs))
        await rigs[-1].start()
        return rigs[-1]

    yield start
    for rig in rigs:
        await rig.stop()


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


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 (the server has no event to wait for)
            await asyncio.sleep(0.005)


TEXT = {"text": "hello world"}


async def test_a_text_prompt_is_tokenised_hashed_and_streamed(start_rig: StartRig) -> None:
    rig = await start_rig()
    call, stream = await rig.generate(
        text="hello world a b", cache_salt="s", priority=3, request_id="r", return_token_ids=True
    )
    request = stream.request
    prompt = TOKENIZER.encode("hello world a b")
    assert len(prompt) == BLOCK
    assert request.prompt_token_ids == prompt
    assert request.block_hashes == chain_hashes(prompt, BLOCK, root=root_hash(cache_salt="s"))
    assert (request.request_id, request.cache_salt, request.priority) == ("r", "s", 3)
    assert request.params.max_tokens == CONTEXT - len(prompt)
    stream.send(HELLO, seed=-5, num_cached_tokens=2)
    stream.send(WORLD)
    stream.send(EOS, finish_reason=FinishReason.STOP)
    responses = [response async for response in call]
    chunks = [chunk for response in responses for chunk in response.chunks]
    assert "".join(chunk.text for chunk in chunks) == "hello world"
    assert [t for chunk in chunks for t in chunk.token_ids] == [HELLO, WORLD, EOS]
    assert [chunk.seed for chunk in chunks if chunk.HasField("seed")] == [-5]
    assert chunks[-1].finish_reason == "stop"
    assert chunks[-1].WhichOneof("stop_reason") is None
    usage = responses[-1].usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (BLOCK, 3, 2)
    assert not any(response.HasField("usage") for response in responses[:-1])


async def test_absent_fields_are_defaults_and_present_zeros_are_not(start_rig: StartRig) -> None:
    rig = await start_rig()
    call, stream = await rig.generate(**TEXT)
    params = stream.request.params
    assert (params.temperature, params.top_p, params.n, params.seed) == (1.0, 1.0, 1, None)
    assert params.skip_special_tokens
    call.cancel()
    call, stream = await rig.generate(
        sampling=pb.SamplingParams(
            temperature=0,
            seed=0,
            top_p=0.1,
            max_tokens=4,
            logprobs=0,
            logit_bias={3: 1.5},
            stop_token_ids=[7],
            allowed_token_ids=pb.TokenIds(ids=[1, 2]),
            bad_words=["hello"],
            skip_special_tokens=False,
        ),
        **TEXT,
    )
    params = stream.request.params
    assert (params.temperature, params.seed, params.top_p, params.max_tokens) == (0.0, 0, 0.1, 4)
    assert (params.logprobs, params.logit_bias) == (0, {3: 1.5})
    assert (params.stop_token_ids, params.allowed_token_ids) == ([7], [1, 2])
    assert params.bad_words_token_ids[0] == [HELLO]
    assert not params.skip_special_tokens
    call.cancel()


async def test_stop_strings_cut_the_text_and_free_the_sample(start_rig: StartRig) -> None:
    rig = await start_rig()
    call, stream = await rig.generate(sampling=pb.SamplingParams(stop=[" stop"]), **TEXT)
    for token in (HELLO, STOP, END):
        stream.send(token)
    responses = [response async for response in call]
    last = responses[-1].chunks[-1]
    assert "".join(c.text for r in responses for c in r.chunks) == "hello"
    assert (last.finish_reason, last.stop_string) == ("stop", " stop")
    assert responses[-1].usage.completion_tokens == 2
    assert rig.core.finished == [0]


async def test_samples_are_told_apart_and_logprobs_come_along(start_rig: StartRig) -> None:
    rig = await start_rig()
    call, stream = await rig.generate(
        sampling=pb.SamplingParams(n=2, logprobs=1, prompt_logprobs=1), **TEXT
    )
    entry = LogprobEntry(WORLD, -0.5, 1, [WORLD], [-0.5])
    stream.send(HELLO, prompt_logprobs=[entry], logprobs=[LogprobEntry(HELLO, -1.5, 2, [END], [0])])
    stream.send(END, sample=1, logprobs=[entry])
    stream.send(7, sample=1, finish_reason=FinishReason.STOP, stop_reason=7, logprobs=[entry])
    stream.send(finish_reason=FinishReason.LENGTH)
    responses = [response async for response in call]
    chunks = [chunk for response in responses for chunk in response.chunks]
    [with_prompt] = [chunk for chunk in chunks if chunk.prompt_logprobs]
    assert with_prompt.index == 0
    assert with_prompt.prompt_logprobs[0].token_id == WORLD
    ids = {
        index: [e.token_id for c in chunks if c.index == index for e in c.logprobs]
        for index in (0, 1)
    }
    assert ids == {0: [HELLO], 1: [WORLD, WORLD]}
    assert with_prompt.logprobs[0].rank == 2
    assert list(with_prompt.logprobs[0].top_ids) == [END]
    assert {c.index: c.finish_reason for c in chunks if c.finish_reason} == {0: "length", 1: "stop"}
    assert [c.stop_token_id for c in chunks if c.WhichOneof("stop_reason")] == [7]


async def test_resume_goes_on_behind_what_was_delivered(start_rig: StartRig) -> None:
    rig = await start_rig()
    resume = pb.Resume(
        output_token_ids=[HELLO, WORLD], seed=9, sample_index=3, sent_chars=len("hello")
    )
    call, stream = await rig.generate(resume=resume, **TEXT)
    assert stream.request.resume is not None
    assert stream.request.resume.output_token_ids == [HELLO, WORLD]
    assert stream.request.resume.sample_index == 3
    assert stream.request.params.seed == 9
    stream.send(END, finish_reason=FinishReason.LENGTH)
    texts, reasons, usage = await collect(call)
    assert texts == {3: " world end"}
    assert reasons == {3: "length"}
    assert usage.completion_tokens == 3


async def test_a_resumed_sample_that_had_ended_never_reaches_the_core(start_rig: StartRig) -> None:
    rig = await start_rig()
    resume = pb.Resume(output_token_ids=[HELLO, WORLD], sent_chars=5)
    call = rig.stub.Generate(
        pb.GenerateRequest(resume=resume, sampling=pb.SamplingParams(max_tokens=2), **TEXT)
    )
    texts, reasons, usage = await collect(call)
    assert (texts, reasons, usage.completion_tokens) == ({0: " world"}, {0: "length"}, 2)
    assert rig.core.submitted.empty()


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({}, "prompt"),
        ({"text": ""}, "text"),
        ({"token_ids": pb.TokenIds()}, "token_ids"),
        ({"token_ids": pb.TokenIds(ids=[2**31])}, "2147483648"),
        ({"token_ids": pb.TokenIds(ids=[1] * CONTEXT)}, "context"),
        ({"text": "hello " * 10_000}, "characters"),
        ({"request_id": "r" * 300, **TEXT}, "request_id"),
        ({"sampling": pb.SamplingParams(temperature=float("nan")), **TEXT}, "temperature"),
        ({"sampling": pb.SamplingParams(top_p=0), **TEXT}, "top_p"),
        ({"sampling": pb.SamplingParams(max_tokens=0), **TEXT}, "max_tokens"),
        ({"sampling": pb.SamplingParams(max_tokens=2**31), **TEXT}, "max_tokens"),
        ({"sampling": pb.SamplingParams(n=100_000), **TEXT}, "n must"),
        ({"sampling": pb.SamplingParams(logit_bias={2**31: 1}), **TEXT}, "logit_bias"),
        ({"sampling": pb.SamplingParams(allowed_token_ids=pb.TokenIds()), **TEXT}, "allowed"),
        ({"sampling": pb.SamplingParams(stop=["x"], detokenize=False), **TEXT}, "detokenize"),
        ({"resume": pb.Resume(output_token_ids=[2**31]), **TEXT}, "2147483648"),
        ({"resume": pb.Resume(), "sampling": pb.SamplingParams(n=2), **TEXT}, "resume"),
    ],
)
async def test_a_bad_field_is_named(
    start_rig: StartRig, fields: dict[str, Any], named: str
) -> None:
    rig = await start_rig()
    error = await failure(rig.stub.Generate(pb.GenerateRequest(**fields)))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert named in str(error.details())
    assert rig.core.submitted.empty()


@pytest.mark.parametrize(
    ("refusal", "status"),
    [
        (RequestRejectedError("full", status=429, retry_after=7), "RESOURCE_EXHAUSTED"),
        (RequestRejectedError("draining", status=503), "UNAVAILABLE"),
        (RequestRejectedError("too long", status=400), "INVALID_ARGUMENT"),
        (EngineDeadError("killed"), "UNAVAILABLE"),
    ],
)
async def test_the_cores_refusal_has_its_status(
    start_rig: StartRig, refusal: Exception, status: str
) -> None:
    rig = await start_rig()
    rig.core.refusal = refusal
    error = await failure(rig.stub.Generate(pb.GenerateRequest(**TEXT)))
    assert error.code() is grpc.StatusCode[status]
    assert str(refusal) in str(error.details())
    retry_after = dict(error.trailing_metadata()).get("retry-after")
    assert retry_after == (None if status != "RESOURCE_EXHAUSTED" else "7")


async def test_headers_mean_admission(start_rig: StartRig) -> None:
    rig = await start_rig()
    call, _ = await rig.generate(**TEXT)
    async with asyncio.timeout(10):
        await call.initial_metadata()
    call.cancel()


async def test_a_cancelled_call_leaves_the_core(start_rig: StartRig) -> None:
    rig = await start_rig()
    call, stream = await rig.generate(request_id="gone", **TEXT)
    stream.send(HELLO)
    await call.read()
    call.cancel()
    await until(lambda: rig.core.closed == ["gone"])
    again, _ = await rig.generate(request_id="gone", **TEXT)
    again.cancel()


async def test_abort_ends_the_samples_that_run(start_rig: StartRig) -> None:
    rig = await start_rig()
    call, stream = await rig.generate(
        request_id="r", sampling=pb.SamplingParams(n=2, stop=["helloX"]), **TEXT
    )
    stream.send(END, sample=1, finish_reason=FinishReason.LENGTH)
    await anext(aiter(call))
    stream.send(HELLO)  # held back: it may be the start of the stop string
    await until(stream.queue.empty)
    assert (await rig.stub.Abort(pb.AbortRequest(request_id="r"))).found
    texts, reasons, usage = await collect(call)
    assert texts == {0: "hello"}
    assert reasons == {0: "abort"}
    assert usage.completion_tokens == 2
    await until(lambda: rig.core.closed == ["r"])
    assert not (await rig.stub.Abort(pb.AbortRequest(request_id="r"))).found


async def test_a_running_request_id_is_not_taken_twice(start_rig: StartRig) -> None:
    rig = await start_rig()
    call, _ = await rig.generate(request_id="r", **TEXT)
    error = await failure(rig.stub.Generate(pb.GenerateRequest(request_id="r", **TEXT)))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert (await rig.stub.Abort(pb.AbortRequest(request_id="r"))).found
    assert (await collect(call))[1] == {0: "abort"}


async def test_a_core_that_dies_or_fails_ends_the_call(start_rig: StartRig) -> None:
    rig = await start_rig()
    call, stream = await rig.generate(**TEXT)
    stream.send(HELLO)
    stream.queue.put_nowait(EngineDeadError("killed by signal 9"))
    error = await failure(call)
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert "signal 9" in str(error.details())
    call, stream = await rig.generate(**TEXT)
    stream.send(finish_reason=FinishReason.ERROR, error="The mask could not be built.")
    error = await failure(call)
    assert error.code() is grpc.StatusCode.INTERNAL
    assert "mask" in str(error.details())


async def test_the_drain_deadline_hands_calls_over(start_rig: StartRig) -> None:
    rig = await start_rig()
    call, stream = await rig.generate(request_id="r", **TEXT)
    stream.send(HELLO)
    await anext(aiter(call))
    await rig.lifecycle.drain(0.05)
    error = await failure(call)
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert "resume" in str(error.details())
    assert rig.core.closed == ["r"]


async def test_load_is_pushed_on_change_and_as_a_heartbeat(start_rig: StartRig) -> None:
    rig = await start_rig()
    call = rig.stub.WatchLoad(pb.WatchLoadRequest())
    first = await call.read()
    assert (first.running, first.ready, first.draining) == (0, True, False)
    assert (await call.read()).running == 0  # nothing changed: a heartbeat
    rig.core.snapshot = LoadSnapshot(3, 2, 5000, 0.25, 1.5)
    load = await call.read()
    while load.running == 0:
        load = await call.read()
    assert (load.running, load.waiting, load.inflight_tokens) == (3, 2, 5000)
    assert (load.kv_usage, load.step_age_seconds) == (0.25, 1.5)
    await rig.lifecycle.drain(1)
    load = await call.read()
    while not load.draining:
        load = await call.read()
    assert not load.ready
    call.cancel()


async def test_many_changes_are_one_message_a_tick(start_rig: StartRig) -> None:
    rig = await start_rig()
    call = rig.stub.WatchLoad(pb.WatchLoadRequest())
    await call.read()
    for running in range(1, 101):
        rig.core.snapshot = LoadSnapshot(running, 0, 0, 0.0, 0.0)
        await asyncio.sleep(0)
    seen = [(await call.read()).running]
    while seen[-1] != 100:
        seen.append((await call.read()).running)
    assert len(seen) < 20
    call.cancel()


SECRET = (("x-kvasir-fleet-secret", "right"),)


@pytest.mark.parametrize(
    "metadata", [(), (("x-kvasir-fleet-secret", "wrong"),), (("authorization", "Bearer key"),)]
)
async def test_without_the_fleet_secret_every_call_is_refused(
    start_rig: StartRig, metadata: tuple[tuple[str, str], ...]
) -> None:
    rig = await start_rig(api_keys=("key",), secret="right")
    stub = rig.stub
    for call in (
        stub.Generate(pb.GenerateRequest(**TEXT), metadata=metadata),
        stub.WatchLoad(pb.WatchLoadRequest(), metadata=metadata),
        stub.WatchPrompts(pb.WatchPromptsRequest(), metadata=metadata),
    ):
        assert (await failure(call)).code() is grpc.StatusCode.UNAUTHENTICATED
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.Abort(pb.AbortRequest(), metadata=metadata)
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert not (await stub.Abort(pb.AbortRequest(), metadata=SECRET)).found


async def test_api_keys_hold_where_there_is_no_fleet_secret(start_rig: StartRig) -> None:
    rig = await start_rig(api_keys=("key",))
    refused = await failure(rig.stub.Generate(pb.GenerateRequest(**TEXT)))
    assert refused.code() is grpc.StatusCode.UNAUTHENTICATED
    key = (("authorization", "Bearer key"),)
    assert not (await rig.stub.Abort(pb.AbortRequest(), metadata=key)).found


async def test_health_is_open_and_follows_readiness(start_rig: StartRig) -> None:
    rig = await start_rig(secret="right")
    statuses = health_pb2.HealthCheckResponse
    for service in ("", SERVICE_NAME):
        answer = await rig.health.Check(health_pb2.HealthCheckRequest(service=service))
        assert answer.status == statuses.SERVING
    watch = rig.health.Watch(health_pb2.HealthCheckRequest())
    assert (await watch.read()).status == statuses.SERVING
    await rig.lifecycle.drain(1)
    async with asyncio.timeout(10):
        assert (await watch.read()).status == statuses.NOT_SERVING
    watch.cancel()


async def test_a_message_over_the_limit_is_refused(start_rig: StartRig) -> None:
    rig = await start_rig()
    error = await failure(rig.stub.Generate(pb.GenerateRequest(text="x" * (17 * 2**20))))
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert rig.core.submitted.empty()


async def test_a_port_in_use_is_named(start_rig: StartRig) -> None:
    taken = (await start_rig()).server.port
    second = Rig()
    second.server._address = f"127.0.0.1:{taken}"
    with pytest.raises(OSError, match=str(taken)):
        await second.server.start()
    second.reporter.close()


async def test_prompt_reports_are_streamed_to_watchers(start_rig: StartRig) -> None:
    rig = await start_rig()
    prompt = "hello world a b" * 200
    ids = TOKENIZER.encode(prompt)
    hashes = chain_hashes(ids, BLOCK)
    call = rig.stub.WatchPrompts(pb.WatchPromptsRequest())
    async with asyncio.timeout(10):
        await call.initial_metadata()
        rig.reporter.completion({}, prompt, ids, hashes, add_special_tokens=True)
        message = await call.read()
    [report] = message.reports
    assert len(report.text_hashes) == len(report.kv_blocks) == len(report.kv_hashes) // 16 > 3
    last = report.kv_blocks[-1]
    assert report.kv_hashes[-16:] == hashes[16 * (last - 1) : 16 * last]
    call.cancel()
    await until(lambda: not rig.reporter.watched)
