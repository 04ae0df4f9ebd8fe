from __future__ import annotations

import typer
from typer.core import TyperOption

from kvasir_engine.server.process.serve_command import app


def test_every_flag_has_a_help_a_panel_and_its_parameters_name() -> None:
    command = typer.main.get_command(app)
    options = [each for each in command.params if isinstance(each, TyperOption)]
    assert len(options) > 30
    for option in options:
        assert option.help, option.name
        assert option.help.endswith("."), option.name
        assert option.rich_help_panel, option.name
        assert option.opts[0] == "--" + str(option.name).replace("_", "-")


def test_no_flag_repeats_another() -> None:
    command = typer.main.get_command(app)
    names = [name for each in command.params for name in (*each.opts, *each.secondary_opts)]
    assert len(names) == len(set(names))
