"""Every block in the documentation is what it says: commands parse with the flags that they have,
YAML is what a model, schema or cluster takes, Python compiles and imports what exists."""

from __future__ import annotations

import ast
import importlib
import json
import re
import shlex
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import typer
import yaml
from support.doc_pages import CURRENT, LISTED, PAGES, ROOT, blocks, inline, shell

from kvasir.cli.commands import COMMANDS, load_command
from kvasir.cli.kubectl.plugin_commands import PLUGIN_COMMANDS
from kvasir.resource.class_defaults.defaults_spec import ClassSettings
from kvasir.resource.engines.engine_types import ENGINE_TYPES, reserved_flags
from kvasir.resource.llmdeployment import KIND, LLMDeployment
from kvasir_router.admission.access_tokens.issuers import IssuerFile
from kvasir_router.admission.keys import KeyFile
from kvasir_router.discovery.file_schema import FileConfig
from kvasir_router.policy.registry import check_policy

LANGUAGES = {"sh", "yaml", "python", "javascript", "json", "mermaid", "text"}
FOREIGN = {"HorizontalPodAutoscaler", "ScaledObject", "Gateway", "HTTPRoute", "InferencePool"}
"""Kinds of other projects that pages show; their fields are not checked here."""
FOREIGN_FLAGS = {
    flag
    for kind in ("vllm", "sglang")
    for flag in (*reserved_flags(ENGINE_TYPES[kind]), *ENGINE_TYPES[kind].flags.values())
    if isinstance(flag, str)
}
"""Flags of vLLM and SGLang."""
KVASIR = re.compile(r"(?:^\s*(?:\w+=\S+ )*|bin/|\| )kvasir ([a-z][^|&>;]*)")
PLUGIN = re.compile(r"\bkubectl kvasir ([a-z][^|&>;)]*)")
FOLDERS = ("api/", "benchmarks/", "charts/", "docs/", "e2e/", "images/", "manifests/", "scripts/")
_COMMANDS = {info.name: info for info in COMMANDS}
_PLUGIN_COMMANDS = {info.name: info for info in PLUGIN_COMMANDS}
SERVE = _COMMANDS["serve"]


def test_every_block_says_its_language() -> None:
    said = {page: {language for language, _ in blocks(page)} for page in CURRENT}
    assert {page: each - LANGUAGES for page, each in said.items() if each - LANGUAGES} == {}


@pytest.mark.parametrize("page", PAGES)
def test_shell_blocks_are_bash(page: str) -> None:
    for language, text in blocks(page):
        if language == "sh":
            done = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True)
            assert done.returncode == 0, done.stderr


def parse(command: Any, words: list[str], parent: Any = None) -> None:
    """Parse a command line as the command itself does. Raises typer's error for a wrong one."""
    try:
        context = command.make_context(words[0], words[1:], parent=parent)
    except typer.Exit:  # --help
        return
    if hasattr(command, "commands"):
        name, inner, rest = command.resolve_command(
            context, [*context._protected_args, *context.args]
        )
        parse(inner, [name, *rest], context)


@pytest.mark.parametrize("page", CURRENT)
def test_kvasir_commands_in_blocks_parse(page: str) -> None:
    for found in map(KVASIR.search, shell(page)):
        if found:
            words = shlex.split(found[1])
            parse(load_command(_COMMANDS[words[0]]), words)


@pytest.mark.parametrize("page", CURRENT)
def test_commands_of_the_plugin_in_blocks_parse(page: str) -> None:
    shown = [line for _, text in blocks(page) for line in text.splitlines() if "$ kubectl" in line]
    for found in map(PLUGIN.search, [*shell(page), *shown]):
        if found:
            words = shlex.split(found[1])
            parse(load_command(_PLUGIN_COMMANDS[words[0]]), words)


def unknown(words: list[str]) -> list[str]:
    """Return what of `words` no command has: the command itself, or flags of it."""
    if words[0] not in _COMMANDS:
        return [words[0]]
    command = load_command(_COMMANDS[words[0]])
    for word in words[1:]:
        command = getattr(command, "commands", {}).get(word, command)
    known = {"--help", "-h"}
    for each in command.params:
        known |= {*each.opts, *each.secondary_opts}
    used = [word.split("=")[0] for word in words[1:] if re.match(r"--?[a-zA-Z]", word)]
    return [word for word in used if word not in known]


@pytest.mark.parametrize("page", CURRENT)
def test_kvasir_commands_in_sentences_have_those_flags(page: str) -> None:
    calls = [found[1] for found in map(KVASIR.search, inline(page)) if found]
    wrong = {call: unknown(call.split()) for call in calls}
    assert {call: flags for call, flags in wrong.items() if flags} == {}


@cache
def every_flag() -> set[str]:
    """Return the flags of all commands, and those that this repository's scripts quote."""
    waiting: list[Any] = [load_command(info) for info in (*COMMANDS, *PLUGIN_COMMANDS)]
    found = set(FOREIGN_FLAGS)
    while waiting:
        command = waiting.pop()
        waiting += getattr(command, "commands", {}).values()
        for each in command.params:
            found |= {*each.opts, *each.secondary_opts}
    for name in LISTED:
        if name.endswith(".py") and name.startswith(("benchmarks/", "e2e/", "scripts/")):
            found |= set(re.findall(r'"(--[a-z][\w-]*)', (ROOT / name).read_text()))
    return found


@pytest.mark.parametrize("page", CURRENT)
def test_flags_in_sentences_exist(page: str) -> None:
    named = [re.match(r"(--[a-z][\w-]*)", each) for each in inline(page)]
    assert [found[1] for found in named if found and found[1] not in every_flag()] == []


