"""Conversion of files and command lines, whatever platform they are of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import yaml

from kvasir.cli.kubectl.convert.draft import ConvertError, Draft, EngineChoice
from kvasir.cli.kubectl.convert.from_command_line import convert_command
from kvasir.cli.kubectl.convert.from_kserve import convert_kserve
from kvasir.cli.kubectl.convert.from_kubeai import convert_kubeai
from kvasir.cli.kubectl.convert.from_production_stack import convert_production_stack
from kvasir.resource.yaml_documents import YAMLDocumentError, read_documents

_KNOWN = (
    "an InferenceService (serving.kserve.io/v1beta1), a Model (kubeai.org/v1) or values of vLLM's"
    " production-stack"
)


def convert_text(text: str, source: str, engine: EngineChoice) -> list[Draft]:
    """Return the finished drafts of all documents in `text`, at least one; `source` names it in
    errors. Raises ConvertError."""
    try:
        documents = [each for each in read_documents(text) if each is not None]
    except YAMLDocumentError as error:
        raise ConvertError(f"{source}: {error}") from None
    drafts = [draft for each in documents for draft in _convert(each, source, engine)]
    if not drafts:
        raise ConvertError(f"{source} holds nothing to convert; write {_KNOWN}")
    for draft in drafts:
        draft.finish()
    return drafts


def convert_words(words: Sequence[str], engine: EngineChoice, name: str | None = None) -> Draft:
    """Return the finished draft of a command line. Raises ConvertError."""
    draft = convert_command(words, engine, name)
    draft.finish()
    return draft


def _convert(document: Any, source: str, engine: EngineChoice) -> Iterator[Draft]:
    if not isinstance(document, dict):
        raise ConvertError(f"{source}: a document is no mapping; write {_KNOWN}")
    kind, version = document.get("kind"), str(document.get("apiVersion"))
    try:
        if kind == "InferenceService" and version.startswith("serving.kserve.io/"):
            yield convert_kserve(document, engine)
        elif kind == "Model" and version.startswith("kubeai.org/"):
            yield convert_kubeai(document, engine)
        elif "servingEngineSpec" in document:
            yield from convert_production_stack(document, engine)
        else:
            found = f"{kind} of {version}" if kind else "it has no kind"
            raise ConvertError(f"{source}: {found} cannot be converted; write {_KNOWN}")
    except (AttributeError, TypeError) as error:
        # A field has another type than the platform's schema says
        raise ConvertError(
            f"{source}: {kind or 'values'}: a field has a wrong type: {error}"
        ) from None


def as_yaml(drafts: Sequence[Draft]) -> str:
    """Return the LLMDeployments as YAML documents."""
    texts = [
        yaml.safe_dump(draft.document, sort_keys=False, allow_unicode=True, width=100)
        for draft in drafts
    ]
    return "---\n".join(texts)
