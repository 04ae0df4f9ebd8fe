"""Files of LLMDeployments: several YAML documents, every problem named in one sentence."""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from kvasir.llmdeployment.models import API_VERSION, KIND, LLMDeployment
from kvasir.llmdeployment.yaml_documents import YAMLDocumentError, read_documents

MAX_FILE_BYTES = 1024 * 1024
_MAX_SHOWN = 80


class DeploymentFileError(ValueError):
    """A file of LLMDeployments cannot be used; `problems` has a sentence for each reason."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


def load_file(path: Path) -> list[LLMDeployment]:
    """The deployments in the YAML file at `path`, at least one. Raises DeploymentFileError."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise DeploymentFileError([f"{path} is larger than {MAX_FILE_BYTES} bytes; split it"])
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise DeploymentFileError([f"{path} does not exist; check the path given to -f"]) from None
    except UnicodeDecodeError:
        raise DeploymentFileError([f"{path} is not a text file in UTF-8"]) from None
    except OSError as error:
        raise DeploymentFileError([f"{path} cannot be read: {error.strerror}"]) from None
    return parse_documents(text, source=str(path))


def parse_documents(text: str, source: str) -> list[LLMDeployment]:
    """The deployments in `text`, at least one; `source` names it in errors.

    Raises DeploymentFileError.
    """
    try:
        documents = read_documents(text)
    except YAMLDocumentError as error:
        raise DeploymentFileError([f"{source}: {error}"]) from None
    deployments: list[tuple[str, LLMDeployment]] = []
    problems: list[str] = []
    for number, document in enumerate(documents, 1):
        if document is None:
            continue
        place = f"{source}: document {number}"
        try:
            deployments.append((place, LLMDeployment.model_validate(document)))
        except ValidationError as error:
            problems += [f"{place}: {sentence}" for sentence in sentences(error)]
    problems += _clashes(deployments)
    if not problems and not deployments:
        problems = [f"{source} holds no document; write a {KIND} of {API_VERSION}"]
    if problems:
        raise DeploymentFileError(problems)
    return [deployment for _, deployment in deployments]


def _clashes(deployments: list[tuple[str, LLMDeployment]]) -> Iterator[str]:
    """A sentence for each name that two deployments claim."""
    names: dict[str, str] = {}
    served: dict[str, str] = {}
    for place, deployment in deployments:
        name = deployment.name
        if name in names:
            yield f"{place}: metadata.name {name!r} is already that of {names[name]}; rename one"
        names.setdefault(name, place)
        for model in deployment.served_names:
            if model in served:
                yield (
                    f"{place}: model name {model!r} is already served by {served[model]};"
                    " give spec.model.name or its aliases another"
                )
            served.setdefault(model, place)


def sentences(error: ValidationError) -> Iterator[str]:
    """What is wrong with an LLMDeployment, a sentence for each field."""
    for problem in error.errors(include_url=False):
        path, kind = _path(problem["loc"]), problem["type"]
        if kind == "extra_forbidden":
            yield _unknown_field(problem["loc"])
        elif kind == "missing":
            yield f"{path} is missing"
        elif kind == "value_error":
            reason = problem["msg"].removeprefix("Value error, ")
            yield f"{path}: {reason}" if path else reason
        elif kind == "model_type":
            yield f"{path or 'the document'} must be a mapping, not {_show(problem['input'])}"
        else:
            what = re.sub(r"^\w+ should ", "must ", problem["msg"])
            yield f"{path} {what}, not {_show(problem['input'])}"


def _unknown_field(location: tuple[int | str, ...]) -> str:
    name, known = str(location[-1]), _fields_at(location[:-1])
    close = get_close_matches(name, known, n=1)
    remedy = f"did you mean {close[0]}?" if close else f"known are {', '.join(known)}"
    return f"{_path(location)} is not a known field; {remedy}"


def _fields_at(location: tuple[int | str, ...]) -> list[str]:
    """The fields of the part at `location`, under the names a file uses."""
    part: type[BaseModel] = LLMDeployment
    for step in location:
        for field in part.model_fields.values():
            if field.alias == step:
                part = next(t for t in (field.annotation, *_inner(field.annotation)) if _is_part(t))
    return [field.alias or "" for field in part.model_fields.values()]


def _inner(annotation: Any) -> Iterator[Any]:
    for argument in get_args(annotation):
        yield argument
        yield from _inner(argument)


def _is_part(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _path(location: tuple[int | str, ...]) -> str:
    path = ""
    for step in location:
        path += f"[{step}]" if isinstance(step, int) else f".{step}"
    return path.removeprefix(".")


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."
