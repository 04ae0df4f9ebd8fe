"""Types of an LLMDeployment's fields: strings and numbers with their bounds."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints

from kvasir.model_uri import ModelURIError, parse_model_uri
from kvasir.quantity import parse_bytes

RESERVED_ENV = ("KVASIR_FLEET_SECRET",)

RESERVED_FLAGS = {
    "--host": "it is set by Kvasir",
    "--port": "it is set by Kvasir",
    "--served-model-name": "use spec.model.name and spec.model.aliases",
    "--revision": "use spec.model.revision",
    "--trust-remote-code": "use spec.model.trustRemoteCode",
    "--tensor-parallel-size": "use spec.parallelism.tensor",
    "--drain-timeout": "use spec.lifecycle.drainSeconds",
    "--max-model-len": "use spec.engine.config.maxModelLen",
    "--dtype": "use spec.engine.config.dtype",
    "--gpu-memory-utilization": "use spec.engine.config.gpuMemoryUtilization",
    "--max-num-seqs": "use spec.engine.config.maxNumSeqs",
    "--max-num-batched-tokens": "use spec.engine.config.maxNumBatchedTokens",
    "--block-size": "use spec.engine.config.blockSize",
    "--enable-prefix-caching": "use spec.engine.config.enablePrefixCaching",
    "--no-enable-prefix-caching": "use spec.engine.config.enablePrefixCaching",
    "--device": "use spec.engine.config.device",
    "--kv-cache-memory-bytes": "use spec.engine.config.kvCacheMemoryBytes",
    "--seed": "use spec.engine.config.seed",
    "--load-format": "use spec.engine.config.loadFormat",
}
"""Engine flags that `spec.engine.args` may not carry, each with the field that does."""


def _quantity(value: object) -> object:
    return parse_bytes(value) if isinstance(value, str) else value


def _whole(value: object) -> object:
    return int(value) if isinstance(value, str) and value.isascii() and value.isdigit() else value


def _model_uri(text: str) -> str:
    try:
        parse_model_uri(text).require_local()
    except ModelURIError as error:
        raise ValueError(str(error)) from None
    return text


def _flag(text: str) -> str:
    remedy = RESERVED_FLAGS.get(text.partition("=")[0])
    if remedy:
        raise ValueError(f"{text.partition('=')[0]} cannot be an extra argument: {remedy}")
    return text


DNSLabel = Annotated[
    str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63)
]
ServedName = Annotated[
    str,
    StringConstraints(pattern=r"^[A-Za-z0-9]([-A-Za-z0-9._:/]*[A-Za-z0-9])?$", max_length=253),
]
Revision = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_./-]*$", max_length=128)
]
EnvName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=253)]
Argument = Annotated[str, StringConstraints(min_length=1, max_length=4096), AfterValidator(_flag)]
SourceURI = Annotated[str, StringConstraints(max_length=1024), AfterValidator(_model_uri)]
ByteCount = Annotated[int, BeforeValidator(_quantity), Field(ge=1, le=2**53)]
GPUCount = Annotated[int, BeforeValidator(_whole), Field(ge=0, le=64)]
Text = Annotated[str, StringConstraints(max_length=32768)]
