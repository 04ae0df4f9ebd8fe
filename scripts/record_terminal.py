"""Draw docs/images/terminal.svg from what `kvasir up` and `kvasir chat` print: `make terminal`."""

import io
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "images" / "terminal.svg"
KVASIR = Path(sys.executable).parent / "kvasir"
PORT = 8080
MESSAGE = "Sort: 7 3 9 1"
_WEB_FONT = re.compile(r"@font-face \{.*?\}", re.DOTALL)
"""Font that Rich's picture would load from another host."""


def main() -> None:
    """Serve the tiny model, ask it, stop it, and draw what was printed."""
    console = Console(record=True, width=96, file=io.StringIO(), highlight=False)
    with tempfile.TemporaryFile("w+") as output:
        command = [str(KVASIR), "up", "-f", "manifests/tiny.yaml", "--port", str(PORT)]
        up = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=output, text=True, bufsize=1
        )
        try:
            ready = _until_ready(up)
            chat = subprocess.run(
                [str(KVASIR), "chat", "--temperature", "0"],
                input=f"{MESSAGE}\n",
                capture_output=True,
                text=True,
                check=True,
            )
        finally:
            up.send_signal(signal.SIGINT)
            up.wait()
        output.seek(0)
        progress = output.read().partition("Stopping")[0]
    _show(console, "kvasir up -f manifests/tiny.yaml", progress + ready)
    _show(console, f"echo '{MESSAGE}' | kvasir chat --temperature 0", chat.stdout)
    svg = console.export_svg(title="kvasir", theme=MONOKAI, unique_id="terminal")
    svg = _WEB_FONT.sub("", svg).replace("Fira Code, ", "")
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text("\n".join(line.rstrip() for line in svg.splitlines()) + "\n")


def _until_ready(up: subprocess.Popen[str]) -> str:
    """Return the line that says that it serves. Raises RuntimeError when it ends before."""
    assert up.stdout is not None  # noqa: S101 - it is a pipe
    for line in up.stdout:
        if line.startswith("Ready"):
            return line
    raise RuntimeError(f"kvasir up ended with status {up.wait()} before it was ready")


def _show(console: Console, command: str, output: str) -> None:
    console.print(Text.assemble(("$ ", "green"), (command, "bold")))
    console.print(Text(output.strip("\n").rstrip() + "\n"))


if __name__ == "__main__":
    main()
