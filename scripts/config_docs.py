"""Write docs/router-config.md from the models of the router's files: `make config-docs`."""

import ast
import inspect
import json
import sys
import textwrap
from enum import Enum, IntEnum
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydantic import BaseModel, TypeAdapter
from pydantic.fields import FieldInfo

from kvasir_router.admission.access_tokens.issuers import (
    Issuer,
    IssuerFile,
    Permission,
    TenantGrant,
)
from kvasir_router.admission.keys import ApiKey, KeyFile
from kvasir_router.discovery.file_schema import (
    FileCanary,
    FileConfig,
    FileMetrics,
    FileModel,
    FileReplica,
)
from kvasir_router.policy.registry import policy_names

PAGE = Path(__file__).parents[1] / "docs" / "router-config.md"
_HEAD = """\
<!-- Made by `make config-docs` from the models of kvasir_router; do not edit. -->
# The router's files

YAML, checked when it is read. An unknown field is an error. The router reads a changed file again
while it runs; a broken one is refused with a sentence in the log, and the last good one stays.
[guide.md](guide.md#the-router-alone) has examples.
"""
_SECTIONS: list[tuple[str, str, list[tuple[str, type[BaseModel]]]]] = [
    (
        "Discovery file",
        f"`kvasir router --config FILE`. Policies: `{'`, `'.join(policy_names())}`.",
        [
            ("The file", FileConfig),
            ("`models[]`", FileModel),
            ("`models[].replicas[]`", FileReplica),
            ("`models[].replicas[].metrics`", FileMetrics),
            ("`canaries[]`", FileCanary),
        ],
    ),
    (
        "Key file",
        "`kvasir router --keys-file FILE`; `kvasir keys create` writes it. An entry may hold the\n"
        "`key` itself (16 to 256 letters, digits, `-`, `_`, `.` or `~`) instead of its `hash`, "
        "where the\nfile is kept secret.",
        [("The file", KeyFile), ("`keys[]`", ApiKey)],
    ),
    (
        "Issuer file",
        "`kvasir router --issuers-file FILE`, or the chart's `accessTokens.issuers`.",
        [
            ("The file", IssuerFile),
            ("`issuers[]`", Issuer),
            ("`issuers[].tenants[]`", TenantGrant),
            ("`issuers[].permissions[]`", Permission),
        ],
    ),
]
_LIMITS = {
    "minLength": "not empty",
    "maxLength": "at most {} characters",
    "minimum": ">= {}",
    "maximum": "<= {}",
    "exclusiveMinimum": "> {}",
    "minItems": "at least {} of them",
    "maxItems": "at most {} of them",
    "minProperties": "at least {} of them",
    "maxProperties": "at most {} of them",
}


def page() -> str:
    """Return the whole page. Raises ValueError for a field without a docstring."""
    text = _HEAD
    for title, about, models in _SECTIONS:
        text += f"\n## {title}\n\n{about}\n"
        for name, model in models:
            text += (
                f"\n### {name}\n\n{inspect.cleandoc(model.__doc__)}\n\n"
                if model.__doc__
                else f"\n### {name}\n\n"
            )
            text += "| field | type | default | meaning |\n|---|---|---|---|\n"
            parents = [each for each in model.__mro__[1:] if issubclass(each, BaseModel)]
            meanings: dict[str, str] = {}
            for each in (*reversed(parents[: parents.index(BaseModel)]), model):
                meanings |= _docstrings(each)
            for field, info in model.model_fields.items():
                if field not in meanings:
                    raise ValueError(f"{model.__name__}.{field} has no docstring")
                text += _row(field, info, meanings[field])
    return text


def _docstrings(model: type[BaseModel]) -> dict[str, str]:
    """Return what stands under each field. Read here: pydantic would do it at every import."""
    [body] = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    assert isinstance(body, ast.ClassDef)  # noqa: S101 - it is the source of a class
    found = {}
    for field, text in pairwise(body.body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            match text:
                case ast.Expr(value=ast.Constant(value=str(said))):
                    found[field.target.id] = " ".join(said.split())
    return found


def _row(name: str, field: FieldInfo, meaning: str) -> str:
    schema = TypeAdapter(field.rebuild_annotation()).json_schema()
    if isinstance(default := field.get_default(), IntEnum):  # numbers inside, names in the file
        kind = ", ".join(f"`{each.name.lower()}`" for each in type(default))
    else:
        kind = _kind(schema, schema.get("$defs", {}))
    shown = "required" if field.is_required() else _plain(default)
    return f"| `{name}` | {kind} | {shown} | {meaning} |\n"


def _kind(schema: dict[str, Any], definitions: dict[str, Any]) -> str:
    """Return a JSON schema in words, with its limits."""
    if reference := schema.get("$ref"):
        schema = definitions[reference.rsplit("/", 1)[1]]
    if choices := schema.get("anyOf"):
        return " or ".join(_kind(each, definitions) for each in choices if each != {"type": "null"})
    if schema.get("properties"):
        return "object"
    if values := schema.get("enum"):
        return ", ".join(f"`{each}`" for each in values)
    kind = str(schema.get("type", "any"))
    if kind == "array":
        kind = f"list of {_kind(schema['items'], definitions)}"
    elif kind == "object":
        [values] = (
            schema.get("patternProperties") or {"": schema["additionalProperties"]}
        ).values()
        kind = f"map of names to {_kind(values, definitions) if values is not True else 'any'}"
    limits = [text.format(_number(schema[key])) for key, text in _LIMITS.items() if key in schema]
    return ", ".join([kind, *limits])


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else str(value)


def _plain(value: object) -> str:
    """Return a default as the file would have it; nothing for null."""
    if value is None:
        return ""
    if isinstance(value, IntEnum):
        return f"`{value.name.lower()}`"
    return f"`{json.dumps(value.value if isinstance(value, Enum) else value)}`"


if __name__ == "__main__":
    if sys.argv[1:] != ["--check"]:
        PAGE.write_text(page())
    elif PAGE.read_text() != page():
        sys.exit(f"{PAGE.name} is not what the models say: make config-docs")