@pytest.mark.parametrize("page", PAGES)
def test_targets_that_a_page_names_are_in_the_makefile(page: str) -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    text = "\n".join([*shell(page), *inline(page)])
    named = re.findall(r"^\s*make ([a-z][a-z0-9-]*)", text, re.MULTILINE)
    assert [name for name in named if name not in targets] == []


@pytest.mark.parametrize("page", CURRENT)
def test_files_in_commands_exist(page: str) -> None:
    words = [word for line in [*shell(page), *inline(page)] for word in line.split()]
    files = [word.strip("'\"") for word in words if word.startswith(FOLDERS)]
    assert [file for file in files if not list(ROOT.glob(re.sub(r"<\w+>", "*", file)))] == []


@pytest.mark.parametrize("page", CURRENT)
def test_python_scripts_in_blocks_have_those_flags(page: str) -> None:
    for line in shell(page):
        if found := re.search(r"python3? (?:-m )?((?:benchmarks|scripts|e2e)[\w./]*)(.*)", line):
            script = found[1].removesuffix(".py").replace(".", "/") + ".py"
            source = (ROOT / script).read_text()
            flags = re.findall(r"(--[a-z][\w-]*)", found[2])
            assert [f for f in flags if f != "--help" and f'"{f}"' not in source] == [], line


@pytest.mark.parametrize("page", CURRENT)
def test_values_that_helm_commands_set_are_in_the_chart(page: str) -> None:
    for line in shell(page):
        if found := re.search(r"helm (?:install|upgrade)\b.*? (charts/[\w-]+)", line):
            values = yaml.safe_load((ROOT / found[1] / "values.yaml").read_text())
            for path in re.findall(r"--set '?([\w.]+)", line):
                part = values
                for name in path.split("."):
                    assert name in part, f"{path} is no value of {found[1]}"
                    part = part[name]


@pytest.mark.parametrize("page", CURRENT)
def test_bodies_of_curl_commands_are_json(page: str) -> None:
    for language, text in blocks(page):
        if language == "sh":
            for body in re.findall(r"-d '(.*?)'", text, re.DOTALL):
                json.loads(body)


def check_yaml(document: dict[str, Any]) -> None:
    """Validate a document as whoever reads it does. Raises an error that names what is wrong."""
    keys = document.keys()
    if "kind" in keys:
        if document["kind"] == KIND:
            LLMDeployment.model_validate(document)
        else:
            assert document["kind"] in FOREIGN
    elif keys <= FileConfig.model_fields.keys():
        FileConfig.model_validate(document, context=check_policy)
    elif keys <= KeyFile.model_fields.keys():
        KeyFile.model_validate(document)
    elif keys == {"class"}:
        schema = json.loads((ROOT / "charts/kvasir/values.schema.json").read_text())
        jsonschema.validate(document, schema)
        ClassSettings.model_validate(document["class"]["settings"])
    elif keys <= IssuerFile.model_fields.keys():
        IssuerFile.model_validate(document)
    elif keys == {"accessTokens"}:
        schema = json.loads((ROOT / "charts/kvasir/values.schema.json").read_text())
        jsonschema.validate(document, schema)
        IssuerFile.model_validate(document["accessTokens"])
    elif keys <= {str(each.name).replace("_", "-") for each in load_command(SERVE).params}:
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            yaml.safe_dump(document, file)
            file.flush()
            parse(load_command(SERVE), ["serve", "--config", file.name])
    else:
        schema = json.loads((ROOT / "charts/kvasir-models/values.schema.json").read_text())
        jsonschema.validate(document, schema)
        for model in document["models"]:
            spec = document.get("defaults", {}) | model["spec"]
            made = {"apiVersion": "kvasir.dev/v1alpha1", "kind": KIND, "spec": spec}
            LLMDeployment.model_validate(made | {"metadata": {"name": model["name"]}})


def yaml_documents() -> list[Any]:
    """Return each YAML document of a page as a parameter of a test."""
    return [
        pytest.param(document, id=f"{Path(page).stem}-{number}")
        for page in CURRENT
        for number, (language, text) in enumerate(blocks(page))
        if language == "yaml"
        for document in yaml.safe_load_all(text)
    ]


@pytest.mark.parametrize("document", yaml_documents())
def test_yaml_blocks_are_valid(document: dict[str, Any]) -> None:
    check_yaml(document)


@pytest.mark.parametrize("page", CURRENT)
def test_python_blocks_compile_and_import_what_exists(page: str) -> None:
    for language, text in blocks(page):
        if language != "python":
            continue
        tree = ast.parse(text)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("kvasir"):
                module = importlib.import_module(str(node.module))
                assert [each.name for each in node.names if not hasattr(module, each.name)] == []


def test_json_blocks_are_json() -> None:
    for page in CURRENT:
        for language, text in blocks(page):
            if language == "json":
                json.loads(text)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("serve builtin://kvasir-tiny --no-such-flag", "No such option"),
        ("serve builtin://kvasir-tiny --port high", "valid integer"),
        ("keys creates", "No such command"),
    ],
)
def test_a_wrong_command_is_found(line: str, message: str) -> None:
    words = line.split()
    with pytest.raises(Exception, match=message):
        parse(load_command(_COMMANDS[words[0]]), words)


@pytest.mark.parametrize(
    "document",
    [
        {"models": [{"name": "a", "replica": []}]},
        {"models": [{"name": "a", "policy": "best"}]},
        {"keys": [{"id": "a", "hash": "short"}]},
        {"issuers": [{"name": "a", "issuer": "b"}]},
        {"defaults": {}, "models": [{"name": "a", "spec": {"model": {"uri": "a"}, "x": 1}}]},
        {"kind": KIND, "spec": {}},
    ],
)
def test_a_wrong_document_is_found(document: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="validation error"):
        check_yaml(document)
