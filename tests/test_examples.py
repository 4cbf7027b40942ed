"""Every script of the gallery runs in its reduced form, prints, and leaves a picture.

Part of `make docs`.
"""

import pytest
import yaml

from website import gallery
from website.places import ROOT

SCRIPTS = gallery.examples()
PRINTED = {
    "good_and_bad_run": ["verdict: checked", "verdict: doubtful"],
    "million_rows": ["verdict: checked"],
    "resume_after_kill": ["killed process: -9", "the same bits: True"],
}
"""What a script must print, because its text says so."""


@pytest.mark.docs
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_example_prints_and_leaves_a_picture(script, tmp_path):
    result = gallery.run(script, tmp_path, reduced=True)
    assert result.output.strip()
    for words in PRINTED.get(script.stem, []):
        assert words in result.output
    assert result.pictures, "the script leaves no picture"
    for name in result.pictures:
        assert name.startswith(script.stem), "the gallery finds pictures by the script's name"
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_example_has_a_title_a_text_and_a_reduced_form(script):
    example = gallery.read(script)
    assert example.title and len(example.text) > 100
    source = script.read_text(encoding="utf-8")
    assert gallery.reduced_source(source) != source


def test_every_example_is_in_the_navigation():
    nav = _nav()
    pages = [page for entry in nav for page in (entry.values() if isinstance(entry, dict) else [])]
    assert sorted(pages) == sorted(f"gallery/{script.stem}.md" for script in SCRIPTS)


def _nav() -> list:
    """The entries of the gallery in mkdocs.yml."""
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    return next(entry["Gallery"] for entry in yaml.safe_load(text)["nav"] if "Gallery" in entry)
