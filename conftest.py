"""Docstring examples are written for JAX's default precision, whatever the tests run in.

Those of the functions `tallmc.sample`, `check`, `resume` and `cite` belong to the fast suite.
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
    for item in examples:
        in_package = item.path.is_relative_to(_PACKAGE)
        if in_package and not item.path.is_relative_to(_PACKAGE / "_api"):
            item.add_marker(pytest.mark.docs)
