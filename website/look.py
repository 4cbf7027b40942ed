"""`python -m website.look FOLDER`: screenshots of every page, and a list of what is cut.

A page must not be wider than the window, and no line of code may be cut. At the width of a desktop
no table may need scrolling or break a name; on a phone tables and columns of output may scroll.

Needs Chromium and the package playwright. Pages are opened as files, without a server, at the
widths of a desktop and of a phone, in the light and in the dark scheme.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from playwright.sync_api import Page, sync_playwright

from .places import ROOT

SITE = ROOT / "site"
WIDTHS = (1280, 390)
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
_CHROMIUM = "/usr/bin/chromium"
_OVERFLOW = "(e => e.scrollWidth - e.clientWidth)(document.documentElement)"
_BROKEN = "[...document.images].filter(i => i.complete && !i.naturalWidth).map(i => i.src)"
_WIDER = """query => [...document.querySelectorAll(query)]
    .filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.innerText.trim().slice(0, 60))"""
_BROKEN_NAMES = """() => [...document.querySelectorAll('td code')]
    .map(e => [e.innerText, e.getClientRects().length])
    .filter(([name, lines]) => /^[\\w.]+$/.test(name) && lines > 1).map(([name]) => name)"""
_CODE = ".md-content pre > code"
_CODE_ON_A_PHONE = ".md-content :not(.language-text) > pre > code"
_TABLES = ".md-typeset__scrollwrap, .equation"


def look(folder: Path, pages: list[Path]) -> Iterator[str]:
    """Write screenshots into `folder`; return what is wrong with the pages."""
    folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=_CHROMIUM)
        for width in WIDTHS:
            for scheme in SCHEMES:
                view = browser.new_page(
                    viewport={"width": width, "height": 900}, color_scheme=scheme
                )
                for page in pages:
                    name = str(page.relative_to(SITE)).replace("/", "-").removesuffix(".html")
                    view.goto(page.as_uri())
                    view.wait_for_timeout(150)
                    view.screenshot(path=folder / f"{name}-{width}-{scheme}.png")
                    overflow = view.evaluate(_OVERFLOW)
                    if overflow > 0:
                        yield f"{name} at {width}: {overflow} pixels wider than the window"
                    for source in view.evaluate(_BROKEN):
                        yield f"{name}: broken image {source}"
                    if scheme == SCHEMES[0]:
                        yield from (f"{name} at {width}: {line}" for line in cut(view, width))
                view.close()
        browser.close()


def cut(view: Page, width: int) -> Iterator[str]:
    """What of a page is cut."""
    desktop = width == max(WIDTHS)
    for text in view.evaluate(_WIDER, _CODE if desktop else _CODE_ON_A_PHONE):
        yield f"cut code: {text!r}"
    if desktop:
        for text in view.evaluate(_WIDER, _TABLES):
            yield f"a table or an equation needs scrolling: {text!r}"
        for text in view.evaluate(_BROKEN_NAMES):
            yield f"a table breaks the name {text}"


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / ".screenshots")
    wrong = 0
    # Links of 404.html begin at the root of a server.
    pages = [page for page in sorted(SITE.rglob("*.html")) if page != SITE / "404.html"]
    for line in look(folder, pages):
        print(line, flush=True)
        wrong += 1
    if not wrong:
        print(f"nothing is cut; screenshots are in {folder}")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
