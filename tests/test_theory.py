"""The theory pages: every figure has a script that draws it, and every test they name exists."""

import re
from pathlib import Path

import pytest

from website.figures import figures
from website.gallery import run

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted((ROOT / "docs" / "theory").glob("*.md"))
PROOFS = r"`tests/([\w/]+)\.py::(\w+)`"


@pytest.mark.slow
@pytest.mark.docs
@pytest.mark.parametrize("script", figures(), ids=lambda script: script.stem)
def test_a_figure_is_drawn_by_its_script(script, tmp_path):
    assert run(script, tmp_path, reduced=True).pictures == (f"{script.stem}.png",)


def test_every_figure_is_on_one_page():
    shown = [name for page in PAGES for name in re.findall(r"\]\((\w+)\.png\)", page.read_text())]
    assert sorted(shown) == [script.stem for script in figures()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_tests_that_a_page_names_exist(page):
    named = re.findall(PROOFS, page.read_text(encoding="utf-8"))
    assert named or page.stem == "index"
    for module, function in named:
        source = (ROOT / "tests" / f"{module}.py").read_text(encoding="utf-8")
        assert f"def {function}(" in source
