"""Twenty JSON schemas of the kinds that requests bring: calls, records, settings, trees."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]
STRING: Schema = {"type": "string"}
INTEGER: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}
FLAG: Schema = {"type": "boolean"}
NULL: Schema = {"type": "null"}


def record(*optional: str, **properties: Any) -> Schema:
    """An object of these properties and no others; all but `optional` are required."""
    return {
        "type": "object",
        "properties": properties,
        "required": [name for name in properties if name not in optional],
        "additionalProperties": False,
    }


def some(items: Any, **bounds: int) -> Schema:
    """An array."""
    return {"type": "array", "items": items, **bounds}


def one(*values: Any) -> Schema:
    """One of these values."""
    return {"enum": list(values)}


def either(*schemas: Schema) -> Schema:
    """A value of one of these schemas."""
    return {"anyOf": list(schemas)}


ADDRESS = record(
    "line2",
    line1=STRING,
    line2=STRING,
    city=STRING,
    postcode={"type": "string", "pattern": "[A-Z0-9]{3,8}"},
    country={"type": "string", "minLength": 2, "maxLength": 2},
)
PERSON = record(
    "email",
    name=STRING,
    age={"type": "integer", "minimum": 0, "maximum": 150},
    email={"type": "string", "format": "email"},
)
STATES = one(*(f"state_{at:02}" for at in range(60)))

SCHEMAS: dict[str, Schema] = {
    "weather call": record("unit", city=STRING, unit=one("celsius", "fahrenheit")),
    "search call": record(
        "limit", query=STRING, limit={"type": "integer", "minimum": 1, "maximum": 100}
    ),
    "flight call": record(
        "return_date",
        origin={"type": "string", "pattern": "[A-Z]{3}"},
        destination={"type": "string", "pattern": "[A-Z]{3}"},
        date={"type": "string", "format": "date"},
        return_date={"type": "string", "format": "date"},
        passengers={"type": "integer", "minimum": 1, "maximum": 9},
    ),
    "person": PERSON,
    "people": record(people=some(PERSON, minItems=1)),
    "order": record(
        id={"type": "string", "format": "uuid"},
        customer=PERSON,
        ship_to=ADDRESS,
        lines=some(record(sku=STRING, quantity=INTEGER, price=NUMBER), minItems=1, maxItems=50),
    ),
    "classification": record(label=one("positive", "negative", "neutral"), confidence=NUMBER),
    "large enum": record(state=STATES, other=STATES),
    "reasoned answer": record(
        steps=some(record(explanation=STRING, output=STRING)), final_answer=STRING
    ),
    "entities": record(
        entities=some(
            record(
                text=STRING,
                kind=one("person", "place", "organisation", "date", "other"),
                start=INTEGER,
                end=INTEGER,
            )
        )
    ),
    "any JSON": {"type": "object"},
    "key to number": {"type": "object", "additionalProperties": NUMBER},
    "union": either(
        record(kind=one("text"), text=STRING),
        record(kind=one("image"), url={"type": "string", "format": "uri"}, width=INTEGER),
        record(kind=one("list"), items=some(STRING)),
    ),
    "tree": {
        "$ref": "#/$defs/node",
        "$defs": {"node": record(value=INTEGER, children=some({"$ref": "#/$defs/node"}))},
    },
    "linked list": {
        "$ref": "#/$defs/cell",
        "$defs": {"cell": record(head=STRING, tail=either({"$ref": "#/$defs/cell"}, NULL))},
    },
    "bounded strings": record(
        title={"type": "string", "minLength": 5, "maxLength": 80},
        summary={"type": "string", "maxLength": 400},
        tags=some({"type": "string", "maxLength": 20}, minItems=1, maxItems=8),
    ),
    "formats": record(
        at={"type": "string", "format": "date-time"},
        host={"type": "string", "format": "hostname"},
        ip={"type": "string", "format": "ipv4"},
        mail={"type": "string", "format": "email"},
    ),
    "configuration": record(
        "debug",
        "limits",
        debug=FLAG,
        workers={"type": "integer", "minimum": 1, "maximum": 64},
        limits=record(cpu=NUMBER, memory={"type": "string", "pattern": "[0-9]+(Mi|Gi)"}),
        env={"type": "object", "additionalProperties": STRING},
    ),
    "forty optional fields": record(
        *(f"field_{at}" for at in range(40)),
        **{f"field_{at}": (STRING, INTEGER, FLAG)[at % 3] for at in range(40)},
    ),
    "matrix": record(
        rows=some(some(NUMBER, minItems=3, maxItems=3), minItems=3, maxItems=3), name=STRING
    ),
}
