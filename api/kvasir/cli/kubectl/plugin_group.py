"""The command `kubectl kvasir`: a group whose commands are imported only when called."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from kvasir.cli.commands import COMPLETION_OPTIONS, CommandInfo
from kvasir.cli.kubectl.plugin_commands import PLUGIN_COMMANDS
from kvasir.cli.root import LazyGroup, make_app

_EPILOG = """\b
Examples:
  kubectl kvasir status -A
  kubectl kvasir why qwen3-8b -n models

\b
The cluster is that of KUBECONFIG, ~/.kube/config, or --kubeconfig and --context. Exit status: 0
done, 1 failed or a model is not ready, 2 wrong use, 130 interrupted."""


class PluginGroup(LazyGroup):
    """The plugin's commands."""

    infos: ClassVar[Mapping[str, CommandInfo]] = {info.name: info for info in PLUGIN_COMMANDS}

    def get_params(self, ctx: Any) -> list[Any]:
        # kubectl completes, so the options that install a script would do nothing
        params = super().get_params(ctx)
        return [each for each in params if each.name not in COMPLETION_OPTIONS]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        if command is not None and command.epilog:
            # Of commands that `kvasir` has as well
            command.epilog = command.epilog.replace("\n  kvasir ", "\n  kubectl kvasir ")
        return name, command, rest


app = make_app(
    PluginGroup,
    "kubectl-kvasir",
    "Looks at and acts on the models of a cluster that Kvasir serves.",
    _EPILOG,
)
