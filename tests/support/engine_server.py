"""A real server on a free port over a small core: scripted tokens, everything else real."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from openai import AsyncOpenAI
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from kvasir.text.chat_template import ChatTemplate
from kvasir.text.tokenizer import Tokenizer
from kvasir_engine.core.client import EngineDeadError, LoadSnapshot, RequestRejectedError
from kvasir_engine.messages import CoreInfo
from kvasir_engine.request import EngineRequest, FinishReason, LogprobEntry, SampleDelta
from kvasir_engine.server.http.app import create_app
from kvasir_engine.server.served_model import ServedModel
from kvasir_engine.server.server_settings import ServerSettings

TEMPLATE = """{%- for m in messages -%}
{{ '<' + m.role + '>' + m.content }}
{%- endfor -%}
{%- if shout is defined %}{{ '!' }}{% endif -%}
{%- if messages[0].content == 'refuse' %}{{ raise_exception('I refuse.') }}{% endif -%}
{%- if add_generation_prompt %}{{ '<assistant>' }}{% endif -%}"""


MAX_MODEL_LEN = 512


def byte_tokenizer() -> Tokenizer:
    """Return a tokenizer of one token a byte; 256 = <s>, 257 = </s>."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE(vocab={char: at for at, char in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<s>", "</s>"])
    return Tokenizer(backend, {"bos_token": "<s>", "eos_token": "</s>"})


EOS = 257


class ScriptedStream:
    """The deltas of one request: one token of each sample a step."""

    def __init__(self, core: ScriptedCore, request: EngineRequest) -> None:
        self._core = core
        self._request = request
        self._steps = core.steps(request)
        self.open = set(range(request.params.n))
        self.closed = False

    def __aiter__(self) -> ScriptedStream:
        return self

    async def __anext__(self) -> list[SampleDelta]:
        while self.open:
            await self._core.tick()
            if not self._core.alive:
                raise EngineDeadError("the core was killed")
            deltas: list[SampleDelta] = []
            for _ in range(self._core.tokens_a_batch):
                deltas += [d for d in next(self._steps, []) if self._sample(d) in self.open]
            for delta in deltas:
                if delta.finish_reason is not None:
                    self.open.discard(self._sample(delta))
            if deltas:
                return deltas
        raise StopAsyncIteration

    def _sample(self, delta: SampleDelta) -> int:
        return delta.handle - self._request.handle

    async def aclose(self) -> None:
        if not self.closed:
            self.closed = True
            self._core.closed.append((self._request, bool(self.open)))
            self.open.clear()


class ScriptedCore:
    """A CoreClient in this process. Each sample says `text`, rotated by its index."""

    def __init__(self) -> None:
        self.tokenizer = byte_tokenizer()
        self.text = "The quick brown fox jumps over the lazy dog. Höchst naïve 你好 😀 <stop> END."
        self.requests: list[EngineRequest] = []
        self.closed: list[tuple[EngineRequest, bool]] = []
        """Requests whose stream was closed, and whether they still ran."""
        self.tokens_a_batch = 1
        self.step_seconds = 0.0
        self.paused = asyncio.Event()
        self.paused.set()
        self.reject: RequestRejectedError | None = None
        self.error: str | None = None
        self.alive = True
        self.step_age = self.turn_age = 0.0
        self.ready: asyncio.Future[CoreInfo] = asyncio.get_running_loop().create_future()
        self._handle = 0

    def become_ready(self) -> None:
        self.ready.set_result(CoreInfo(MAX_MODEL_LEN, 16, 258, [64], {}))

    async def wait_ready(self) -> CoreInfo:
        return await asyncio.shield(self.ready)

    async def tick(self) -> None:
        await asyncio.sleep(self.step_seconds)
        await self.paused.wait()

    async def submit(self, request: EngineRequest) -> ScriptedStream:
        if not self.alive:
            raise EngineDeadError("the core was killed")
        if self.reject is not None:
            raise self.reject
        request.handle = self._handle
        self._handle += request.params.n
        self.requests.append(request)
        self.streams[request.handle] = stream = ScriptedStream(self, request)
        return stream

    @property
    def streams(self) -> dict[int, ScriptedStream]:
        return self.__dict__.setdefault("_streams", {})

    def finish_sample(self, request: EngineRequest, sample: int) -> None:
        self.streams[request.handle].open.discard(sample)

    def reset_prefix_cache(self) -> None:
        raise NotImplementedError

    def load(self) -> LoadSnapshot:
        return LoadSnapshot(len(self.streams), 0, 0, 0.25, self.step_age, self.turn_age)

    async def drain(self) -> None:
        while any(stream.open for stream in self.streams.values()):  # noqa: ASYNC110
            await asyncio.sleep(0.005)

    def close(self) -> None:
        self.alive = False

    def tokens(self, seed: int, sample: int) -> list[int]:
        ids = self.tokenizer.encode(self.text)
        turn = (seed + sample) % len(ids) if seed != 0 else sample
        return ids[turn:] + ids[:turn] + [EOS]

    def steps(self, request: EngineRequest) -> Any:
        params, resume = request.params, request.resume
        seed = params.seed or 0
        first = 0 if resume is None else resume.sample_index
        done = 0 if resume is None else len(resume.output_token_ids)
        scripts = {i: self.tokens(seed, first + i) for i in range(params.n)}
        if self.error:
            yield [SampleDelta(request.handle, [], FinishReason.ERROR, error=self.error)]
        for at in range(done, 10_000):
            step = []
            for i, script in scripts.items():
                delta = self._delta(request, i, script, at)
                if at == done:
                    delta.seed, delta.num_cached_tokens = seed, 4
                    delta.prompt_logprobs = self._prompt_logprobs(request)
                step.append(delta)
            yield step

    def _delta(self, request: EngineRequest, i: int, script: list[int], at: int) -> SampleDelta:
        params = request.params
        token = script[at % len(script)]
        stop = token in request.eos_token_ids and not params.ignore_eos
        stop = stop or token in params.stop_token_ids
        reason = FinishReason.STOP if stop else None
        if reason is None and at + 1 >= (params.max_tokens or 0):
            reason = FinishReason.LENGTH
        return SampleDelta(
            request.handle + i,
            [token],
            reason,
            stop_reason=token if token in params.stop_token_ids else None,
            logprobs=None if params.logprobs is None else [entry(token, params.logprobs)],
        )

    def _prompt_logprobs(self, request: EngineRequest) -> list[LogprobEntry] | None:
        if request.params.prompt_logprobs is None:
            return None
        return [
            entry(token, request.params.prompt_logprobs) for token in request.prompt_token_ids[1:]
        ]


