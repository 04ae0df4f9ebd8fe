"""Hooks of mkdocs: draw diagrams as SVG, name the files that links out of docs/ lead to, and fail
when a page loads something from another host."""

import posixpath
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import mermaidx
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

_README = Path(__file__).parents[1] / "README.md"
_MERMAID = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((\.\./[^)\s]+)\)")
_LOADING = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}
_LINKED_ONLY = {"canonical", "edit", "alternate", "next", "prev"}


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Draw the diagrams, and replace links out of docs/ by the path in the repository."""
    del files
    if not config.repo_url:
        folder = posixpath.dirname(f"docs/{page.file.src_uri}")
        markdown = _LINK.sub(lambda link: _path(link, folder), markdown)
    return _MERMAID.sub(lambda fence: _svg(fence[1], page.file.src_uri), markdown)


def _path(link: re.Match[str], folder: str) -> str:
    """Return the link's text, with the path in the repository unless that is its text."""
    path = posixpath.normpath(posixpath.join(folder, link[2]))
    return link[1] if path in link[1] else f"{link[1]} (`{path}`)"


def _svg(diagram: str, page: str) -> str:
    try:
        drawn = mermaidx.render(diagram).svg()
    except RuntimeError as error:
        raise PluginError(f"{page}: {error}") from error
    # A blank line would end the block of HTML
    whole = re.sub(r"\n\s*\n", "\n", drawn)
    return f'<div class="diagram">{whole}</div>'


def on_post_build(config: MkDocsConfig) -> None:
    """Fail when a page loads something from another host, since the site is read offline, or when a
    diagram of the README, which the site has not, cannot be drawn."""
    for diagram in _MERMAID.findall(_README.read_text(encoding="utf-8")):
        _svg(diagram, _README.name)
    loaded = [
        f"{page.relative_to(config.site_dir)} loads {address}"
        for page in sorted(Path(config.site_dir).rglob("*.html"))
        for address in _loaded(page.read_text(encoding="utf-8"))
    ]
    if loaded:
        raise PluginError("\n".join(loaded))


def _loaded(html: str) -> list[str]:
    parser = _Loaded()
    parser.feed(html)
    return parser.addresses


class _Loaded(HTMLParser):
    """Collect the addresses of other hosts that a browser asks for by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given: dict[str, Any] = dict(attrs)
        address = str(given.get(_LOADING.get(tag, ""), ""))
        only_linked = tag == "link" and given.get("rel") in _LINKED_ONLY
        if address.startswith(("http://", "https://", "//")) and not only_linked:
            self.addresses.append(address)
