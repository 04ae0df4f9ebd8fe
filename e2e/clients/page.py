"""Write the table of docs/clients.md from the tests and the locks: `make client-docs`."""

from __future__ import annotations

import re

from clients.inventory import CLIENTS, FEATURES, ROOT

PAGE = ROOT / "docs" / "clients.md"
_TABLE = re.compile(r"(?<=<!-- made by e2e/clients/page\.py -->\n).*?(?=<!-- end -->)", re.DOTALL)


def table() -> str:
    """Return the clients, their versions and which features of theirs are tested."""
    head = ["client", "version", "language", *FEATURES.values()]
    rows = [head, ["---"] * len(head)]
    for client in CLIENTS:
        ticks = ["yes" if feature in client.features else "-" for feature in FEATURES]
        names = ", ".join(f"`{name}`" for name in client.packages)
        rows.append([names, ", ".join(client.packages.values()), client.language, *ticks])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def page() -> str:
    """Return the page with the table as it has to be."""
    text, count = _TABLE.subn(lambda _: table(), PAGE.read_text())
    assert count == 1, f"{PAGE} has no place for the table"
    return text


if __name__ == "__main__":
    PAGE.write_text(page())
