"""`vllm serve` command lines."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePosixPath

from kvasir.cli.kubectl.convert.draft import ConvertError, Draft, EngineChoice
from kvasir.cli.kubectl.convert.pod_fields import set_uri
from kvasir.cli.kubectl.convert.vllm_flags import VllmFlag, parse_flags, take_flags

_PROGRAM = re.compile(r"vllm|serve|python3?|-m|vllm\.entrypoints\.openai\.api_server")


def convert_command(words: Sequence[str], engine: EngineChoice, name: str | None = None) -> Draft:
    """Return the draft of `vllm serve MODEL ...`, or of the same as a Python module. Raises
    ConvertError."""
    plain, flags = parse_flags(without_program(words))
    model = next((flag.value for flag in flags if flag.name == "--model"), None)
    model = plain[0] if plain else model
    if model is None:
        raise ConvertError("the command names no model; write vllm serve MODEL, with its flags")
    draft = Draft(name or name_of_model(model), engine)
    if len(plain) > 1:
        draft.lose(" ".join(plain[1:]), "it stands alone, without a flag")
    take_model(draft, model, "MODEL")
    take_flags(draft, [flag for flag in flags if flag.name != "--model"])
    if draft.tensor is None:
        draft.gpus = 1
    return draft


def without_program(words: Sequence[str]) -> list[str]:
    """Return the arguments of a command line, without what it runs."""
    rest = list(words)
    while rest and _PROGRAM.fullmatch(rest[0].rpartition("/")[2]):
        rest.pop(0)
    return rest


def take_model(draft: Draft, model: str, field: str) -> None:
    """Set the URI of a model as vLLM takes it: an id of the Hub, or a directory."""
    if model.startswith(("/", ".", "~")):
        draft.set("spec.model.uri", f"pvc://models/{PurePosixPath(model).name}")
        draft.lose(field, f"{model} is a directory; put it on a volume, and correct spec.model.uri")
    else:
        set_uri(draft, model, field)


def name_of_model(model: str) -> str:
    """Return a name that an LLMDeployment may have."""
    last = model.rstrip("/").rpartition("/")[2].partition("@")[0].lower()
    return re.sub(r"[^a-z0-9]+", "-", last).strip("-")[:63].strip("-") or "model"


def split_model(flags: Sequence[VllmFlag], *names: str) -> tuple[str | None, list[VllmFlag]]:
    """Return the value of the first flag that is called so, and the other flags."""
    found = next((flag.value for flag in flags if flag.name in names), None)
    return found, [flag for flag in flags if flag.name not in names]