def entry(token: int, k: int) -> LogprobEntry:
    top = [(token + more) % 256 for more in range(k)]
    return LogprobEntry(token, -token / 1000, 1, top, [-token / 1000 - i for i in range(len(top))])


class RunningServer:
    """A server that answers at `url`, its application and its core."""

    def __init__(self, url: str, core: Any, app: Any) -> None:
        self.url = url
        self.core = core
        self.app = app
        self.lifecycle = app.state.server.lifecycle
        # Without certificates, whose loading takes longer than a test.
        self.http = httpx.AsyncClient(base_url=url, timeout=60, trust_env=False, verify=False)

    def openai(self, **options: Any) -> AsyncOpenAI:
        given = {"api_key": "x", "max_retries": 0, "http_client": self.http, **options}
        return AsyncOpenAI(base_url=self.url + "/v1", **given)

    async def post(self, path: str, json: Any = None, **options: Any) -> httpx.Response:
        return await self.http.post(path, json=json, **options)

    async def get(self, path: str, **options: Any) -> httpx.Response:
        return await self.http.get(path, **options)


StartServer = Callable[..., Awaitable[RunningServer]]


@asynccontextmanager
async def running(
    core: Any, model: ServedModel, settings: ServerSettings
) -> AsyncIterator[RunningServer]:
    app = create_app(core, model, settings)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        config = uvicorn.Config(app, http="httptools", ws="none", log_level="warning")
        config.load()
        server = uvicorn.Server(config)
        # Not serve(): its main loop looks only every 0.1 s whether it should end.
        server.lifespan = config.lifespan_class(config)
        await server.startup(sockets=[listener])
        made = RunningServer(f"http://127.0.0.1:{listener.getsockname()[1]}", core, app)
        try:
            yield made
        finally:
            await made.http.aclose()
            # Not shutdown(): it gives connections 0.1 s to end, and those left are of this process.
            for each in server.servers:
                each.close()
            for connection in list(server.server_state.connections):
                connection.shutdown()
            while server.server_state.tasks:  # noqa: ASYNC110 - uvicorn has no event for it
                await asyncio.sleep(0.001)
            await server.lifespan.shutdown()


@pytest.fixture
def scripted_core() -> type[ScriptedCore]:
    """The class ScriptedCore; make one in a running loop."""
    return ScriptedCore


@pytest.fixture
def serve_app() -> Callable[..., Any]:
    """async with serve_app(core client, ServedModel, ServerSettings) as a RunningServer."""
    return running


@pytest.fixture(name="byte_tokenizer")
def byte_tokenizer_fixture() -> Tokenizer:
    """Return a tokenizer of one token a byte; 256 = <s>, 257 = </s>."""
    return byte_tokenizer()


def write_model(directory: Path) -> Path:
    """Write what a server reads of the byte tokenizer's model; a body worker reads it too."""
    directory.mkdir()
    byte_tokenizer().backend.save(str(directory / "tokenizer.json"))
    named = {"bos_token": "<s>", "eos_token": "</s>"}
    (directory / "tokenizer_config.json").write_text(json.dumps(named))
    (directory / "chat_template.jinja").write_text(TEMPLATE)
    return directory


@pytest.fixture
async def start_server(tmp_path: Path) -> AsyncIterator[StartServer]:
    """await start_server(ready=True, model={...}, **settings): a RunningServer."""
    directory = write_model(tmp_path / "model")
    stack: list[Any] = []

    async def start(
        *, ready: bool = True, model: dict[str, Any] | None = None, **settings: Any
    ) -> RunningServer:
        given = {"served_model_names": ("tiny", "alias"), **settings}
        made = ServerSettings(model="builtin://tiny", model_dir=directory, **given)
        core = ScriptedCore()
        if ready:
            core.become_ready()
        served = ServedModel(
            names=made.names,
            tokenizer=core.tokenizer,
            chat_template=ChatTemplate(TEMPLATE),
            eos_token_ids=[EOS],
            root=made.model,
        )
        for name, value in (model or {}).items():
            setattr(served, name, value)
        context = running(core, served, made)
        stack.append(context)
        return await context.__aenter__()

    yield start
    for context in reversed(stack):
        await context.__aexit__(None, None, None)


@pytest.fixture
async def server(start_server: StartServer) -> RunningServer:
    """A server with the default settings."""
    return await start_server()


async def poll_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 (what is waited for has no event)
            await asyncio.sleep(0.005)


@pytest.fixture
def until() -> Callable[[Callable[[], bool]], Awaitable[None]]:
    """await until(condition): fails when it does not hold within 10 s."""
    return poll_until
