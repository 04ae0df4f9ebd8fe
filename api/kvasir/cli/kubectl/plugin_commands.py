"""Table of the commands of `kubectl kvasir`."""

from __future__ import annotations

from kvasir.cli.commands import CommandInfo

_HERE = "kvasir.cli.kubectl"

PLUGIN_GROUP = "kvasir.kubectl_commands"
"""Entry point group of the commands that other packages bring."""

PLUGIN_COMMANDS = (
    CommandInfo(
        "status",
        "Show models: workloads, pods, routers, canary, conditions.",
        target="kvasir.cli.status:app",
    ),
    CommandInfo(
        "why", "Say why a model is not ready, and what to do.", target=f"{_HERE}.why_command:app"
    ),
    CommandInfo(
        "promote",
        "Let a model's canary go to its next step.",
        target=f"{_HERE}.rollout_commands:promote_app",
    ),
    CommandInfo(
        "abort", "Roll a model's canary back.", target=f"{_HERE}.rollout_commands:abort_app"
    ),
    CommandInfo(
        "retry",
        "Begin again with a canary that was rolled back.",
        target=f"{_HERE}.rollout_commands:retry_app",
    ),
    CommandInfo(
        "logs",
        "Print the logs of all pods of a model.",
        target=f"{_HERE}.logs_command:app",
    ),
    CommandInfo(
        "support-bundle",
        "Write objects, events, logs and metrics into a file, redacted.",
        target=f"{_HERE}.bundle.bundle_command:app",
    ),
    CommandInfo(
        "convert",
        "Make LLMDeployments of KServe, KubeAI, production-stack and vllm serve.",
        target=f"{_HERE}.convert.convert_command:app",
    ),
    CommandInfo("plan", "Say what an edit restarts, before it is applied.", group=PLUGIN_GROUP),
    CommandInfo(
        "chat",
        "Talk to a model through the cluster's router.",
        target=f"{_HERE}.router_chat.chat_command:app",
    ),
)
