"""Docstring examples are written for JAX's default precision, whatever the tests run in.

Tests do not use the user's cache of compiled programs; `tests/conftest.py` configures their own.
"""

import os

import jax
import pytest

os.environ["TALLMC_CACHE"] = "off"


@pytest.fixture(autouse=True)
def _default_precision_in_docstrings(request):
    if isinstance(request.node, pytest.DoctestItem):
        with jax.enable_x64(False):
            yield
    else:
        yield
