"""The CustomResourceDefinitions, made from the models: `python -m kvasir.resource.crd_writer`.

API servers take a narrower schema than pydantic writes: no references, no null, no titles
(https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from kvasir.resource import labels
from kvasir.resource.deployment_status import Status
from kvasir.resource.field_types import QUANTITY_PATTERN
from kvasir.resource.llmdeployment import KIND, LLMDeployment
from kvasir.resource.ownership import deployment_class, model_name
from kvasir.resource.strict_model import RULES, StrictModel, rule

MAX_NAME = 52
"""Names of children and of the pods' controllers are longer by a suffix, and end at 63."""

_DROPPED = ("title", "$defs", "additionalProperties")
_ROOT_RULES = (
    rule(
        f"self.metadata.name.size() <= {MAX_NAME}",
        f"metadata.name is longer than {MAX_NAME} characters; Services and Pods get longer names"
        " made from it",
    ),
    rule(
        "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
        "metadata.name must begin with a letter and have only a-z, 0-9 and -, as Services do",
    ),
    rule(
        "has(self.spec.model.name) || !has(self.spec.model.aliases)"
        " || !(self.metadata.name in self.spec.model.aliases)",
        "the deployment's own name is among the aliases too; remove it there",
    ),
)
_CLASS_RULES = (
    rule(
        "self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')"
        " && self.metadata.name.size() <= 63",
        "metadata.name of a class must be a DNS label: a-z, 0-9 and -, at most 63 characters",
    ),
)
_Column = tuple[str, str, str, int]
_COLUMNS: tuple[_Column, ...] = (
    ("Model", "string", ".spec.model.uri", 0),
    ("Ready", "string", '.status.conditions[?(@.type=="Ready")].status', 0),
    ("Phase", "string", ".status.phase", 0),
    ("Serving", "integer", ".status.readyReplicas", 0),
    ("Replicas", "integer", ".spec.replicas", 0),
    ("Reason", "string", '.status.conditions[?(@.type=="Ready")].reason', 0),
    ("Age", "date", ".metadata.creationTimestamp", 0),
    ("GPUs", "string", ".status.gpus", 1),
    ("TP", "string", ".spec.parallelism.tensor", 1),
    ("Cache", "string", ".status.cache.phase", 1),
    ("Engine", "string", ".spec.engine.type", 1),
    ("Class", "string", ".status.className", 1),
    ("URL", "string", ".status.url", 1),
    ("Message", "string", '.status.conditions[?(@.type=="Ready")].message', 1),
)

_CLASS_COLUMNS: tuple[_Column, ...] = (
    ("Controller", "string", ".spec.controller", 0),
    (
        "Default",
        "string",
        f".metadata.annotations.{deployment_class.IS_DEFAULT.replace('.', chr(92) + '.')}",
        0,
    ),
    ("Age", "date", ".metadata.creationTimestamp", 0),
)
_NAME_COLUMNS: tuple[_Column, ...] = (
    ("Model", "string", ".spec.name", 0),
    ("Class", "string", ".spec.className", 0),
    ("Namespace", "string", ".spec.claimedBy.namespace", 0),
    ("Deployment", "string", ".spec.claimedBy.name", 0),
    ("Age", "date", ".metadata.creationTimestamp", 0),
)


def crd() -> dict[str, Any]:
    """The CustomResourceDefinition of LLMDeployments."""
    version = _version(_root(), _COLUMNS)
    version["subresources"] = {
        "status": {},
        "scale": {
            "specReplicasPath": ".spec.replicas",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        },
    }
    names = {"shortNames": ["llmd"], "categories": ["all", "kvasir"]}
    return _definition(KIND, labels.PLURAL, "Namespaced", names, version)


def class_crd() -> dict[str, Any]:
    """The CustomResourceDefinition of LLMDeploymentClasses."""
    root = _cluster_root(
        "A release that serves LLMDeployments.", deployment_class.ClassSpec, _CLASS_RULES
    )
    profile = root["properties"]["spec"]["properties"]["profiles"]["items"]["properties"]
    _judge_by_patterns(profile["resources"])
    names = {"shortNames": ["llmdclass"], "categories": ["kvasir"]}
    version = _version(root, _CLASS_COLUMNS)
    return _definition(deployment_class.KIND, deployment_class.PLURAL, "Cluster", names, version)


def model_name_crd() -> dict[str, Any]:
    """The CustomResourceDefinition of ModelNames."""
    description = "The claim of one LLMDeployment to one model name, made by the operator."
    root = _cluster_root(description, model_name.ModelNameSpec, ())
    version = _version(root, _NAME_COLUMNS)
    return _definition(
        model_name.KIND, model_name.PLURAL, "Cluster", {"categories": ["kvasir"]}, version
    )


def all_crds() -> tuple[dict[str, Any], ...]:
    """Every CustomResourceDefinition that an operator and a router need."""
    return crd(), class_crd(), model_name_crd()


def _definition(
    kind: str, plural: str, scope: str, names: Mapping[str, Any], version: Mapping[str, Any]
) -> dict[str, Any]:
    own = {"kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": kind.lower()}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{labels.GROUP}"},
        "spec": {
            "group": labels.GROUP,
            "scope": scope,
            "names": {**own, **names},
            "versions": [version],
        },
    }


