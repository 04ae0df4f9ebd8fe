"""Checked reading of the fields of a `quantization_config`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from kvasir.models.config_error import ConfigError

_SHOWN_CHARS = 60
_MAX_GROUP = 1 << 20


class ConfigFields:
    """One object of a `quantization_config`; a field that is null counts as absent.

    Every method raises ConfigError for a value that is not supported, with the field, the value
    and what is.
    """

    def __init__(self, fields: Mapping[str, Any], path: str = "quantization_config") -> None:
        self._fields = fields
        self._path = path

    def get(self, *names: str) -> Any:
        """Return the value of the first of these names that has one; the others are older."""
        return next((self._fields[n] for n in names if self._fields.get(n) is not None), None)

    def error(self, name: str, supported: str) -> ConfigError:
        """Return the error of a field whose value is not supported."""
        shown = json.dumps(self._fields.get(name), default=str)[:_SHOWN_CHARS]
        return ConfigError(
            f"config field '{self._path}.{name}': {shown} is not supported, only {supported}"
        )

    def choose(self, name: str, *choices: str, default: str | None = None) -> str:
        """Return the field, one of `choices` in whatever case it is written."""
        value = self.get(name)
        value = default if value is None else value
        if isinstance(value, str) and value.lower() in choices:
            return value.lower()
        raise self.error(name, _join(map(json.dumps, choices)))

    def flag(self, name: str, *, default: bool) -> bool:
        """Return the field, true or false."""
        value = self.get(name)
        if value is not None and not isinstance(value, bool):
            raise self.error(name, "true or false")
        return default if value is None else value

    def require(self, name: str, *values: object, default: object = None) -> None:
        """Raise ConfigError unless the field is one of `values`, booleans and numbers apart."""
        value = self.get(name)
        value = default if value is None else value
        if not any(value == each and type(value) is type(each) for each in values):
            raise self.error(name, _join(map(json.dumps, values)))

    def refuse(self, *names: str) -> None:
        """Raise ConfigError if one of these fields has a value that is neither empty nor false."""
        for name in names:
            if self.get(name):
                raise self.error(name, "null")

    def group_size(self, *names: str, default: int | None = None) -> int:
        """Return the inputs that share a scale; 0 where all inputs of an output do (-1)."""
        value = self.get(*names)
        value = default if value is None else value
        if isinstance(value, int) and not isinstance(value, bool):
            if value == -1:
                return 0
            if 0 < value <= _MAX_GROUP:
                return value
        name = next((each for each in names if self.get(each) is not None), names[0])
        raise self.error(name, "a number of inputs, or -1 for all of them")

    def part(self, name: str) -> ConfigFields | None:
        """Return an object in this one, or None where it is absent."""
        value = self.get(name)
        if value is not None and not isinstance(value, Mapping):
            raise self.error(name, "an object")
        return None if value is None else ConfigFields(value, f"{self._path}.{name}")

    def parts(self, name: str) -> list[ConfigFields]:
        """Return the objects in an object of objects."""
        value = self.get(name)
        if not isinstance(value, Mapping) or not value:
            raise self.error(name, "an object of groups")
        if not all(isinstance(each, Mapping) for each in value.values()):
            raise self.error(name, "an object of groups")
        return [ConfigFields(each, f"{self._path}.{name}.{key}") for key, each in value.items()]

    def modules(self, *names: str) -> tuple[str, ...]:
        """Return a list of modules in the notations of `Quantization.ignored`.

        The first of `names` that has a value is read. `*` stands for any characters, and a module
        stands for all that is in it.
        """
        name = next((each for each in names if self.get(each) is not None), names[0])
        value = self.get(name) or []
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise self.error(name, "a list of modules' names")
        return self.check_patterns(name, tuple(_module(each) for each in value if each))

    def check_patterns(self, name: str, modules: tuple[str, ...]) -> tuple[str, ...]:
        """Return `modules`, which the field `name` lists, if those that are patterns compile."""
        try:
            for each in modules:
                if each.startswith("re:"):
                    re.compile(each[3:])
        except (re.error, RecursionError, OverflowError):
            raise self.error(name, "names, and patterns that compile") from None
        return modules


def _module(name: str) -> str:
    if name.startswith("re:") or "*" not in name:
        return name
    return "re:" + ".*".join(map(re.escape, name.split("*"))) + r"(\..*)?$"


def _join(words: Any) -> str:
    *some, last = words
    return f"{', '.join(some)} or {last}" if some else str(last)
