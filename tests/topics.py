"""Which tests of contrib topics and of experiments belong to the fast suite.

A topic of `tallmc.contrib` has its tests in `tests/contrib/TOPIC`, the experiments have theirs in
`tests/experiments`. One short test of each and the tests that kill its mutants are marked `smoke`
and always run. All others are marked `slow`, unless files of the topic have changed: files of
`src/tallmc/contrib/TOPIC` or of `tests/contrib/TOPIC`, and for the experiments files of
`experiments` or of `tests/experiments`.

Changed are the files of the last commit, and uncommitted and new ones. Without git, nothing counts
as changed. `make test-slow` runs them, and so does `TALLMC_TEST_TOPICS=all make test`.
"""

from __future__ import annotations

import functools
import os
import subprocess
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent


def topic_of(file: Path) -> str | None:
    """The topic of a file of tests: the name of a topic of contrib, or "experiments".

    >>> topic_of(TESTS / "contrib" / "series" / "test_series.py")
    'series'
    """
    if not file.is_relative_to(TESTS):
        return None
    match file.relative_to(TESTS).parts:
        case ("contrib", topic, _, *_):
            return topic
        case ("experiments", _, *_):
            return "experiments"
    return None


def places_of(topic: str) -> tuple[str, ...]:
    """The folders and files of a topic, as prefixes of paths in the repository."""
    if topic == "experiments":
        return ("experiments/", "tests/experiments/")
    contrib = f"src/tallmc/contrib/{topic}"
    return (f"{contrib}/", f"{contrib}.py", f"tests/contrib/{topic}/")


def mark_slow_tests(items: list[pytest.Item]) -> None:
    """Mark the tests of topics that have not changed `slow`, except for smoke tests."""
    if os.environ.get("TALLMC_TEST_TOPICS") == "all":
        return
    for item in items:
        topic = topic_of(item.path)
        if topic is None or item.get_closest_marker("smoke"):
            continue
        if not any(file.startswith(places_of(topic)) for file in changed_files()):
            item.add_marker(pytest.mark.slow)


@functools.cache
def changed_files() -> tuple[str, ...]:
    """Files of the last commit, and uncommitted and new ones. None without git."""
    if not _git("rev-parse", "--verify", "--quiet", "HEAD~1"):
        return ()
    new = _git("ls-files", "--others", "--exclude-standard", "--full-name")
    return (*_git("diff", "--name-only", "HEAD~1"), *new)


def _git(*arguments: str) -> list[str]:
    """The lines that git prints; none if it fails or is not installed."""
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return []
    return done.stdout.split("\n")[:-1]
