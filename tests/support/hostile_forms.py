"""Forms of outputs that are large, deep, endless or costly, with what becomes of them."""

from __future__ import annotations

import itertools
import json
from typing import Any

MANY = 10_000
TEXT: dict[str, Any] = {"type": "string"}
WORDS = [f"value {at}" for at in range(5000)]


def record(**properties: Any) -> dict[str, Any]:
    """An object with these properties."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def doubled(levels: int) -> dict[str, Any]:
    """A schema that is twice as large with each level that a reference goes down."""
    names = [f"a{at}" for at in range(levels + 1)]
    defs: dict[str, Any] = {
        name: record(x={"$ref": f"#/$defs/{then}"}, y={"$ref": f"#/$defs/{then}"})
        for name, then in itertools.pairwise(names)
    }
    return {"$ref": "#/$defs/a0", "$defs": {**defs, names[-1]: TEXT}}


def rules(levels: int, arrow: str, first: str) -> str:
    """A grammar with one text, which is twice as long with each level."""
    made = [f"r{at} {arrow} r{at + 1} r{at + 1}" for at in range(levels)]
    return "\n".join([f"{first} {arrow} r0", *made, f'r{levels} {arrow} "a"'])


def tag(schema: Any) -> dict[str, Any]:
    """A structural tag that is a JSON value."""
    return {"type": "structural_tag", "format": {"type": "json_schema", "json_schema": schema}}


def tags(count: int, content: dict[str, Any]) -> dict[str, Any]:
    """A structural tag of many kinds."""
    made = [{"begin": f"<t{at}>", "content": content, "end": "</t>"} for at in range(count)]
    form = {"type": "triggered_tags", "triggers": ["<t"], "tags": made}
    return {"type": "structural_tag", "format": form}


OPTIONAL = {f"k{at}": TEXT for at in range(900)}
REFUSED: dict[str, dict[str, Any]] = {
    "10,000 levels": {"json": '{"items":' * MANY + "{}" + "}" * MANY},
    "1 MB of values": {"json": {"enum": ["x" * 100] * MANY}},
    "10,000 branches": {"json": {"anyOf": [{"const": at} for at in range(6000)]}},
    "branches that are merged": {
        "json": {"required": [f"r{at}" for at in range(5000)], "anyOf": [True] * 1900}
    },
    "two choices at once": {
        "json": {
            "anyOf": [{"minLength": at} for at in range(1500)],
            "oneOf": [{"maxLength": at} for at in range(1500)],
        }
    },
    "branches that are compared": {
        "json": {"oneOf": [record(k={"const": at}) for at in range(900)]}
    },
    "a reference to itself": {"json": {"$ref": "#"}},
    "no number": {"json": '{"type":"integer","minimum":NaN}'},
    "optional names, counted": {
        "json": {**record(), "properties": OPTIONAL, "minProperties": 450, "maxProperties": 451}
    },
    "a large step": {"json": {"type": "integer", "multipleOf": 99_991}},
    "20,000 groups": {"regex": "(" * 20_000 + "a" + ")" * 20_000},
    "a rule that is itself": {"grammar": "root ::= root"},
    "20,000 brackets": {"grammar": "root ::= " + "(" * 20_000 + '"a"' + ")" * 20_000},
    "Lark without an end": {"lark": 'start: "a" start'},
    "Lark that doubles": {"lark": rules(60, ":", "start")},
    "Lark's brackets": {"lark": "start: " + "(" * 20_000 + '"a"' + ")" * 20_000},
    "a deep tag": {
        "structural_tag": '{"type":"structural_tag","format":'
        + '{"type":"sequence","elements":[' * 3000
        + '{"type":"any_text"}'
        + "]}" * 3000
        + "}"
    },
    "a deep schema in a tag": {
        "structural_tag": tag(json.loads('{"items":' * 500 + "{}" + "}" * 500))
    },
    "a tag with optional names, counted": {
        "structural_tag": tag({**record(), "properties": OPTIONAL, "minProperties": 450})
    },
}
"""Each is a 400."""
BOUNDED: dict[str, dict[str, Any]] = {
    "references that double": {"json": doubled(60)},
    "a billion items": {"json": {"type": "array", "items": TEXT, "minItems": 10**9}},
    "a billion characters": {"json": {**TEXT, "minLength": 10**9}},
    "5,000 values": {"json": {"enum": WORDS}},
    "1,900 values apart": {"json": {"oneOf": [{"const": at} for at in range(1900)]}},
    "1,900 optional names": {"json": {"properties": {f"k{at}": TEXT for at in range(1900)}}},
    "stars within stars": {"json": {**TEXT, "pattern": "^((a|b)*)*c$"}},
    "a thousand behind a letter": {"json": {**TEXT, "pattern": "^(.*a.{1000})$"}},
    "counts within counts": {"json": {**TEXT, "pattern": "^((a{1,100}){1,100}){1,100}$"}},
    "5,000 words": {"json": {**TEXT, "pattern": f"^({'|'.join(WORDS)})$"}},
    "two to the 24": {"regex": "(a|b)*a(a|b){24}"},
    "a million": {"regex": "a{1000000}"},
    "left recursion": {"grammar": 'root ::= root "a" | "b"'},
    "every way to divide": {"grammar": 'root ::= root root | "a"'},
    "rules that double": {"grammar": rules(60, "::=", "root")},
    "repeats within repeats": {"grammar": 'root ::= ((("a" | "b"){1,1000}){1,1000}){1,1000}'},
    "1,000 tags": {"structural_tag": tags(1000, {"type": "any_text"})},
    "300 schemas in tags": {
        "structural_tag": tags(300, {"type": "json_schema", "json_schema": record(a=TEXT)})
    },
    "what is and is not": {
        "lark": 'start: T\nT: /(?s:.*)/ & ~(/(?s:.*)/ "a" /(?s:.{200})/)',
    },
}
"""These cost little, whatever they look like: taken, and cut by their length."""
