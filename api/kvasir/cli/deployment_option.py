"""The -f option of the commands that read LLMDeployments."""

from __future__ import annotations

from pathlib import Path

from kvasir.cli.errors import EXIT_USAGE, fail
from kvasir.resource import DeploymentFileError, LLMDeployment, load_file


def read_deployments(path: Path) -> list[LLMDeployment]:
    """The deployments in the file at `path`; ends the command when it has a problem."""
    try:
        return load_file(path)
    except DeploymentFileError as error:
        fail(error, EXIT_USAGE)
