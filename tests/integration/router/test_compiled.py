"""The compiled form: used if it is there and made of the present sources, and it answers alike."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from kvasir_router import command, compiled

ROOT = Path(__file__).parents[3]

MODULES = (
    "kvasir_router.fleet.retry_budget",
    "kvasir_router.policy.token_load",
    "kvasir_router.wire.known_header",
)

# What it says: whether it runs compiled, whether what is compiled is of other sources, the form of
# a module, what a budget gives, and which beginnings of a header are taken for it.
PROGRAM = """
import json, os, sys
from pathlib import Path
from kvasir_router import compiled
os.environ[compiled.SWITCH], folder, *modules = sys.argv[1:]
compiled.FOLDER, compiled.MODULES = Path(folder), tuple(modules)
compiled.use()
from kvasir_router.fleet.retry_budget import RetryBudget
from kvasir_router.policy import token_load
budget = RetryBudget(0.5, 1)
for at in range(6):
    budget.request(float(at))
spent = [budget.spend(6.0) for _ in range(5)]
from kvasir_router.wire.known_header import KnownHead
head = b"POST / HTTP/1.1\\r\\nHost: a\\r\\nContent-Length: 1\\r\\nA: b\\r\\n\\r\\n"
known = KnownHead.of(head)
found = [size for size in range(len(head) + 1) if known.find(head[:size])]
outdated = compiled.is_outdated()
form = Path(token_load.__file__).suffix
print(json.dumps([compiled.in_use(), outdated, form, spent, budget.refused, found]))
"""


def said(sources: Path, folder: Path, *, switch: str = "1") -> list[object]:
    """By a Python of its own that finds the sources here."""
    environment = {"PYTHONPATH": f"{sources}:{ROOT}/api", compiled.SWITCH: "0"}
    command = [sys.executable, "-c", PROGRAM, switch, str(folder), *MODULES]
    result = subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, check=True
    )
    found: list[object] = json.loads(result.stdout)
    return found


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A copy of the package, and the folder with the compiled form of two of its modules."""
    if shutil.which("cc") is None and shutil.which("gcc") is None:
        pytest.skip("no C compiler")
    sources, folder = tmp_path_factory.mktemp("sources"), tmp_path_factory.mktemp("compiled")
    shutil.copytree(ROOT / "router" / "kvasir_router", sources / "kvasir_router")
    program = (
        "import sys; from pathlib import Path; from kvasir_router import compiled, compiling;"
        f"compiled.FOLDER, compiled.MODULES = Path(sys.argv[1]), {MODULES}; compiling.main()"
    )
    environment = os.environ | {"PYTHONPATH": f"{sources}:{ROOT}/api"}
    command = [sys.executable, "-c", program, str(folder)]
    subprocess.run(command, env=environment, check=True, capture_output=True, timeout=280)
    return sources, folder


@pytest.mark.slow
def test_both_forms_say_the_same_but_for_which_they_are(built: tuple[Path, Path]) -> None:
    sources, folder = built
    in_use, outdated, suffix, *results = said(sources, folder)
    assert (in_use, outdated, suffix) == (True, False, ".so")
    assert results == [[True, True, True, False, False], 2, [53]]
    assert said(sources, folder, switch="0") == [False, False, ".py", *results]


@pytest.mark.slow
def test_a_changed_source_is_read_itself(built: tuple[Path, Path], tmp_path: Path) -> None:
    sources, folder = built
    changed = tmp_path / "kvasir_router"
    shutil.copytree(sources / "kvasir_router", changed)
    with (changed / "fleet" / "retry_budget.py").open("a") as file:
        file.write("\n")
    assert said(tmp_path, folder)[:3] == [False, True, ".py"]
    assert said(tmp_path, tmp_path / "nothing")[:3] == [False, False, ".py"]


@pytest.mark.slow
def test_nothing_is_left_beside_the_sources(built: tuple[Path, Path]) -> None:
    def files(sources: Path) -> set[Path]:
        found = (each.relative_to(sources) for each in sources.rglob("*") if each.is_file())
        return {each for each in found if each.suffix not in (".pyc", ".so")}

    sources, folder = built
    assert list(folder.rglob("*.so")), "it was compiled"
    assert list(sources.rglob("*.so")) == []
    assert files(sources) == files(ROOT / "router")


def test_every_module_that_is_compiled_exists() -> None:
    assert [each for each in compiled.MODULES if not compiled.source_of(each).exists()] == []


def classes(file: Path) -> list[ast.ClassDef]:
    nodes = ast.walk(ast.parse(file.read_text()))
    return [node for node in nodes if isinstance(node, ast.ClassDef)]


def test_nothing_else_inherits_from_what_is_compiled() -> None:
    files = {compiled.source_of(each) for each in compiled.MODULES}
    others = set((ROOT / "router").rglob("*.py")) - files
    known = {node.name for file in files for node in classes(file)}
    bases = {ast.unparse(each) for file in others for node in classes(file) for each in node.bases}
    assert bases & known == set()


def test_the_form_is_the_one_that_was_found() -> None:
    from kvasir_router.proxy import relay

    assert compiled.in_use() == (not str(relay.__file__).endswith(".py"))


@pytest.mark.parametrize("outdated", [True, False])
def test_a_router_says_that_what_is_compiled_is_of_other_sources(monkeypatch, outdated) -> None:
    monkeypatch.setattr(compiled, "is_outdated", lambda: outdated)
    with capture_logs() as logs:
        command._look_at_form()
    assert [each["log_level"] for each in logs] == ["warning"] * outdated


@pytest.mark.slow
@pytest.mark.parametrize("switch", ["1", "0"])
async def test_a_router_says_which_form_it_runs(
    tmp_path, write_config, model_entry, start_replica, start_process, client, monkeypatch, switch
) -> None:
    monkeypatch.setenv(compiled.SWITCH, switch)
    config = tmp_path / "fleet.yaml"
    write_config(config, [model_entry("m", await start_replica())])
    router = await start_process(config)
    answer = await client.post(f"{router.url}/v1/completions", json={"model": "m", "prompt": "p"})
    assert answer.status_code == 200
    metrics = (await client.get(f"{router.admin_url}/metrics")).text
    [form] = re.findall(r'router_build_info{compiled="(\w+)",version=".+"} 1', metrics)
    there = (compiled.FOLDER / compiled.digest()).is_dir()
    assert form == str(there and switch == "1").lower()


def test_nothing_that_is_compiled_is_read_by_msgspec() -> None:
    files = {compiled.source_of(each) for each in compiled.MODULES}
    bases = {ast.unparse(each) for file in files for node in classes(file) for each in node.bases}
    assert not {base for base in bases if base.startswith("msgspec.")}
