"""No setting, parameter or field of a request does nothing, and every output is filled."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvasir.wire.proto.engine.v1 import engine_pb2 as pb
from kvasir_engine import outputs, request, sampling_params, settings, step_plan
from kvasir_engine.server import server_settings
from kvasir_engine.server.anthropic import messages_body
from kvasir_engine.server.openai import schema
from kvasir_engine.server.openai_responses import responses_body
from kvasir_engine.server.process import api_config

ENGINE = Path(settings.__file__).parent
READ = (
    *(settings.EngineSettings, settings.SchedulerSettings, settings.CacheSettings),
    *(server_settings.ServerSettings, api_config.ApiConfig),
    *(schema.StreamOptions, schema.ResumeBody, schema.CompletionBody, schema.ChatBody),
    *(schema.TokenizeBody, schema.DetokenizeBody),
    *(messages_body.MessagesBody, messages_body.CountTokensBody),
    *(responses_body.ResponsesBody, responses_body.ResponsesChatBody),
    *(sampling_params.SamplingParams, sampling_params.BeamSearchParams, step_plan.RowSampling),
    *(request.EngineRequest, request.Resume, request.LogprobEntry, request.SampleDelta),
)
FILLED = (
    *(outputs.RequestOutput, outputs.CompletionOutput, outputs.RequestStateStats),
    *(outputs.BeamSearchOutput, outputs.BeamSearchSequence),
)
COPIED = {
    schema.CompletionBody: sampling_params.SamplingParams,
    schema.ChatBody: sampling_params.SamplingParams,
    responses_body.ResponsesChatBody: sampling_params.SamplingParams,
    sampling_params.SamplingParams: step_plan.RowSampling,
}
"""What copies the fields of the same names, as a loop over them does."""
CHECKS = ("__post_init__", "_check", "verify", "_verify")
"""Beginnings of the names of methods that read a field of their own class for its bounds alone."""


def names_of(kind: type[Any]) -> list[str]:
    if issubclass(kind, msgspec.Struct):
        return [field.name for field in msgspec.structs.fields(kind)]
    return [field.name for field in fields(kind)]


def last_name(node: ast.AST | None) -> str:
    """`b` of `a.b`, `a` of `a`; empty for what has no name."""
    return getattr(node, "attr", "") or getattr(node, "id", "")


class Module(ast.NodeVisitor):
    """Attributes that a module reads and sets, and the declared classes of its variables."""

    def __init__(self, path: Path) -> None:
        self.classes: dict[str, set[str]] = defaultdict(set)
        """By the last name of what holds an object: those that its annotations name."""
        self.reads: list[tuple[str, str]] = []
        """Last name of an object, or of the class whose method reads `self`, and the attribute."""
        self._sources: list[tuple[str, str]] = []
        self.given: set[tuple[str, str]] = set()
        """A class and the keyword of its call; or the name of an object and its attribute."""
        self._class = ""
        self._check = False
        self.visit(ast.parse(path.read_text()))

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._class, before = node.name, self._class
        self.generic_visit(node)
        self._class = before

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._check, before = node.name.startswith(CHECKS), self._check
        self.generic_visit(node)
        self._check = before

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_arg(self, node: ast.arg) -> None:
        self._declare(node.arg, node.annotation)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._declare(last_name(node.target), node.annotation)
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            if isinstance(node.value, ast.Call):
                # The class itself, or one that the function is told to make.
                called = (node.value.func, *node.value.args)
                self.classes[last_name(target)] |= {last_name(each) for each in called}
            parts = zip(
                getattr(target, "elts", [target]),
                getattr(node.value, "elts", [node.value]),
                strict=False,
            )
            self._sources += [(last_name(to), last_name(of)) for to, of in parts]
        self.generic_visit(node)

    def assigned(self, anywhere: Mapping[str, set[str]]) -> None:
        """Add what variables are that are assigned and not declared."""
        for name, source in self._sources:
            if name and source:
                self.classes[name] |= self.classes.get(source) or anywhere.get(source, set())

    def visit_Call(self, node: ast.Call) -> None:
        called = last_name(node.func)
        self.given |= {(called, keyword.arg or "") for keyword in node.keywords}
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        owner = last_name(node.value)
        if isinstance(node.ctx, ast.Store):
            self.given.add((owner, node.attr))
        elif owner != "self":
            self.reads.append((owner, node.attr))
        elif not self._check:
            self.reads.append((self._class, node.attr))
        self.generic_visit(node)

    def _declare(self, name: str, annotation: ast.AST | None) -> None:
        if annotation is not None:
            self.classes[name] |= {last_name(each) for each in ast.walk(annotation)}


@pytest.fixture(scope="module")
def modules() -> list[Module]:
    return [Module(path) for path in ENGINE.rglob("*.py")]


def read_attributes(modules: list[Module]) -> Iterator[tuple[str, str]]:
    """Yield class and attribute of what is read; an object's classes are those that the module
    declares for its name, or else any."""
    anywhere: dict[str, set[str]] = defaultdict(set)
    for module in modules:
        for name, found in module.classes.items():
            anywhere[name] |= found
    for module in modules:
        module.assigned(anywhere)
        for owner, attribute in module.reads:
            yield owner, attribute
            for kind in module.classes.get(owner) or anywhere[owner]:
                yield kind, attribute


def unread(modules: list[Module], kind: type[Any], given: list[str] | None = None) -> set[str]:
    owners = {each.__name__ for each in kind.__mro__}
    read = {attribute for owner, attribute in read_attributes(modules) if owner in owners}
    return set(names_of(kind) if given is None else given) - read


@pytest.mark.parametrize("kind", READ, ids=lambda kind: kind.__name__)
def test_each_field_is_read_for_more_than_its_bounds(
    modules: list[Module], kind: type[Any]
) -> None:
    found = unread(modules, kind)
    if kind in COPIED:
        found -= set(names_of(COPIED[kind]))
    assert found == set()


@pytest.mark.parametrize("message", ["GenerateRequest", "Resume", "AbortRequest"])
def test_each_field_of_a_call_is_read(modules: list[Module], message: str) -> None:
    known = {field.name for field in getattr(pb, message).DESCRIPTOR.fields}
    calls = [Module(path) for path in (ENGINE / "server/rpc").rglob("*.py")]
    assert known - {attribute for call in calls for _, attribute in call.reads} == set()


@pytest.mark.parametrize("kind", FILLED, ids=lambda kind: kind.__name__)
def test_each_field_of_an_output_is_filled(modules: list[Module], kind: type[Any]) -> None:
    names = {kind.__name__, "stats"}
    filled = {name for module in modules for owner, name in module.given if owner in names}
    filled |= {"sequences"} if kind is outputs.BeamSearchOutput else {"num_generation_tokens"}
    assert set(names_of(kind)) - filled == set()


def test_a_field_that_only_its_own_check_reads_is_found(tmp_path: Path) -> None:
    source = """
class SamplingParams:
    def _verify(self):
        self.top_p
    def used(self):
        return self.top_k
def run(params: SamplingParams, other: Other):
    return params.seed, other.min_p
"""
    path = tmp_path / "module.py"
    path.write_text(source)
    names = ["top_p", "top_k", "seed", "min_p"]
    assert unread([Module(path)], sampling_params.SamplingParams, names) == {"top_p", "min_p"}


@pytest.mark.parametrize("file", ["llm.py", "async_llm.py"])
def test_each_argument_is_read(file: str) -> None:
    functions = [
        node
        for node in ast.walk(ast.parse((ENGINE / file).read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    assert functions
    for function in functions:
        given = {each.arg for each in ast.walk(function.args) if isinstance(each, ast.arg)}
        read = {each.id for each in ast.walk(function) if isinstance(each, ast.Name)}
        assert given - read - {"self", "cls"} == set(), function.name
