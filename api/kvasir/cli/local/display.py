"""Output of `kvasir up`: progress until everything is ready, then how to use it, then trouble."""

from __future__ import annotations

import os
import time
from contextlib import suppress

from rich.console import Console
from rich.live import Live
from rich.table import Table

from kvasir.cli.local.local_fleet import Fleet
from kvasir.cli.local.log_file import LogFile
from kvasir.cli.local.process_supervisor import SHOWN_LINES, Member, Supervisor
from kvasir.cli.printable import printable
from kvasir.logs import is_error_line

_STYLES = {"ready": "green", "restarting": "yellow", "stopped": "dim"}

_READY = """
Ready after {seconds:.1f} s: {url} serves {models}

curl {url}/v1/chat/completions -H 'Content-Type: application/json' {header}-d '{{
  "model": "{model}", "messages": [{{"role": "user", "content": "Hello!"}}]}}'

from openai import OpenAI
client = OpenAI(base_url="{url}/v1", api_key={key})
answer = client.chat.completions.create(
    model="{model}", messages=[{{"role": "user", "content": "Hello!"}}])
print(answer.choices[0].message.content)

In the terminal: kvasir chat --url {url}
In the browser: {admin_url} shows replicas, load and cache hits
Logs: {log}
Ctrl-C stops everything.
"""


_WITH_KEY = {
    "header": '-H "Authorization: Bearer $KVASIR_API_KEY" ',
    "key": 'os.environ["KVASIR_API_KEY"]',
}
_WITHOUT_KEY = {"header": "", "key": '"none"'}


class Display:
    """Progress goes to stderr, the URL and the snippets to stdout."""

    def __init__(self, fleet: Fleet, log: LogFile, console: Console) -> None:
        self._fleet = fleet
        self._log = log
        self._console = console
        self._started = time.monotonic()
        self._starting = True
        self._live: Live | None = None
        self._members: list[Member] = []

    def start(self, supervisor: Supervisor) -> None:
        """Show a live table in a terminal; elsewhere each change is a line."""
        self._members = supervisor.members
        if self._console.is_terminal:
            self._live = Live(
                get_renderable=self._table,
                console=self._console,
                refresh_per_second=8,
                transient=True,
            )
            self._live.start()

    def close(self) -> None:
        """End the live table."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def changed(self, member: Member) -> None:
        """A process's state changed."""
        if self._live is None and (self._starting or member.state != "stopping"):
            elapsed = time.monotonic() - self._started
            self.say(f"{elapsed:6.1f} s  {member.spec.name} is {member.state}")

    def exited(self, member: Member, code: int) -> None:
        """A process ended by itself; at start-up the fleet's error tells more."""
        if member.served and member.child is not None:
            self.say(f"{member.spec.name} exited with status {code}; its last lines:")
            for line in list(member.child.tail)[-SHOWN_LINES:]:
                self.say(f"  {printable(line)}")

    def line(self, name: str, line: str) -> None:
        """A process wrote a line: it goes to the log, an error also to the terminal."""
        text = printable(line)
        self._log.write(name, text)
        if is_error_line(line) and not self._starting:
            self.say(f"{name} | {text}")

    def ready(self) -> None:
        """Print how to use what now serves, on stdout."""
        self.close()
        self._starting = False
        text = _READY.format(
            seconds=time.monotonic() - self._started,
            url=self._fleet.url,
            admin_url=self._fleet.admin_url,
            models=", ".join(self._fleet.models),
            model=self._fleet.models[0],
            log=self._log.path,
            # The engines ask for this key when it is set: they inherit it.
            **(_WITH_KEY if os.environ.get("KVASIR_API_KEY") else _WITHOUT_KEY),
        )
        # Who piped the snippets into `head` still wants them served.
        with suppress(BrokenPipeError):
            print(text, flush=True)

    def say(self, text: str) -> None:
        """Print one line on stderr, as it is."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _table(self) -> Table:
        table = Table(box=None, pad_edge=False)
        for title in ("process", "state", "for", "last line"):
            table.add_column(title, no_wrap=True, overflow="ellipsis")
        now = time.monotonic()
        for member in self._members:
            last = member.child.tail[-1] if member.child and member.child.tail else ""
            table.add_row(
                member.spec.name,
                f"[{_STYLES.get(member.state, 'cyan')}]{member.state}[/]",
                f"{now - member.since:.1f} s",
                printable(last).replace("[", "\\["),
            )
        return table
