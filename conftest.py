"""Docstring examples are written for JAX's default precision, whatever the tests run in."""

import jax
import pytest


@pytest.fixture(autouse=True)
def _default_precision_in_docstrings(request):
    if isinstance(request.node, pytest.DoctestItem):
        with jax.enable_x64(False):
            yield
    else:
        yield