def _version(root: Mapping[str, Any], columns: tuple[_Column, ...]) -> dict[str, Any]:
    return {
        "name": labels.VERSION,
        "served": True,
        "storage": True,
        "additionalPrinterColumns": [
            {"name": name, "type": type_, "jsonPath": path, "priority": priority}
            for name, type_, path, priority in columns
        ],
        "schema": {"openAPIV3Schema": root},
    }


def _cluster_root(
    description: str, spec: type[StrictModel], root_rules: tuple[dict[str, str], ...]
) -> dict[str, Any]:
    schema = spec.model_json_schema(by_alias=True)
    root: dict[str, Any] = {
        "type": "object",
        "description": description,
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": _structural(schema, schema.get("$defs", {})),
        },
    }
    if root_rules:
        root[RULES] = list(root_rules)
    return root


def _root() -> dict[str, Any]:
    schema = LLMDeployment.model_json_schema(by_alias=True)
    definitions = schema["$defs"]
    return {
        "type": "object",
        "description": schema["description"],
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": _structural(definitions["Spec"], definitions),
            "status": _status(),
        },
        RULES: list(_ROOT_RULES),
    }


def _status() -> dict[str, Any]:
    schema = Status.model_json_schema(by_alias=True)
    return _without_defaults(_structural(schema, schema["$defs"]))


def _structural(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """`schema` as a structural one: references resolved, null left out."""
    found = _resolved(dict(schema), definitions)
    kept = {key: value for key, value in found.items() if key not in _DROPPED}
    if "properties" in found:
        kept["properties"] = {
            name: _structural(part, definitions) for name, part in found["properties"].items()
        }
    elif found.get("type") == "object" and isinstance(values := _values(found), Mapping):
        kept["additionalProperties"] = _structural(values, definitions)
        kept.pop("patternProperties", None)
        kept.pop("propertyNames", None)
    if "items" in found:
        kept["items"] = _structural(found["items"], definitions)
    if "const" in kept:
        kept["enum"] = [kept.pop("const")]
    if kept.get("type") == "integer":
        kept["format"] = "int64"
    _set_default(kept)
    if "description" in kept:
        kept["description"] = " ".join(kept["description"].split())
    return kept


def _resolved(schema: dict[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema with the reference, or the one choice that is not null, in place of
    itself."""
    if "$ref" in schema:
        target = definitions[schema.pop("$ref").rpartition("/")[2]]
        return _resolved({**target, **schema}, definitions)
    if "anyOf" in schema:
        (choice,) = (each for each in schema.pop("anyOf") if each.get("type") != "null")
        return _resolved({**choice, **schema}, definitions)
    return schema


def _values(schema: Mapping[str, Any]) -> Any:
    """The schema of a map's values. What pydantic says of its keys has no place here."""
    if patterns := schema.get("patternProperties"):
        return next(iter(patterns.values()))
    return schema.get("additionalProperties")


def _set_default(schema: dict[str, Any]) -> None:
    """Scalars keep theirs; an object's is empty, so that its fields' own apply, but for one with
    rules, which must hold for the default as it is written; lists have none."""
    default, fields = schema.get("default"), schema.get("properties")
    if schema.get("type") == "object" and default is not None and fields:
        own = {name: part["default"] for name, part in fields.items() if "default" in part}
        schema["default"] = own if RULES in schema else {}
    elif default is None or isinstance(default, (list, dict)):
        schema.pop("default", None)


def _without_defaults(schema: dict[str, Any]) -> dict[str, Any]:
    schema.pop("default", None)
    for part in (*schema.get("properties", {}).values(), schema.get("items")):
        if part is not None:
            _without_defaults(part)
    return schema


def _judge_by_patterns(schema: dict[str, Any]) -> None:
    """Put patterns in the place of rules on amounts.

    Kubernetes 1.32 estimates a rule's cost by the longest list and takes any number or string for
    as long as a request: rules on the amounts of 32 profiles exceed what it allows. Operators
    judge classes by the models, so what only rules can tell is told by them.
    """
    schema.pop(RULES, None)
    if "x-kubernetes-int-or-string" in schema:
        schema |= {"pattern": QUANTITY_PATTERN, "minimum": 0}
    values = schema.get("additionalProperties")
    for part in (*schema.get("properties", {}).values(), *([values] if values else ())):
        _judge_by_patterns(part)


class _Dumper(yaml.SafeDumper):
    """Write what occurs twice twice: charts are easier read without references."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def as_yaml(definition: Mapping[str, Any] | None = None) -> str:
    """A definition as the chart has it; all of them, one document each, if none is given."""
    if definition is None:
        return "---\n".join(map(as_yaml, all_crds()))
    text = yaml.dump(definition, Dumper=_Dumper, sort_keys=False, width=100, allow_unicode=True)
    return f"# Made by `make crd` from kvasir.resource; do not edit.\n{text}"


def main() -> None:
    """Write a file for each definition into the directory that is given, or all to standard
    output."""
    if len(sys.argv) == 1:
        sys.stdout.write(as_yaml())
        return
    for each in all_crds():
        file = Path(sys.argv[1]) / f"{each['spec']['names']['plural']}.yaml"
        file.write_text(as_yaml(each), encoding="utf-8")


if __name__ == "__main__":
    main()
