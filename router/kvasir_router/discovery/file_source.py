"""Models and replicas from a YAML (or JSON) file, read again when it changes.

models:
  - name: kvasir-tiny
    aliases: [tiny]
    policy: kv_aware             # default: the router's --policy
    policy_options: {miss_weight: 2}   # over --policy-option
    adapters: [tiny-sql]         # LoRA adapters that its replicas serve, by name
    hold: 300                    # seconds that requests wait while it has no replica that serves
    replicas:
      - id: r0
        url: "http://127.0.0.1:8000"
        grpc_port: 8001          # load and prompt reports (kvasir serve --grpc-port)
        kv_events: "tcp://127.0.0.1:5557"
        kv_replay: "tcp://127.0.0.1:5558"
      - {id: r1, url: "http://127.0.0.1:8010", draining: true}
      - {id: r2, url: "http://127.0.0.1:8020", engine: vllm}   # or sglang, openai
  - name: llama
    tokenizer: meta-llama/Llama-3.1-8B-Instruct   # or a directory: with it, KV events count
    replicas:
      - {id: r0, url: "http://10.0.0.7:8000", engine: vllm, kv_events: "tcp://10.0.0.7:5557"}
  - name: hosted
    fallbacks: [llama]           # where it does not answer
    replicas:
      - id: provider             # a server of others: told no secret, no client's key or cookie
        url: https://api.example.com/v1
        model: large-2           # its own name of the model
        key_env: PROVIDER_KEY    # or key_file
  - name: kvasir-tiny-v2
canaries:
  - name: chat                   # one name for several models, by weight
    split: {kvasir-tiny: 95, kvasir-tiny-v2: 5}
"""

from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

from kvasir_router.discovery.file_schema import FileConfig
from kvasir_router.discovery.specs import DiscoveryError, PolicySpec, Snapshot
from kvasir_router.discovery.upstream_fields import UpstreamError
from kvasir_router.file_watch import FileWatch, FollowedFile
from kvasir_router.yaml_file import YamlFileError, read_yaml

MAX_FILE_BYTES = 4 * 1024 * 1024


class FileSource:
    """A discovery file at `path`, of which `check_policy` raises ValueError for a bad policy.

    `reported` is called after each attempt to read a changed file, with whether it was good.
    """

    def __init__(
        self,
        path: Path,
        reported: Callable[[bool], None],
        check_policy: Callable[[PolicySpec], None],
        *,
        has_secret: bool = False,
    ) -> None:
        """`has_secret`: there is a fleet secret, which only engines that are named get."""
        watch = FileWatch(path)
        self._file: FollowedFile[Snapshot] = FollowedFile(
            "discovery file",
            watch,
            partial(read_snapshot, path, check_policy, has_secret=has_secret, watch=watch),
            reported,
            (DiscoveryError,),
        )

    async def load(self) -> Snapshot:
        return await self._file.load()

    async def watch(self) -> AsyncIterator[Snapshot]:
        found: list[Snapshot] = []
        async for _ in self._file.looks():
            await self._file.look(found.append)
            if found:
                yield found.pop()


def read_snapshot(
    path: Path,
    check_policy: Callable[[PolicySpec], None],
    *,
    has_secret: bool = False,
    watch: FileWatch | None = None,
) -> Snapshot:
    """Return the models that the file at `path` names; `watch` also looks at the files that it
    names from now on. Raises DiscoveryError."""
    try:
        content = read_yaml(
            path, "discovery file", FileConfig, MAX_FILE_BYTES, quote=True, context=check_policy
        )
    except YamlFileError as error:
        raise DiscoveryError(str(error)) from None
    problem = content.unsaid_engine() if has_secret else None
    if problem is not None:
        raise DiscoveryError(f"discovery file {path}: {problem}")
    if watch is not None:
        watch.watch_too(content.files())
    try:
        return content.snapshot()
    except UpstreamError as error:
        raise DiscoveryError(f"discovery file {path}: {error}") from None
