"""The flags of `kvasir serve`, made of the settings' fields."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any, get_type_hints

import typer

from kvasir_engine.flag import Flag, flags_of


def option(name: str, help_: str, panel: str, **extra: Any) -> Any:
    """Return the typer option of the flag `name`."""
    return typer.Option(name, help=help_, rich_help_panel=panel, **extra)


def takes_flags_of(*settings: type[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command an option for each field of `settings` with a flag, instead of **flags."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        made = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=field.default,
                annotation=Annotated[get_type_hints(owner)[field.name], _option(name, field, flag)],
            )
            for name, (owner, field, flag) in flags_of(*settings).items()
        ]
        argument, *others = [p.replace(kind=p.KEYWORD_ONLY) for p in own]
        together = [argument, *made, *others]
        command.__signature__ = signature.replace(parameters=together)  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in together} | {"return": None}
        return command

    return decorate


def _option(name: str, field: Any, flag: Flag) -> Any:
    switch = name.replace("_", "-")
    # What is on by default needs a flag that turns it off.
    both = f"--{switch}/--no-{switch}" if field.default is True else f"--{switch}"
    return option(both, flag.help, flag.panel, **(flag.bounds or {}))
