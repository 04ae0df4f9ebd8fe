"""A setting and its flag of `kvasir router`, declared together."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any

PANELS = ROUTING, ENGINES, FAILURES, KEYS, WAITING, CLIENTS, TLS, WATCHING, STOPPING = (
    "Routing",
    "Engines",
    "Failures",
    "Keys",
    "Waiting",
    "Clients",
    "TLS",
    "Observation",
    "Stopping",
)
"""Groups of flags, in the order of --help."""


@dataclass(frozen=True)
class Flag:
    """Command-line flag of a setting, as --help shows it."""

    help: str
    panel: str
    name: str = ""
    """Name of the flag where it differs from the field's."""
    type: Any = None
    """Type of the flag's value where it differs from the field's; its default is None then."""
    parse: Callable[[Any], Any] | None = None
    """Function from the flag's value to the field's."""
    extra: Mapping[str, Any] | None = None
    """Bounds and others of typer's arguments."""


def flag(
    default: Any,
    panel: str,
    help_: str,
    name: str = "",
    *,
    type: Any = None,  # noqa: A002 - as in Flag
    parse: Callable[[Any], Any] | None = None,
    shown: bool = True,
    **extra: Any,
) -> Any:
    """Return the dataclass field of a setting that has a flag; `shown`: in the settings' repr."""
    metadata = {"flag": Flag(help_, panel, name, type, parse, extra)}
    if isinstance(default, dict):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, repr=shown, metadata=metadata)


def group(settings: type[Any], **flags: Flag) -> Any:
    """Return the field of a part of the settings; `flags`: those of fields that declare none."""
    return field(default_factory=settings, metadata={"flags": flags})


def flags_of(
    settings: Any, given: Mapping[str, Flag] | None = None
) -> Iterator[tuple[Any, Field[Any], Flag]]:
    """Return class, field and flag of each setting that has one, parts' settings included."""
    for each, found in _declared(settings, given):
        if isinstance(found, Flag):
            yield settings, each, found
        elif found is not None:
            yield from flags_of(each.default_factory, found)


def settings_from(
    settings: Any, values: Mapping[str, Any], given: Mapping[str, Flag] | None = None
) -> Any:
    """Return the settings with these values, by name of the flag."""
    made = {}
    for each, found in _declared(settings, given):
        if isinstance(found, Flag):
            value = values[found.name or each.name]
            made[each.name] = value if found.parse is None else found.parse(value)
        elif found is not None:
            made[each.name] = settings_from(each.default_factory, values, found)
    return settings(**made)


def _declared(
    settings: Any, given: Mapping[str, Flag] | None
) -> Iterator[tuple[Field[Any], Flag | Mapping[str, Flag] | None]]:
    """Return each field with its flag, or with the flags of the part that it is."""
    for each in fields(settings):
        found = (given or {}).get(each.name) or each.metadata.get("flag")
        yield each, found or each.metadata.get("flags")
