"""Types of an LLMDeployment's fields: strings and numbers with their bounds."""

from __future__ import annotations

import re
from ipaddress import ip_network
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainValidator,
    StringConstraints,
    WithJsonSchema,
)

from kvasir.model_uri import ModelURIError, parse_model_uri
from kvasir.quantity import parse_bytes
from kvasir.resource.strict_model import RULES, rule

RESERVED_ENV = ("KVASIR_FLEET_SECRET", "KVASIR_CACHE")

SOURCES = ("hf", "s3", "pvc", "oci", "https", "builtin", "file")
"""Schemes of models that can be served."""

QUANTITY_PATTERN = r"^[0-9]{1,15}(\.[0-9]{1,6})?(m|k|Ki|M|Mi|G|Gi|T|Ti)?$"
"""Amounts of a resource, for example 500m, 4 or 16Gi."""

_QUANTITY = re.compile(QUANTITY_PATTERN)

_PERCENT = re.compile(r"([1-9]?[0-9]|100)%")


def _byte_count(value: object) -> object:
    return parse_bytes(value) if isinstance(value, str) else value


def _whole(value: object) -> object:
    return int(value) if isinstance(value, str) and value.isascii() and value.isdigit() else value


def _quantity(value: object) -> object:
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if isinstance(text, str) and not _QUANTITY.fullmatch(text):
        raise ValueError(f"{text[:80]!r} is not a quantity; write for example 500m, 4 or 16Gi")
    return text


def _tensor(value: object) -> object:
    whole = isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 64
    if not whole and value != "auto":
        raise ValueError(f"{str(value)[:80]!r} is no number of GPUs from 1 to 64, and not auto")
    return value


def _pods_or_percent(value: object) -> object:
    whole = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 64
    if not whole and not (isinstance(value, str) and _PERCENT.fullmatch(value)):
        raise ValueError(f"{str(value)[:80]!r} is no number from 0 to 64, and no share such as 25%")
    return value


def _model_uri(text: str) -> str:
    if not text:
        return text  # of a model that servers of others serve, as an API server fills it in
    try:
        scheme = parse_model_uri(text).scheme
    except ModelURIError as error:
        raise ValueError(str(error)) from None
    if scheme not in SOURCES:
        known = ", ".join(f"{name}://" for name in SOURCES)
        raise ValueError(f"model URI {text!r}: {scheme}:// cannot be served; use one of {known}")
    return text


def _cidr(text: str) -> str:
    try:
        ip_network(text)
    except ValueError:
        raise ValueError(f"{text[:80]!r} is no CIDR; write for example 192.0.2.0/24") from None
    return text


def int_or_string(**bounds: Any) -> WithJsonSchema:
    """The schema of a number that may be written as a string."""
    return WithJsonSchema({"x-kubernetes-int-or-string": True, **bounds})


_CEL_QUANTITY = "isQuantity(string(self)) && !string(self).startsWith('-')"

DNSLabel = Annotated[
    str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63)
]
ObjectName = Annotated[
    str, StringConstraints(pattern=r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$", max_length=253)
]
"""Name of another object of the cluster."""
CIDR = Annotated[
    str,
    StringConstraints(pattern=r"^[0-9a-fA-F:.]+/[0-9]{1,3}$", max_length=49),
    AfterValidator(_cidr),
    WithJsonSchema(
        {
            "type": "string",
            "maxLength": 49,
            RULES: [
                rule(
                    "isCIDR(self) && cidr(self) == cidr(self).masked()",
                    "write addresses as a CIDR without host bits, for example 192.0.2.0/24",
                )
            ],
        }
    ),
]
"""Block of addresses."""
ServedName = Annotated[
    str,
    StringConstraints(pattern=r"^[A-Za-z0-9]([-A-Za-z0-9._:/]*[A-Za-z0-9])?$", max_length=253),
]
Revision = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_./-]*$", max_length=128)
]
HubId = Annotated[
    str,
    StringConstraints(
        pattern=r"^[A-Za-z0-9_][-A-Za-z0-9_.]*(/[A-Za-z0-9_][-A-Za-z0-9_.]*)?"
        r"(@[A-Za-z0-9_][-A-Za-z0-9_./]*)?$",
        max_length=200,
    ),
]
"""Repository on the Hugging Face Hub."""
EnvName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=253)]
SecretKey = Annotated[str, StringConstraints(pattern=r"^[-._a-zA-Z0-9]+$", max_length=253)]
SourceURI = Annotated[str, StringConstraints(max_length=1024), AfterValidator(_model_uri)]
Image = Annotated[
    str, StringConstraints(pattern=r"^[a-zA-Z0-9][-a-zA-Z0-9._:/@]*$", max_length=512)
]
ByteCount = Annotated[
    int,
    BeforeValidator(_byte_count),
    Field(ge=1, le=2**53),
    int_or_string(
        **{
            RULES: [
                rule(
                    f"{_CEL_QUANTITY} && quantity(string(self)).isGreaterThan(quantity('0'))",
                    "write an amount of memory, for example 24Gi",
                )
            ]
        }
    ),
]
Quantity = Annotated[
    str,
    BeforeValidator(_quantity),
    int_or_string(
        maxLength=32,
        **{RULES: [rule(_CEL_QUANTITY, "write a quantity, for example 500m, 4 or 16Gi")]},
    ),
]
GPUCount = Annotated[
    int,
    BeforeValidator(_whole),
    Field(ge=0, le=64),
    int_or_string(
        maxLength=4,
        **{
            RULES: [
                rule(
                    "string(self).matches('^[0-9]{1,2}$') && int(string(self)) <= 64",
                    "write a whole number of GPUs from 0 to 64",
                )
            ]
        },
    ),
]
TensorSize = Annotated[
    int | Literal["auto"],
    PlainValidator(_tensor),
    int_or_string(
        **{
            RULES: [
                rule(
                    "type(self) == string ? self == 'auto' : (self >= 1 && self <= 64)",
                    "write a number of GPUs from 1 to 64, or auto",
                )
            ]
        }
    ),
]
PodsOrPercent = Annotated[
    int | str,
    PlainValidator(_pods_or_percent),
    int_or_string(
        maxLength=4,
        **{
            RULES: [
                rule(
                    "type(self) == string ? self.matches('^([1-9]?[0-9]|100)%$')"
                    " : (self >= 0 && self <= 64)",
                    "write a number from 0 to 64, or a share of the replicas, for example 25%",
                )
            ]
        },
    ),
]
"""Pods, or a share of the replicas as 25%."""
Text = Annotated[str, StringConstraints(max_length=32768)]
LabelKey = Annotated[
    str,
    StringConstraints(
        pattern=r"^([a-z0-9]([-.a-z0-9]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$",
        max_length=317,
    ),
]
LabelValue = Annotated[
    str, StringConstraints(pattern=r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$", max_length=63)
]
