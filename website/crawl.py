"""`python -m website.crawl FOLDER`: what is broken in the built site.

Every link and every image must lead to a file of the site, and every fragment to an element. No
page may load anything from elsewhere.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlparse

_LOADED = {"img": "src", "script": "src", "link": "href", "iframe": "src"}


class PageParser(HTMLParser):
    """Collects what a page has and what it refers to."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value for name, value in attrs if value is not None}
        self.names |= {found[name] for name in ("id", "name") if name in found}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        place = _LOADED.get(tag)
        if place in found and found.get("rel") != "canonical":
            self.loaded.append(found[place])


def broken(site: Path) -> Iterator[str]:
    """What is broken, one line each."""
    # A server shows 404.html in place of any page, so its links begin at the root.
    found = (page for page in sorted(site.rglob("*.html")) if page.name != "404.html")
    pages = {page: _parsed(page) for page in found}
    assert pages, f"{site} has no pages"
    for page, parsed in pages.items():
        shown = page.relative_to(site)
        for source in parsed.loaded:
            if urlparse(source).scheme in ("http", "https") or source.startswith("//"):
                yield f"{shown} loads {source}"
            elif not source.startswith("data:") and not _target(page, source).exists():
                yield f"{shown} lacks {source}"
        for link in parsed.links:
            address, fragment = urldefrag(link)
            if urlparse(address).scheme:
                continue
            target = _target(page, address) if address else page
            if target.is_dir():
                target = target / "index.html"
            if not target.exists():
                yield f"{shown} links to {link}, which does not exist"
            elif fragment and target in pages and unquote(fragment) not in pages[target].names:
                yield f"{shown} links to {link}, which has no such place"


def _parsed(page: Path) -> PageParser:
    parser = PageParser()
    parser.feed(page.read_text(encoding="utf-8"))
    return parser


def _target(page: Path, address: str) -> Path:
    return (page.parent / unquote(urlparse(address).path)).resolve()


def main() -> None:
    wrong = list(broken(Path(sys.argv[1]).resolve()))
    print("\n".join(wrong) or "nothing is broken")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
