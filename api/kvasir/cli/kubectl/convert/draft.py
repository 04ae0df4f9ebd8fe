"""Draft of an LLMDeployment, and a source of which every field is either taken or told as lost."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import ValidationError

from kvasir.resource.deployment_files import sentences
from kvasir.resource.llmdeployment import API_VERSION, KIND, LLMDeployment

EngineChoice = Literal["vllm", "kvasir"]

DEFAULT_IMAGE = "vllm/vllm-openai:v0.24.0"
"""Image of vLLM where the source names none; it has --shutdown-timeout."""

_EMPTY: tuple[Any, ...] = (None, "", {}, [], False)
_MAX_PROBLEMS = 64


class ConvertError(Exception):
    """A document that cannot be converted at all; one sentence that names it and why."""


class Source:
    """A mapping out of which fields are taken."""

    def __init__(self, content: Mapping[str, Any], path: str = "") -> None:
        self._content = copy.deepcopy(dict(content))
        self._path = path

    def take(self, *steps: str, default: Any = None) -> Any:
        """Take out and return the value at a path; `default` where there is none."""
        parts: Any = self._content
        for step in steps[:-1]:
            parts = parts.get(step) if isinstance(parts, dict) else None
        if not isinstance(parts, dict):
            return default
        found = parts.pop(steps[-1], None)
        return default if found is None else found

    def part(self, *steps: str) -> Source:
        """Take out a mapping, as a source of its own; empty where there is none."""
        found = self.take(*steps, default={})
        path = ".".join((self._path, *steps)).removeprefix(".")
        return Source(found if isinstance(found, dict) else {}, path)

    def rest(self) -> Iterator[str]:
        """Yield the paths of what was not taken and says something."""
        yield from _paths(self._content, self._path)


def _paths(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, dict) and value:
        for name, each in value.items():
            yield from _paths(each, f"{path}.{name}".removeprefix("."))
    elif value not in _EMPTY:
        yield path


class Draft:
    """An LLMDeployment in the making, and what of its source is lost."""

    def __init__(self, name: str, engine: EngineChoice, namespace: str | None = None) -> None:
        self.name = name
        self.engine: EngineChoice = engine
        self.tensor: int | None = None
        """GPUs that share a layer."""
        self.gpus: int | None = None
        """GPUs of a replica."""
        self.lost: list[str] = []
        """Sentences: the source's field, and why it has no counterpart."""
        self.notes: list[str] = []
        """Sentences on what was chosen without the source."""
        metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
        self.document: dict[str, Any] = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": metadata,
            "spec": {"model": {"uri": ""}, "engine": {}},
        }
        if engine != "kvasir":
            self.set("spec.engine.type", engine)

    def set(self, path: str, value: Any) -> None:
        """Set the field at a path such as spec.model.uri; nothing for a value that is empty."""
        if value in (None, "", {}, []):
            return
        *steps, last = path.split(".")
        part = self.document
        for step in steps:
            part = part.setdefault(step, {})
        part[last] = value

    def get(self, path: str) -> Any:
        """Return the value at a path; None where there is none."""
        part: Any = self.document
        for step in path.split("."):
            part = part.get(step) if isinstance(part, dict) else None
        return part

    def lose(self, field: str, why: str) -> None:
        """Note that a field of the source has no counterpart."""
        self.lost.append(f"{field}: {why}")

    def lose_rest(self, *sources: Source) -> None:
        """Note everything that was not taken from the sources."""
        for source in sources:
            for path in source.rest():
                self.lose(path, "it has no counterpart")

    def finish(self) -> None:
        """Make it a valid LLMDeployment, without the fields that are refused; they are told as
        lost. Raises ConvertError when it cannot be one."""
        self._set_gpus()
        if self.engine == "vllm" and not self.get("spec.engine.image"):
            self.set("spec.engine.image", DEFAULT_IMAGE)
            self.notes.append(f"no image of vLLM is given, so spec.engine.image is {DEFAULT_IMAGE}")
        for name in [name for name, each in self.document["spec"].items() if each == {}]:
            del self.document["spec"][name]
        for _ in range(_MAX_PROBLEMS):
            try:
                LLMDeployment.model_validate(self.document)
                return
            except ValidationError as error:
                self._drop(error)
        raise ConvertError(f"{self.name}: too many fields are refused")

    def _set_gpus(self) -> None:
        """Give the replica as many GPUs as share a layer."""
        if self.tensor and self.gpus and self.tensor != self.gpus:
            self.lose("nvidia.com/gpu", f"it was {self.gpus}, but {self.tensor} share the model")
        count = self.tensor or self.gpus
        if count:
            resources = self.document["spec"].setdefault("resources", {})
            resources.setdefault("limits", {})["nvidia.com/gpu"] = count
        if count and count > 1:
            self.set("spec.parallelism.tensor", count)

    def _drop(self, error: ValidationError) -> None:
        """Remove the first field that is refused. Raises ConvertError where none is to blame."""
        place = error.errors()[0]["loc"]
        said = next(sentences(error))
        if len(place) < 3 or place[:3] == ("spec", "model", "uri"):
            raise ConvertError(f"{self.name}: {said}")
        part: Any = self.document
        for depth, step in enumerate(place):
            below = part[step]
            following = place[depth + 1] if depth + 1 < len(place) else None
            is_there = (
                following in below
                if isinstance(below, dict)
                else isinstance(below, list) and isinstance(following, int)
            )
            if following is None or not is_there:
                if isinstance(below, (dict, list)) and depth < 2:
                    raise ConvertError(f"{self.name}: {said}")
                del part[step]
                break
            part = below
        self.lost.append(said)
