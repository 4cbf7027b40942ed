"""`python -m website.outputs PAGE --folder FOLDER`: run the Python of a page, write its output.

Blocks run in order, in FOLDER, which holds the data that the page reads. What a block prints
follows it as a block of text, and the pictures that it leaves go to `docs/images/`. The last line
of the page says when and on what they were made.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import shutil
import warnings
from pathlib import Path
from typing import Any

from benchmarks.report import stamp

from .figures import make_small
from .places import DOCS

_BLOCK = re.compile(r"(```python\n(.*?)```\n)(?:\n```text\n.*?```\n)?", re.DOTALL)
_STAMP = re.compile(r"\nMeasured on .*\n$")


def with_outputs(text: str) -> str:
    """The text of a page, with the output of its blocks.

    >>> print(with_outputs("```python\\nprint(1 + 1)\\n```\\n"), end="")
    ```python
    print(1 + 1)
    ```
    <BLANKLINE>
    ```text
    2
    ```
    """
    names: dict[str, Any] = {}

    def run(found: re.Match[str]) -> str:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exec(compile(found[2], "<block>", "exec"), names)
        output = printed.getvalue().rstrip("\n")
        return found[1] + (f"\n```text\n{output}\n```\n" if output else "")

    return _BLOCK.sub(run, text)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m website.outputs", description=__doc__)
    parser.add_argument("page", type=Path)
    parser.add_argument("--folder", type=Path, required=True)
    options = parser.parse_args()
    page = options.page.resolve()
    text = _STAMP.sub("", page.read_text(encoding="utf-8"))
    with contextlib.chdir(options.folder):
        os.environ.setdefault("MPLBACKEND", "agg")
        text = with_outputs(text)
        for picture in Path().glob(f"{page.stem}*.png"):
            shutil.copy(picture, DOCS / "images")
            make_small(DOCS / "images" / picture.name)
    page.write_text(f"{text.rstrip()}\n\n{stamp()}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
