"""The OpenAPI document of endpoints whose bodies msgspec decodes.

It is made of the handlers' docstrings, the bodies' structs and a YAML file of examples.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

_SCHEMAS = "#/components/schemas/"


@dataclass(frozen=True)
class Endpoint:
    """One route: its handler's docstring describes it, `body` decodes what it is sent."""

    path: str
    handler: Callable[[Request], Awaitable[Response]]
    methods: tuple[str, ...] = ("GET",)
    body: type[msgspec.Struct] | None = None


@dataclass(frozen=True)
class Documentation:
    """Contents of an application's document beside the endpoints themselves."""

    title: str
    file: Path
    """YAML: `paths` with each route's examples and answers, `errors`, `schemas`, `fields`."""
    model: Callable[[], str]
    """The name that examples put where a model is named."""
    fields: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Schema fields to add to each field of the bodies, by name, beside the file's `fields`."""
    bearer: bool = False
    """True where clients need an API key."""
    root_path: str = ""
    """Prefix of all paths for clients of a proxy."""


def describe(
    app: FastAPI, endpoints: Sequence[Endpoint], documentation: Documentation
) -> dict[str, Any]:
    """Return the OpenAPI document of `app`, whose routes are `endpoints`."""
    import yaml  # nobody but this document's readers needs it

    text = yaml.safe_load(documentation.file.read_text())
    bodies = list(dict.fromkeys(each.body for each in endpoints if each.body is not None))
    schemas, components = msgspec.json.schema_components(bodies, ref_template=_SCHEMAS + "{name}")
    _describe_fields(components, {**text["fields"], **documentation.fields})
    components.update(text["schemas"])
    document = get_openapi(title=app.title, version=app.version, routes=_shown(app))
    document["components"] = {"schemas": components}
    writer = _Writer(text, dict(zip(bodies, schemas, strict=True)), documentation.model())
    for each in endpoints:
        operations = document["paths"][re.sub(r":\w+}", "}", each.path)]
        for operation in operations.values():
            writer.complete(operation, each)
    if documentation.root_path:
        document["servers"] = [{"url": documentation.root_path}]
    if documentation.bearer:
        document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"key": []}]
    return document


def _schema_of(example: Any) -> dict[str, Any]:
    """Return the schema of what looks like `example`: an object has at least its fields."""
    if isinstance(example, dict):
        properties = {name: _schema_of(value) for name, value in example.items()}
        return {"type": "object", "properties": properties, "required": list(example)}
    if isinstance(example, list):
        return {"type": "array", "items": _schema_of(example[0]) if example else {}}
    for kind, name in ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string")):
        if isinstance(example, kind):
            return {"type": name}
    return {}


def _shown(app: FastAPI) -> list[APIRoute]:
    """The documented routes, one a method; HEAD goes without saying."""
    shown = []
    for route in app.routes:
        if isinstance(route, APIRoute):
            for method in sorted((route.methods or set()) - {"HEAD"}):
                made = copy.copy(route)
                made.methods = {method}
                made.operation_id = re.sub(r"\W+", "_", f"{method}{route.path_format}").strip("_")
                shown.append(made)
    return shown


def _describe_fields(components: dict[str, Any], fields: Mapping[str, Any]) -> None:
    for component in components.values():
        for name, schema in component.get("properties", {}).items():
            schema.update(fields.get(name, {}))
            if schema.get("default", ...) is None:  # left out and null are the same
                del schema["default"]


class _Writer:
    """Completes FastAPI's description of an operation."""

    def __init__(self, text: dict[str, Any], schemas: dict[Any, Any], model: str) -> None:
        self._text = text
        self._schemas = schemas
        self._model = model

    def complete(self, operation: dict[str, Any], endpoint: Endpoint) -> None:
        """Add parameters, body, answers and errors."""
        text = self._text["paths"][endpoint.path]
        parameters = [
            {"name": name, "in": "path", "required": True, **self._string(self._model)}
            for name in re.findall(r"{(\w+)", endpoint.path)
        ] + text.get("parameters", [])
        if parameters:
            operation["parameters"] = parameters
        if endpoint.body is not None:
            operation["requestBody"] = self._body(endpoint.body, text["requests"])
        answers = {
            str(status): {
                "description": HTTPStatus(status).phrase,
                "content": self._contents(contents, text.get("nullable", ())),
            }
            for status, contents in text["answers"].items()
        }
        schema = {"$ref": _SCHEMAS + text.get("error", "Error")}
        content = {"application/json": {"schema": schema}}
        for status in text.get("errors", ()):
            meaning = self._text["errors"][status]
            answers[str(status)] = {"description": meaning, "content": content}
        operation["responses"] = answers

    def _body(self, body: type[msgspec.Struct], requests: dict[str, Any]) -> dict[str, Any]:
        named = {"model": self._model} if "model" in body.__struct_fields__ else {}
        examples = {name: {"value": {**named, **value}} for name, value in requests.items()}
        media = {"schema": self._schemas[body], "examples": examples}
        return {"required": True, "content": {"application/json": media}}

    def _contents(self, contents: dict[str, Any], nullable: Iterable[str]) -> dict[str, Any]:
        made = {
            media: {"schema": _schema_of(example), "example": example}
            for media, example in contents.items()
        }
        for name in nullable:
            field = made["application/json"]["schema"]["properties"][name]
            field["type"] = [field["type"], "null"]
        return made

    def _string(self, example: str) -> dict[str, Any]:
        return {"schema": {"type": "string"}, "example": example}
