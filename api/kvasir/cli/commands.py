"""Table of the commands that exist; a command's code is loaded only when it is called."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import typer
from typer.core import TyperCommand

GROUP = "kvasir.commands"
"""The entry point group under which each installed part brings its commands."""


COMPLETION_OPTIONS = ("install_completion", "show_completion")
"""Parameters that Typer adds to a command that installs its completion."""


@dataclass(frozen=True, slots=True)
class CommandInfo:
    """Entry of a command in `kvasir --help`, shown without importing the command."""

    name: str
    help: str
    extra: str | None = None
    """The extra of the `kvasir` distribution that brings what the command imports."""
    target: str | None = None
    """module:attribute of a command of this package; others are found by entry point."""
    group: str = GROUP
    """Entry point group in which such others are found."""


COMMANDS = (
    CommandInfo(
        "up",
        "Serve the models of an LLMDeployment file: engines and a router.",
        target="kvasir.cli.up:app",
    ),
    CommandInfo("chat", "Talk to a model in the terminal.", target="kvasir.cli.chat:app"),
    CommandInfo(
        "plan",
        "Tell whether a model fits on a GPU, and how long its context can be.",
        target="kvasir.cli.plan:app",
    ),
    CommandInfo(
        "download",
        "Download a model into a directory that engines share.",
        target="kvasir.cli.download:app",
    ),
    CommandInfo(
        "status",
        "Show a cluster's models: pods, cache, conditions, and why one is not ready.",
        target="kvasir.cli.status:app",
    ),
    CommandInfo("serve", "Run one engine: a model behind the OpenAI API.", "engine"),
    CommandInfo("bench", "Measure an engine's steps on this machine, in-process.", "engine"),
    CommandInfo("router", "Run the router in front of engines.", "router"),
    CommandInfo("operator", "Run the operator of a Kubernetes cluster.", "operator"),
    CommandInfo("keys", "Make, list and take back a router's API keys.", "router"),
    CommandInfo(
        "version",
        "Print the versions of Kvasir and of what it runs on.",
        target="kvasir.cli.version:app",
    ),
)


class CommandUnavailableError(Exception):
    """A command is known but its part is not installed; the message says how to install it."""


def load_command(info: CommandInfo) -> Any:
    """The command itself. Raises CommandUnavailableError."""
    entry = _entry_point(info)
    if entry is None:
        raise _unavailable(info)
    try:
        app = entry.load()
    except ModuleNotFoundError as error:
        cause = absence(info, error)
        if cause is error:
            raise
        raise cause from error
    if not isinstance(app, typer.Typer):
        return app
    command = typer.main.get_command(app)
    command.name = info.name
    # Typer gives each app its own completion options; only the root's install a working script.
    command.params = [p for p in command.params if p.name not in COMPLETION_OPTIONS]
    return command


def absence(info: CommandInfo, error: ModuleNotFoundError) -> Exception:
    """Return the error to report for `error` raised by the command `info`: its extra is missing.

    A module of Kvasir itself is never left out by an extra, so then the error is a fault and stays.
    """
    if info.extra is None or error.name is None or error.name.startswith("kvasir"):
        return error
    return _unavailable(info, missing=error.name)


def stub(info: CommandInfo) -> TyperCommand:
    """Stand for the command in the list of commands and in its completion."""
    needs = f" [kvasir[{info.extra}]]" if info.extra else ""
    return TyperCommand(info.name, short_help=info.help + needs, rich_markup_mode=None)


def _entry_point(info: CommandInfo) -> EntryPoint | None:
    if info.target is not None:
        return EntryPoint(info.name, info.target, info.group)
    return next(iter(entry_points(group=info.group, name=info.name)), None)


def _unavailable(info: CommandInfo, missing: str | None = None) -> CommandUnavailableError:
    cause = f" ({missing} is missing)" if missing else ""
    wanted = f"kvasir[{info.extra}]" if info.extra else "kvasir"
    return CommandUnavailableError(
        f"{info.name} is not installed{cause}; install with pip install '{wanted}'"
    )
