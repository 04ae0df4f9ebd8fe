"""Compare a live object with its manifest, to skip writes that change nothing."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

from kvasir.kube.objects import Object
from kvasir_operator.objects import short_hash

APPLIED = "kvasir.dev/applied"
"""Annotation: a hash of the manifest. It shows what was taken out of a manifest, which a live
object that still has it does not."""

_KEYS = ("mountPath", "uid", "name", "type", "conditionType")
_AMOUNTS = ("limits", "requests", "sizeLimit")
_UNITS = {
    "": Decimal(1),
    **{unit: Decimal(1000) ** power for power, unit in enumerate("kMGTPE", 1)},
    **{f"{unit}i": Decimal(1024) ** power for power, unit in enumerate("KMGTPE", 1)},
    **{unit: Decimal(1000) ** -power for power, unit in enumerate("mun", 1)},
}
_AMOUNT = re.compile(r"([0-9.]+)([a-zA-Z]*)")


def stamped(manifest: Object) -> Object:
    """Return `manifest` with the annotation that stands for all of it."""
    metadata = manifest["metadata"]
    annotations = {**metadata.get("annotations", {}), APPLIED: short_hash(manifest, 16)}
    return {**manifest, "metadata": {**metadata, "annotations": annotations}}


def matches_live(wanted: Any, live: Any) -> bool:
    """Tell if everything in `wanted` is so in `live`, which may have more: defaults, and fields
    that others own. Lists of named things are compared by name, all others whole."""
    if isinstance(wanted, dict):
        if live is None:
            return not wanted  # an API server leaves out what is empty
        return isinstance(live, dict) and all(
            (_is_same_amount if key in _AMOUNTS else matches_live)(value, live.get(key))
            for key, value in wanted.items()
        )
    if not isinstance(wanted, list):
        return bool(wanted == live) or (live is None and wanted in ("", False, 0))
    if not wanted:
        return not live
    if not isinstance(live, list):
        return False
    key = _key_of(wanted)
    if key is None:
        return len(wanted) == len(live) and all(map(matches_live, wanted, live))
    by_key = {each.get(key): each for each in live if isinstance(each, dict)}
    return all(each[key] in by_key and matches_live(each, by_key[each[key]]) for each in wanted)


def first_difference(wanted: Any, live: Any, path: str = "") -> str:
    """Return where `live` first fails to match `wanted`, as a.b[name].c; "" if nowhere."""
    if matches_live(wanted, live):
        return ""
    if isinstance(wanted, dict) and isinstance(live, dict):
        parts = [
            (f"{path}.{key}".strip("."), it, live.get(key))
            for key, it in wanted.items()
            if key not in _AMOUNTS or not _is_same_amount(it, live.get(key))
        ]
    elif isinstance(wanted, list) and isinstance(live, list) and (key := _key_of(wanted)):
        by_key = {each.get(key): each for each in live if isinstance(each, dict)}
        parts = [(f"{path}[{it[key]}]", it, by_key.get(it[key])) for it in wanted]
    else:
        return path
    return next((found for at, it, its in parts if (found := first_difference(it, its, at))), path)


def _is_same_amount(wanted: Any, live: Any) -> bool:
    """Compare as `matches_live`, for quantities: an API server writes 1000m as 1."""
    if isinstance(wanted, dict):
        return isinstance(live, dict) and all(
            _is_same_amount(value, live.get(key)) for key, value in wanted.items()
        )
    return live is not None and _amount(str(wanted)) == _amount(str(live))


def _amount(text: str) -> Decimal | str:
    match = _AMOUNT.fullmatch(text)
    if match is None or match[2] not in _UNITS:
        return text
    return Decimal(match[1]) * _UNITS[match[2]]


def _key_of(items: list[Any]) -> str | None:
    """Return the field by which a list's items are told apart; None where there is none."""
    if not all(isinstance(each, dict) for each in items):
        return None
    return next((key for key in _KEYS if all(key in each for each in items)), None)
