"""Flags of `vllm serve` as fields of an LLMDeployment."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from kvasir.cli.kubectl.convert.draft import Draft
from kvasir.resource.engines.engine_types import REMEDIES, VLLM, reserved_flags

_SHORT = {
    "-tp": "--tensor-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-dp": "--data-parallel-size",
    "-q": "--quantization",
}
_ALIASES = {"half": "float16", "float": "float32"}
_SET_BY_KVASIR = ("--host", "--port")
_ALONE = {
    "--pipeline-parallel-size": "a replica is one pod whose GPUs share each layer",
    "--data-parallel-size": "use spec.replicas",
    "--lora-modules": "use spec.adapters",
    "--config": "give the flags that are in the file",
}
_COUNT = re.compile(r"(\d+(?:\.\d+)?)([kKmMgG])")
_UNITS = {"k": 10**3, "K": 2**10, "m": 10**6, "M": 2**20, "g": 10**9, "G": 2**30}


@dataclass(frozen=True, slots=True)
class VllmFlag:
    """One flag of a command line."""

    name: str
    """With its dashes, as --max-model-len."""
    values: tuple[str, ...]
    words: tuple[str, ...]
    """As they were written."""

    @property
    def value(self) -> str:
        """The only value; "" where there is none."""
        return " ".join(self.values)


def parse_flags(words: Sequence[str]) -> tuple[list[str], list[VllmFlag]]:
    """Return the words before the first flag, and the flags with their values."""
    first = next((i for i, word in enumerate(words) if _is_flag(word)), len(words))
    return list(words[:first]), list(_flags(list(words[first:])))


def _is_flag(word: str) -> bool:
    return len(word) > 1 and word[0] == "-" and not word[1].isdigit() and word[1] != "."


def _flags(words: list[str]) -> Iterator[VllmFlag]:
    at = 0
    while at < len(words):
        end = at + 1
        while end < len(words) and not _is_flag(words[end]):
            end += 1
        name, equals, value = words[at].partition("=")
        name = _SHORT.get(name, name.replace("_", "-") if name.startswith("--") else name)
        values = ((value,) if equals else ()) + tuple(words[at + 1 : end])
        yield VllmFlag(name, values, tuple(words[at:end]))
        at = end


def take_flags(draft: Draft, flags: Sequence[VllmFlag]) -> None:
    """Put the flags into the fields that they have, the others into engine.args of type vllm."""
    settings = _settings()
    reserved = reserved_flags(VLLM)
    extra: list[str] = []
    for flag in flags:
        if flag.name in settings:
            _take(draft, *settings[flag.name], flag)
        elif flag.name in _ALONE:
            if flag.value != "1":
                draft.lose(flag.name, _ALONE[flag.name])
        elif flag.name in reserved:
            draft.lose(flag.name, reserved[flag.name])
        elif draft.engine == "vllm":
            extra += flag.words
        else:
            draft.lose(" ".join(flag.words), "it is vLLM's; see kvasir serve --help")
    draft.set("spec.engine.args", [*(draft.get("spec.engine.args") or ()), *extra])


def _settings() -> dict[str, tuple[str, bool | None]]:
    """Return the setting of each flag, and the value of one that takes none."""
    found: dict[str, tuple[str, bool | None]] = {}
    for setting, names in VLLM.flags.items():
        if isinstance(names, str):
            found[names] = setting, None
        else:
            found |= {name: (setting, not i) for i, name in enumerate(names) if name}
    return found


def _take(draft: Draft, setting: str, switch: bool | None, flag: VllmFlag) -> None:
    if flag.name in _SET_BY_KVASIR:
        return
    if setting == "served_model_name":
        names = [name for name in flag.values if name != draft.name or len(flag.values) > 1]
        if names:
            draft.set("spec.model.name", names[0] if names[0] != draft.name else None)
            draft.set("spec.model.aliases", names[1:])
        return
    value: Any = parse_value(flag.value) if switch is None else switch
    if setting == "tensor_parallel_size" and isinstance(value, int):
        draft.tensor = value
        return
    draft.set(REMEDIES[setting].removeprefix("use "), value)


def parse_value(text: str) -> Any:
    """Return a flag's value as YAML would have it: numbers, also 16k and 32K as vLLM takes them."""
    if found := _COUNT.fullmatch(text):
        return int(float(found[1]) * _UNITS[found[2]])
    if text in _ALIASES:
        return _ALIASES[text]
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        return text
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else text
