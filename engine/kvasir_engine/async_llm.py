"""Asynchronous inference: the core in a process of its own, on the caller's event loop."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator
from typing import Any

from kvasir.text.tokenizer import Tokenizer
from kvasir.wire.fleet_secret_file import FleetSecretFile
from kvasir_engine.core.channels import CoreConfig
from kvasir_engine.core.spawn import CoreProcess
from kvasir_engine.core.zmq_client import ZmqCoreClient
from kvasir_engine.inputs import Prompt, RequestMaker, cache_salt
from kvasir_engine.kv.prefix_seed import engine_seed
from kvasir_engine.loader.model_directory import loaded_revision, resolve_files
from kvasir_engine.outputs import GenerationError, RequestOutput
from kvasir_engine.sampling_params import ParameterError, SamplingParams
from kvasir_engine.settings import make_settings
from kvasir_engine.text.output_assembler import OutputAssembler


class AsyncLLM:
    """Asyncio interface of one model. Make it with `await AsyncLLM.start(model, ...)`.

    The core is a child process, so a script needs no `__main__` guard and the event loop is
    never blocked by a step. Call from the main thread.
    """

    def __init__(
        self,
        core: CoreProcess,
        client: ZmqCoreClient,
        maker: RequestMaker,
        watch: asyncio.Task[int],
    ) -> None:
        """Use `start`."""
        self._core = core
        self._client = client
        self._maker = maker
        self._ids = itertools.count()
        self._watch = watch

    @classmethod
    async def start(
        cls,
        model: str,
        *,
        chat_template: str | None = None,
        reasoning_parser: str = "auto",
        **settings: Any,
    ) -> AsyncLLM:
        """Load `model`; arguments as for `LLM`. Raises EngineDeadError with the reason, or what
        reading tokenizer and template raises."""
        asked = make_settings(model, **settings)
        model_dir, made = await asyncio.to_thread(resolve_files, asked)
        secret = os.environ.get("KVASIR_FLEET_SECRET", "")
        seed = engine_seed(
            asked.model,
            loaded_revision(model_dir, asked.revision),
            fleet_secret=FleetSecretFile(secret).now.hash_key,
            published=bool(made.kv_events_endpoint),
        )
        core = CoreProcess(
            CoreConfig(made, str(model_dir), num_clients=1, fleet_secret=secret, prefix_seed=seed)
        )
        client = ZmqCoreClient(core.channels)
        watch = asyncio.get_running_loop().create_task(asyncio.to_thread(core.wait))
        try:
            info = await client.wait_ready()
            maker = RequestMaker.load(
                model_dir,
                made,
                chat_template=chat_template,
                reasoning_parser=reasoning_parser,
                vocab_size=info.vocab_size,
                prefix_seed=info.prefix_seed,
            )
        except BaseException:
            client.close()
            core.stop()
            await watch
            raise
        return cls(core, client, maker, watch)

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        priority: int = 0,
    ) -> AsyncIterator[RequestOutput]:
        """The request's output as it grows, whole each time; the last one is finished.

        Leaving the loop early aborts the request. Raises ParameterError, RequestRejectedError,
        GenerationError or EngineDeadError.
        """
        text, ids = self._maker.tokenise(prompt)
        params = sampling_params or SamplingParams()
        if params.logits_processors:
            raise ParameterError(
                "logits_processors",
                "logits_processors do not work with AsyncLLM, whose core is another process, to "
                "which functions are not sent; use LLM.",
            )
        name = request_id or str(next(self._ids))
        request = self._maker.request(
            name, ids, params, priority=priority, cache_salt=cache_salt(prompt)
        )
        stream = await self._client.submit(request)
        tokenizer = self._maker.tokenizer if params.detokenize else None
        assembler = OutputAssembler(request, tokenizer, text)
        try:
            async for deltas in stream:
                for delta in deltas:
                    update = assembler.push(delta)
                    if update.stopped_by_string:
                        self._client.finish_sample(request, delta.handle - request.handle)
                    if update.error is not None:
                        raise GenerationError(update.error, [assembler.output()])
                yield assembler.output()
        finally:
            await stream.aclose()

    def reset_prefix_cache(self) -> None:
        """Forget all cached prompt blocks."""
        self._client.reset_prefix_cache()

    def get_tokenizer(self) -> Tokenizer:
        """Return the model's tokenizer. Raises ParameterError if it was left out."""
        self._maker.check_text("get_tokenizer")
        return self._maker.tokenizer

    async def close(self) -> None:
        """Abort what runs and end the core."""
        self._client.close()
        await asyncio.to_thread(self._core.stop)
        await self._watch
