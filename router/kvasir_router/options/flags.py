"""The flags of `kvasir router`, made of the settings' fields."""

import inspect
from collections.abc import Callable
from functools import cache
from typing import Annotated, Any, get_type_hints

import typer

from kvasir_router.options.flag import PANELS, Flag, flags_of


def takes_flags_of(settings: type[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command an option for each field of `settings` with a flag, instead of **flags."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        found = sorted(flags_of(settings), key=lambda each: PANELS.index(each[2].panel))
        hints = cache(get_type_hints)
        made = [_parameter(flag, field, hints(owner)) for owner, field, flag in found]
        together = [*(p.replace(kind=p.KEYWORD_ONLY) for p in own), *made]
        command.__signature__ = signature.replace(parameters=together)  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in together} | {"return": None}
        return command

    return decorate


def _parameter(flag: Flag, field: Any, types: dict[str, Any]) -> inspect.Parameter:
    name = flag.name or field.name
    switch = name.replace("_", "-")
    shape, default = types[field.name], field.default
    if flag.type is not None:
        shape, default = flag.type, None
    switches = f"--{switch}/--no-{switch}" if shape is bool else f"--{switch}"
    option: Any = typer.Option(
        switches, help=flag.help, rich_help_panel=flag.panel, **(flag.extra or {})
    )
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[shape, option]
    )
