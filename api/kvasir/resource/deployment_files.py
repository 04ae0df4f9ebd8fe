"""Files of LLMDeployments: several YAML documents, every problem named in one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from kvasir import validation
from kvasir.resource.llmdeployment import API_VERSION, KIND, LLMDeployment
from kvasir.resource.yaml_documents import YAMLDocumentError, read_documents

MAX_FILE_BYTES = 1024 * 1024


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
        for model in deployment.claimed_names:
            if model in served:
                yield (
                    f"{place}: model name {model!r} is already served by {served[model]};"
                    " give spec.model.name or its aliases another"
                )
            served.setdefault(model, place)


def sentences(error: ValidationError) -> Iterator[str]:
    """Yield the errors of an LLMDeployment, a sentence for each field."""
    return validation.sentences(error, LLMDeployment, whole="the document")
