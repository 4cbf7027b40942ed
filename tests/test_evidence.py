"""Pages of evidence say what they measured, and are not older than the last release but one."""

import re
from pathlib import Path

import pytest

import tallmc

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("trust", "performance", "scale", "automatic", "exact", "insurance", "groups")
STAMP = re.compile(
    r"^Measured on (\d{4}-\d\d-\d\d), tallmc (\d+\.\d+\.\d+), revision [0-9a-f]{7,}.*?, \w.*\.$",
    re.MULTILINE,
)


def version(text):
    return tuple(map(int, text.split(".")))


def releases_since(stamped, changelog):
    """How many releases of the changelog are newer than the version of a stamp."""
    releases = re.findall(r"^## \[(\d+\.\d+\.\d+)\]", changelog, re.MULTILINE)
    return sum(version(release) > version(stamped) for release in releases)


@pytest.mark.parametrize("page", PAGES)
def test_evidence_has_a_date_a_revision_and_a_machine_and_is_recent(page):
    found = STAMP.search((ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8"))
    assert found, "a line such as that of benchmarks.report.stamp"
    assert version(found[2]) <= version(tallmc.__version__)
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert releases_since(found[2], changelog) <= 1, "measure the page again"


def test_a_page_that_missed_two_releases_is_found():
    changelog = "## [Unreleased]\n\n## [0.5.0] - 2027\n\n## [0.4.0] - 2027\n\n## [0.3.0] - 2026\n"
    assert releases_since("0.4.0", changelog) == 1
    assert releases_since("0.3.0", changelog) == 2
