"""The `kvasir` command: a group whose commands are imported only when called."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, ClassVar

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException

from kvasir.cli.commands import (
    COMMANDS,
    CommandInfo,
    CommandUnavailableError,
    absence,
    load_command,
    stub,
)
from kvasir.cli.errors import EXIT_INTERRUPTED

_EPILOG = """\b
Examples:
  kvasir up -f manifests/tiny.yaml       a model, two engines and a router, here
  kvasir chat                            talk to it, from another terminal
  kvasir plan --model ./Llama-3.1-8B --gpu l40s

\b
Environment: KVASIR_URL, KVASIR_API_KEY, KVASIR_LOG_LEVEL, KVASIR_LOG_FORMAT, HF_TOKEN,
             HF_HOME
Completion in your shell: kvasir --install-completion"""


class LazyGroup(TyperGroup):
    """Lists commands by their one-line help and imports one when it is resolved."""

    infos: ClassVar[Mapping[str, CommandInfo]] = {info.name: info for info in COMMANDS}
    """The commands, by name."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands.update({name: stub(info) for name, info in self.infos.items()})

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        if name in self.infos:
            try:
                command = load_command(self.infos[str(name)])
            except CommandUnavailableError as error:
                # Completion of an absent command's options has nothing to offer.
                if not ctx.resilient_parsing:
                    ctx.fail(str(error))
        return name, command, rest

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            # Parts load most of themselves only when they run.
            cause = absence(self.infos[str(ctx.invoked_subcommand)], error)
            if cause is error:
                raise
            ctx.fail(str(cause))


def make_app(group: type[LazyGroup], name: str, about: str, epilog: str) -> typer.Typer:
    """Return the command line of a group, which prints its help where no command is given."""
    made = typer.Typer(
        cls=group,
        name=name,
        help=about,
        epilog=epilog,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @made.callback(invoke_without_command=True)
    def root(ctx: typer.Context) -> None:
        if ctx.invoked_subcommand is None:
            print(ctx.get_help())

    return made


app = make_app(
    LazyGroup,
    "kvasir",
    "Serves large language models: on one machine, or on Kubernetes.",
    _EPILOG,
)


def run(app: typer.Typer = app, name: str = "kvasir") -> int:
    """Run the command line of `app`, which users know as `name`; its exit status. Raises
    KeyboardInterrupt and BrokenPipeError."""
    try:
        status = typer.main.get_command(app).main(prog_name=name, standalone_mode=False)
    except TyperException as error:
        _report(error)
        return error.exit_code
    except typer.Abort:
        return EXIT_INTERRUPTED
    return status if isinstance(status, int) else 0


def _report(error: TyperException) -> None:
    """Print one sentence on stderr, with the command whose help explains it; that help, where a
    command was left out."""
    if type(error).__name__ == "NoArgsIsHelpError":
        print(error.format_message(), file=sys.stderr)
        return
    message = " ".join(_message(error).split())
    context = getattr(error, "ctx", None)
    hint = f" (see {context.command_path} --help)" if context is not None else ""
    print(f"kvasir: {message}{hint}", file=sys.stderr)


def _message(error: TyperException) -> str:
    """Typer's, and what was given where it leaves that out."""
    message = error.format_message()
    if error.__cause__ is None or not isinstance(error, typer.BadParameter):
        return message
    from pydantic import ValidationError

    from kvasir.validation import reason_of

    if not isinstance(error.__cause__, ValidationError):
        return message
    problem = error.__cause__.errors(include_url=False)[0]
    reason = reason_of(problem)
    if problem["type"] != "value_error":
        reason += f", not {problem['input']!r}"
    return message.replace(error.message, reason)
