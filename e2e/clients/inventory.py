"""The clients, what of them is tested, and in which versions."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PYTHON, JAVASCRIPT = HERE / "python", HERE / "javascript"
FEATURES = {
    "chat": "chat",
    "stream": "stream",
    "tools": "tools",
    "thinking": "thinking",
    "structured_output": "structured output",
    "responses": "Responses",
    "messages": "Messages",
    "token_count": "token count",
    "errors": "errors",
    "cancel": "cancel",
}
"""Names of tests, or their beginnings, and of the columns of the page's table."""


@dataclass(frozen=True)
class Client:
    """One client of one language."""

    package: str
    """Its name in the registry."""
    file: Path
    """Its tests."""
    environment: str = "clients"
    """Environment of a Python client, as its lock is called."""
    beside: tuple[str, ...] = ()
    """Other packages that it is used with."""

    @property
    def language(self) -> str:
        return "Python" if self.file.suffix == ".py" else "JavaScript"

    @property
    def packages(self) -> dict[str, str]:
        """Packages that users install, with their versions in the lock."""
        return {name: self._version(name) for name in (*self.beside, self.package)}

    def _version(self, package: str) -> str:
        if self.language == "JavaScript":
            locked = json.loads((JAVASCRIPT / "package-lock.json").read_text())["packages"]
            return str(locked[f"node_modules/{package}"]["version"])
        lock = (ROOT / "locks" / f"{self.environment}.txt").read_text()
        found = re.search(rf"^{re.escape(package)}==(\S+)", lock, re.MULTILINE)
        assert found, f"locks/{self.environment}.txt has no {package}"
        return found[1]

    @property
    def id(self) -> str:
        """Name of its test."""
        return f"{self.package}-{self.packages[self.package]}-{self.language}"

    @property
    def tests(self) -> list[str]:
        """Names of its tests, in their order; those of files that it shares with others, too."""
        if self.language == "Python":
            return re.findall(r"^def test_(\w+)", self.file.read_text(), re.MULTILINE)
        text = self.file.read_text()
        if "testProvider(" in text:
            text += (JAVASCRIPT / "vercel.js").read_text()
        return re.findall(r'^ *test\("(\w+)"', text, re.MULTILINE)

    @property
    def features(self) -> set[str]:
        """Those of FEATURES that its tests are about."""
        return {each for each in FEATURES for test in self.tests if is_about(test, each)}

    def command(self, report: Path) -> list[str]:
        """Return the command that runs its tests and writes a report in JUnit's format."""
        if self.language == "JavaScript":
            reporting = ["--test-reporter=junit", f"--test-reporter-destination={report}"]
            return ["node", "--test", *reporting, str(self.file)]
        environments = {"dev": Path(sys.executable), "clients": ROOT / ".venv/clients/bin/python"}
        ini = ["-c", str(PYTHON / "pytest.ini")]
        python = str(environments[self.environment])
        return [python, "-m", "pytest", *ini, f"--junitxml={report}", str(self.file)]


def is_about(test: str, feature: str) -> bool:
    """Tell if a test's name says that it is about a feature."""
    return test == feature or test.startswith(f"{feature}_")


def _python(package: str, file: str, environment: str = "clients") -> Client:
    return Client(package, PYTHON / f"test_{file}.py", environment)


def _javascript(package: str, file: str, *beside: str) -> Client:
    return Client(package, JAVASCRIPT / f"{file}.test.js", beside=beside)


CLIENTS = (
    _python("openai", "openai", environment="dev"),
    _python("openai", "openai"),  # the version that LlamaIndex asks for
    _python("anthropic", "anthropic"),
    _python("langchain-openai", "langchain_openai"),
    _python("langchain-anthropic", "langchain_anthropic"),
    _python("llama-index-llms-openai-like", "llama_index"),
    _python("instructor", "instructor"),
    _python("pydantic-ai-slim", "pydantic_ai"),
    _python("litellm", "litellm"),
    _javascript("openai", "openai"),
    _javascript("@anthropic-ai/sdk", "anthropic"),
    _javascript("@ai-sdk/openai", "vercel_openai", "ai"),
    _javascript("@ai-sdk/openai-compatible", "vercel_compatible", "ai"),
)
