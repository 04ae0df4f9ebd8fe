"""Values of the flags of `kvasir operator`, checked."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import typer

from kvasir.quantity import parse_bytes
from kvasir.secret_file import SecretError
from kvasir.wire.fleet_secret_file import FleetSecretFile
from kvasir_operator.departures.signs import ENDS, LEAVES

DEFAULT_POD_SECURITY: dict[str, Any] = {
    "runAsUser": 65532,
    "runAsGroup": 65532,
    "fsGroup": 65532,
    "fsGroupChangePolicy": "OnRootMismatch",
    "seccompProfile": {"type": "RuntimeDefault"},
}

OPTIONAL_KINDS = (
    "horizontalpodautoscalers",
    "podmonitors",
    "prometheusrules",
    "resourceclaimtemplates",
    "scaledobjects",
)
"""Plurals of the kinds that autoscaling, monitoring and claims of GPUs use."""

_NAME = r"[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?"
_SIGN = re.compile(rf"(([a-z0-9.-]+/)?{_NAME})(=(True|False|Unknown))?")
_MAX_SIGN = 316
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def several(given: list[str] | None) -> tuple[str, ...]:
    """Return the values of a flag that may be repeated."""
    return tuple(given or ())


def leaving_signs(given: list[str] | None) -> frozenset[str]:
    """Return the signs of a node that is drained."""
    return _signs(given, LEAVES, "--node-leaves")


def ending_signs(given: list[str] | None) -> frozenset[str]:
    """Return the signs of a node that ends at once."""
    return _signs(given, ENDS, "--node-ends")


def _signs(given: list[str] | None, default: Iterable[str], flag: str) -> frozenset[str]:
    """Return taints' keys and conditions; the default without a flag, none for the value `none`."""
    for each in given or ():
        if not _SIGN.fullmatch(each) or len(each) > _MAX_SIGN:
            raise typer.BadParameter(
                f"{flag} {each[:100]!r} is neither a taint's key, such as"
                " karpenter.sh/disrupted, nor a condition, such as GPUMissing=True"
            )
    return frozenset(default if not given else (each for each in given if each != "none"))


def optional_kinds(given: list[str] | None) -> tuple[str, ...]:
    """Return the plurals of optional kinds; all without a flag, none for the value `none`."""
    if not given:
        return OPTIONAL_KINDS
    for each in given:
        if each not in (*OPTIONAL_KINDS, "none"):
            choices = ", ".join((*OPTIONAL_KINDS, "none"))
            raise typer.BadParameter(f"--optional-kind {each!r} is none of {choices}")
    return tuple(each for each in given if each != "none")


def secret(file: Path | None) -> FleetSecretFile:
    """Return the fleet secret in a file; without one there is none."""
    try:
        return FleetSecretFile("" if file is None else FleetSecretFile.read_text(file), file)
    except SecretError as error:
        raise typer.BadParameter(str(error)) from None


def profiles(given: list[str] | None) -> dict[str, int]:
    """Return bytes of memory by GPU product."""
    return dict(_profile(each) for each in given or ())


def variables(given: list[str] | None) -> dict[str, str]:
    """Return environment variables' values by name."""
    return dict(_variable(each) for each in given or ())


def pod_security(text: str | None) -> dict[str, Any]:
    """Return a securityContext of pods without runAsNonRoot."""
    if text is None:
        return DEFAULT_POD_SECURITY
    try:
        found = json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"--pod-security is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise typer.BadParameter('--pod-security is no JSON object, such as {"runAsUser": 1000}')
    if found.get("runAsUser") == 0 or found.pop("runAsNonRoot", True) is not True:
        raise typer.BadParameter("--pod-security asks for root; name another user, or none")
    return found


def class_settings(text: str | None) -> dict[str, Any] | None:
    """Return the settings of a class as an API server takes them; None = they are the users'."""
    if text is None:
        return None
    from pydantic import ValidationError  # which --help does without

    from kvasir import validation
    from kvasir.resource.class_defaults.defaults_spec import ClassSettings

    try:
        found = ClassSettings.model_validate(json.loads(text))
    except json.JSONDecodeError as error:
        raise typer.BadParameter(f"--class-settings is no JSON: {error}") from None
    except ValidationError as error:
        told = "; ".join(validation.sentences(error, ClassSettings, whole="the JSON"))
        raise typer.BadParameter(f"--class-settings: {told}") from None
    return found.model_dump(by_alias=True, exclude_unset=True)


def _profile(text: str) -> tuple[str, int]:
    name, equals, memory = text.partition("=")
    if not name or not equals:
        raise typer.BadParameter(f"--resource-profile {text!r} is not of the form PRODUCT=MEMORY")
    try:
        return name, parse_bytes(memory)
    except ValueError as error:
        raise typer.BadParameter(f"--resource-profile {text!r}: {error}") from None


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not _VARIABLE.fullmatch(name):
        raise typer.BadParameter(f"--download-env {text!r} is not of the form NAME=VALUE")
    return name, value
