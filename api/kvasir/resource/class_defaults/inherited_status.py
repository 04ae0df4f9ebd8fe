"""`status.inherited`: the values that an LLMDeployment has from its class."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from kvasir.resource.strict_model import StrictModel

_Name = Annotated[str, Field(max_length=256)]


class InheritedField(StrictModel):
    """One value that the class gives."""

    field: _Name
    """Field of this resource or, where it has no such field, of the class."""

    value: Annotated[str, Field(max_length=1024)]
    """The value."""

    source: _Name
    """Part of the class that has it: defaults, or profile and its name."""


class InheritedStatus(StrictModel):
    """Values that the LLMDeploymentClass gives where the spec says nothing."""

    profile: _Name = ""
    """Profile of the class that is used."""

    fields: Annotated[list[InheritedField], Field(max_length=160)] = []
    """The values, each with its field and where it comes from."""
