"""A stand-in for the engine and the router: real processes that speak HTTP.

The supervisor's own behaviour (order, restarts, no process left) is tested without a model to load.
The stand-in takes the place of both by the entry points that the CLI finds commands through.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from pathlib import Path

from support.web_server import free_port  # noqa: F401

API = Path(__file__).parents[3] / "api"


STANDIN = """
import http.server, json, os, signal, subprocess, sys
import typer

app = typer.Typer()

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/die":
            print("told to die", flush=True)
            os._exit(9)
        body = json.dumps({"pid": os.getpid(), "argv": sys.argv[1:], "environ": dict(os.environ)})
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *args):
        pass

def stop(*_):
    if os.environ.get("STANDIN_TRACE"):
        with open(os.environ["STANDIN_TRACE"], "a") as trace:
            print(sys.argv[1], file=trace)
    if not os.environ.get("STANDIN_STUBBORN"):
        os._exit(0)

@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def serve(ctx: typer.Context):
    if os.environ.get("STANDIN_FAIL"):
        print("the model is no good", file=sys.stderr)
        sys.exit(3)
    if os.environ.get("STANDIN_SPAWN"):
        subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"],
                         start_new_session=True)
    signal.signal(signal.SIGTERM, stop)
    port = int(ctx.args[ctx.args.index("--port") + 1])
    http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


ENTRY_POINTS = "[kvasir.commands]\nserve = standin:app\nrouter = standin:app\n"


@dataclass
class Standin:
    """Processes that were started with `environ` are known by a variable in it."""

    environ: dict[str, str]
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __post_init__(self) -> None:
        self.environ["STANDIN_MARK"] = self.mark

    def processes(self) -> list[int]:
        """Those that run now, zombies left out."""
        return [int(p.name) for p in Path("/proc").iterdir() if p.name.isdigit() and self._is(p)]

    def _is(self, process: Path) -> bool:
        try:
            return self.mark.encode() in (process / "environ").read_bytes()
        except OSError:
            return False
