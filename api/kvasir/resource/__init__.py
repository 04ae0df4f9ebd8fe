"""LLMDeployment `kvasir.dev/v1alpha1`: its models, its files and the command it means."""

from kvasir.resource.deployment_files import DeploymentFileError, load_file, parse_documents
from kvasir.resource.engines.engine_args import engine_command
from kvasir.resource.llmdeployment import LLMDeployment

__all__ = [
    "DeploymentFileError",
    "LLMDeployment",
    "engine_command",
    "load_file",
    "parse_documents",
]
