"""`spec.adapters`: LoRA adapters that are served beside their model, and where they lie."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from kvasir.models.cache.layout import model_directory
from kvasir.resource import labels
from kvasir.resource.field_types import ServedName, SourceURI
from kvasir.resource.model_spec import Sourced, source_rule
from kvasir.resource.strict_model import StrictModel, list_map, rule, rules

MAX_ADAPTERS = 32
"""Adapters of one model: each is a name that is claimed, a directory and a load a replica."""


_NO_DIRECTORY = (
    "uri of an adapter must be hf://ORG/NAME[@REVISION], s3://BUCKET/PREFIX,"
    " oci://REGISTRY/NAME[:TAG], https://HOST/PATH, pvc://CLAIM/DIRECTORY or file:///DIRECTORY"
)


class LoraAdapter(StrictModel, Sourced):
    """One LoRA adapter of the model."""

    model_config = rules(
        rule(
            source_rule("hf", "s3", "oci", "https", "pvc"),
            _NO_DIRECTORY,
        ),
    )

    name: ServedName
    """Name that clients put into `model`. It is claimed as the model's own names are."""

    uri: Annotated[SourceURI, Field(min_length=1)]
    """URI of the directory with adapter_config.json: downloaded into the model's cache from
    `hf://`, `s3://`, `oci://` or `https://`, on the model's own volume with `pvc://CLAIM/DIRECTORY`,
    or inside engine.image with `file:///DIRECTORY`."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.parsed_uri.scheme == "builtin":
            raise ValueError(f"{_NO_DIRECTORY}, not {self.uri!r}")
        return self

    @property
    def directory(self) -> str:
        """Its directory as an engine on a cluster sees it."""
        uri = self.parsed_uri
        if uri.scheme == "file":
            return uri.name
        return f"{labels.MODELS_DIRECTORY}/{model_directory(uri)}".removesuffix("/.")


LoraAdapters = Annotated[
    list[LoraAdapter],
    Field(
        max_length=MAX_ADAPTERS,
        json_schema_extra=list_map("name"),
    ),
]
"""`spec.adapters`."""
