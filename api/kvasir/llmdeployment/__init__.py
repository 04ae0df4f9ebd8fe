"""LLMDeployment `kvasir.dev/v1alpha1`: its models, its files and the command it means."""

from kvasir.llmdeployment.command import engine_command
from kvasir.llmdeployment.files import DeploymentFileError, load_file, parse_documents
from kvasir.llmdeployment.models import LLMDeployment

__all__ = [
    "DeploymentFileError",
    "LLMDeployment",
    "engine_command",
    "load_file",
    "parse_documents",
]
