"""Docstring examples are written for JAX's default precision, whatever the tests run in.

Those of the modules in which the names of `tallmc.__all__` are defined belong to the fast suite.
The others are marked `docs` and run in `make docs`, like those of the README and of the pages.

Tests do not use the user's cache of compiled programs; `tests/conftest.py` configures their own.
"""

import os
from pathlib import Path

import jax
import pytest

os.environ["TALLMC_CACHE"] = "off"
_PACKAGE = Path(__file__).parent / "src" / "tallmc"


@pytest.fixture(autouse=True)
def _default_precision_in_docstrings(request):
    if isinstance(request.node, pytest.DoctestItem):
        with jax.enable_x64(False):
            yield
    else:
        yield


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    examples = [item for item in items if isinstance(item, pytest.DoctestItem)]
    top = _modules_of_top_names() if examples else set()
    for item in examples:
        if item.path.is_relative_to(_PACKAGE) and item.dtest.globs["__name__"] not in top:
            item.add_marker(pytest.mark.docs)


def _modules_of_top_names() -> set[str]:
    import tallmc  # not at the top: tests/conftest.py installs its import hook before

    values = (getattr(tallmc, name) for name in tallmc.__all__)
    return {getattr(value, "__module__", getattr(value, "__name__", "")) for value in values}
