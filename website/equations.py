"""A Markdown extension: fences of `math` become MathML when the site is built.

The source is LaTeX, which GitHub renders too. Browsers render MathML themselves, so a page needs
neither a script nor anything from elsewhere.
"""

from __future__ import annotations

import re
from typing import Any

from latex2mathml.converter import convert
from markdown import Markdown
from markdown.extensions import Extension
from markdown.preprocessors import Preprocessor

_FENCE = re.compile(r"^```math\n(.*?)\n```$", re.MULTILINE | re.DOTALL)
# Of pymdownx.superfences, which would show the source; it must not see these fences.
_BEFORE_SUPERFENCES = 26


class EquationFences(Preprocessor):
    def run(self, lines: list[str]) -> list[str]:
        return _FENCE.sub(self._rendered, "\n".join(lines)).split("\n")

    def _rendered(self, found: re.Match[str]) -> str:
        equation = convert(found[1], display="block")
        return self.md.htmlStash.store(f'<div class="equation">{equation}</div>')


def makeExtension(**options: Any) -> Extension:  # the name that Markdown looks for
    return EquationExtension(**options)


class EquationExtension(Extension):
    def extendMarkdown(self, md: Markdown) -> None:
        md.preprocessors.register(EquationFences(md), "equations", _BEFORE_SUPERFENCES)
