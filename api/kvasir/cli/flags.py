"""Flags of a command, made of the fields of its settings: each is declared once, in a dataclass."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from typing import Annotated, Any, get_args, get_type_hints


@dataclass(frozen=True)
class Flag:
    """Command-line flag of a setting, as --help shows it."""

    help: str
    panel: str
    """Group of flags in --help."""
    name: str = ""
    """Name of the flag where it differs from the field's."""
    type: Any = None
    """Type of the flag's value where it differs from the field's; its default is None then."""
    parse: Callable[[Any], Any] | None = None
    """Function from the flag's value to the field's."""
    switch: str = ""
    """All that is written for it, where that is not typer's `--name` or `--name/--no-name`."""
    extra: Mapping[str, Any] | None = None
    """Bounds and others of typer's arguments."""


def flag(
    default: Any,
    help_: str,
    panel: str,
    name: str = "",
    *,
    type: Any = None,  # noqa: A002 - as in Flag
    parse: Callable[[Any], Any] | None = None,
    switch: str = "",
    shown: bool = True,
    **extra: Any,
) -> Any:
    """Return the dataclass field of a setting that has a flag; `shown`: in the settings' repr."""
    metadata = {"flag": Flag(help_, panel, name, type, parse, switch, extra)}
    if isinstance(default, dict):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, repr=shown, metadata=metadata)


def group(settings: type[Any], **flags: Flag) -> Any:
    """Return the field of a part of the settings; `flags`: those of fields that declare none."""
    return field(default_factory=settings, metadata={"flags": flags})


def flags_of(*settings: Any) -> dict[str, tuple[Any, Field[Any], Flag]]:
    """Return class, field and flag of each setting that has one, by the flag's name; parts'
    settings included."""
    return {found[2].name or found[1].name: found for each in settings for found in _flags(each)}


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


def takes_flags_of(
    *settings: type[Any], panels: Sequence[str]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command an option for each field of `settings` with a flag, instead of **flags, in the
    order of `panels`."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        made = [_parameter(name, *found) for name, found in flags_of(*settings).items()]
        together = [*(p.replace(kind=p.KEYWORD_ONLY) for p in own), *made]
        together.sort(key=lambda p: _panel_number(p, panels))
        command.__signature__ = signature.replace(parameters=together)  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in together} | {"return": None}
        return command

    return decorate


def _flags(
    settings: Any, given: Mapping[str, Flag] | None = None
) -> Iterator[tuple[Any, Field[Any], Flag]]:
    for each, found in _declared(settings, given):
        if isinstance(found, Flag):
            yield settings, each, found
        elif found is not None:
            yield from _flags(each.default_factory, found)


def _declared(
    settings: Any, given: Mapping[str, Flag] | None
) -> Iterator[tuple[Field[Any], Flag | Mapping[str, Flag] | None]]:
    """Return each field with its flag, or with the flags of the part that it is."""
    for each in fields(settings):
        found = (given or {}).get(each.name) or each.metadata.get("flag")
        yield each, found or each.metadata.get("flags")


def _parameter(name: str, owner: Any, field: Any, flag: Flag) -> inspect.Parameter:
    import typer  # the settings themselves need none of it

    shape, default = get_type_hints(owner)[field.name], field.default
    if flag.type is not None:
        shape, default = flag.type, None
    switches = (flag.switch,) if flag.switch else ()
    option: Any = typer.Option(
        *switches, help=flag.help, rich_help_panel=flag.panel, **(flag.extra or {})
    )
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[shape, option]
    )


def _panel_number(parameter: inspect.Parameter, panels: Sequence[str]) -> int:
    """Return the place of the parameter's panel; that of an argument is before all."""
    panel = get_args(parameter.annotation)[1].rich_help_panel
    return -1 if panel is None else panels.index(panel)
