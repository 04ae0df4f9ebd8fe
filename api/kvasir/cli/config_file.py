"""Options of a command from a YAML file: the callback of its `--config`."""

from __future__ import annotations

import json
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import typer

from kvasir.resource.yaml_documents import YAMLDocumentError, read_documents


def read_options(context: typer.Context, file: Path | None) -> Path | None:
    """Let what `file` says stand for options that neither command line nor environment give.

    Its keys are the options' names, with - or _. The option has to be eager: the others are looked
    up after it. Raises typer.BadParameter with file, key and remedy.
    """
    if file is None:
        return None
    params = {each.name: each for each in context.command.params if each.name != "config"}
    found = {}
    for key, value in _read(file).items():
        name = key.replace("-", "_")
        if name not in params:
            near = get_close_matches(name, [each for each in params if each], n=1)
            hint = f"; did you mean {near[0].replace('_', '-')!r}?" if near else ""
            raise typer.BadParameter(f"{file}: {key!r} is no option{hint}")
        found[name] = _value(file, key, value, params[name])
    context.default_map = {**(context.default_map or {}), **found}
    return file


def _read(file: Path) -> dict[str, Any]:
    try:
        documents = read_documents(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, YAMLDocumentError) as error:
        raise typer.BadParameter(f"{file} cannot be read: {error}") from None
    if len(documents) != 1 or not isinstance(documents[0], dict):
        raise typer.BadParameter(f"{file} must hold one mapping of options, as `port: 8001`")
    return documents[0]


def _value(file: Path, key: str, value: Any, param: Any) -> Any:
    values = value if isinstance(value, list) else [value]
    repeated = bool(getattr(param, "multiple", False))
    if isinstance(value, list) and not repeated:
        raise typer.BadParameter(f"{file}: {key!r} takes one value, not a list")
    if isinstance(value, dict) and param.metavar == "JSON":
        return json.dumps(value)
    if any(isinstance(each, dict | list) or each is None for each in values):
        raise typer.BadParameter(f"{file}: {key!r} takes text, numbers, true or false")
    return values if repeated else value
