"""LoRA adapters that were loaded while the server runs: names that requests may use."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kvasir_engine.server.openai.api_error import ApiError, invalid

MAX_ADAPTERS = 256
MAX_NAME_CHARS = 253
MAX_PATH_CHARS = 4096

NO_LORA = (
    "This engine serves its model without LoRA adapters; serve them with vLLM or SGLang"
    " (spec.engine.type of an LLMDeployment)."
)
"""Sentence of an engine that computes: it has no LoRA."""
SEVERAL_PROCESSES = (
    "A simulated engine takes LoRA adapters with --api-processes 1 only; start it with one."
)


class LoadBody(msgspec.Struct, kw_only=True):
    """POST /v1/load_lora_adapter, as vLLM has it."""

    lora_name: str
    lora_path: str


class UnloadBody(msgspec.Struct, kw_only=True):
    """POST /v1/unload_lora_adapter, as vLLM has it."""

    lora_name: str


class LoadedAdapters:
    """Names and directories of the adapters of one API process. A simulated engine takes any name:
    nothing is read, and its requests' blocks are kept apart from the model's."""

    def __init__(self, served: Sequence[str], refusal: str = "") -> None:
        """`served` are the model's names. `refusal` is the sentence on why none is taken; "" = they
        are."""
        self._served = tuple(served)
        self._refusal = refusal
        self._paths: dict[str, str] = {}

    def __contains__(self, name: object) -> bool:
        return name in self._paths

    @property
    def names(self) -> list[str]:
        """The names, in the order in which they were loaded."""
        return list(self._paths)

    def path(self, name: str) -> str:
        """Return the directory of a loaded adapter."""
        return self._paths[name]

    def load(self, body: LoadBody) -> None:
        """Take an adapter. Raises ApiError: 501 where there is no LoRA, 400 for a name that is
        taken or cannot be one."""
        self._check()
        name, path = body.lora_name, body.lora_path
        _check_text("lora_name", name, MAX_NAME_CHARS)
        _check_text("lora_path", path, MAX_PATH_CHARS)
        if name in self._served:
            raise invalid(f"lora_name {name!r} is a name of the model itself.", "lora_name")
        if name in self._paths:
            # vLLM's sentence, which its callers look for
            sentence = f"The lora adapter {name!r} has already been loaded."
            raise invalid(sentence, "lora_name", "adapter_loaded")
        if len(self._paths) >= MAX_ADAPTERS:
            raise invalid(
                f"{MAX_ADAPTERS} adapters are loaded, and no more may be; unload one.", "lora_name"
            )
        self._paths[name] = path

    def unload(self, body: UnloadBody) -> None:
        """Forget an adapter. Raises ApiError: 501 where there is no LoRA, 404 for one that is not
        loaded."""
        self._check()
        if self._paths.pop(body.lora_name, None) is None:
            shown = body.lora_name[:MAX_NAME_CHARS]
            sentence = f"The lora adapter {shown!r} cannot be found."
            raise ApiError(404, sentence, param="lora_name", code="adapter_not_found")

    def _check(self) -> None:
        if self._refusal:
            raise ApiError(501, self._refusal, code="lora_not_supported")


def _check_text(param: str, text: str, longest: int) -> None:
    if not text or len(text) > longest or not text.isprintable():
        raise invalid(f"{param} has 1 to {longest} printable characters.", param)
