"""`status.adapters`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from kvasir.resource.lora.lora_adapter import MAX_ADAPTERS
from kvasir.resource.strict_model import StrictModel, list_map

MAX_REFUSAL = 256
"""Characters that are kept of what an engine says."""


class LoraAdapterStatus(StrictModel):
    """One adapter of the spec, as it stands."""

    name: Annotated[str, Field(max_length=253)]
    """The adapter's name."""

    ready_replicas: Annotated[int, Field(ge=0)] = 0
    """Engines that hold it."""

    message: Annotated[str, Field(max_length=MAX_REFUSAL + 128)] = ""
    """Sentence on what it waits for, or why an engine refused it; empty while every engine holds
    it."""


LoraAdapterStatuses = Annotated[
    list[LoraAdapterStatus],
    Field(
        max_length=MAX_ADAPTERS,
        json_schema_extra=list_map("name"),
    ),
]
"""`status.adapters`."""
