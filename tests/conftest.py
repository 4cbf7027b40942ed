"""Double precision for all tests: exact identities are checked to 1e-12. Single precision has tests of its own."""

import os
from pathlib import Path

import jax
import pytest

jax.config.update("jax_enable_x64", True)

SHARED = Path(os.environ.get("TALLMC_SHARED", Path(__file__).resolve().parents[2] / "shared"))


@pytest.fixture
def shared():
    if not SHARED.is_dir():
        pytest.skip(f"the reference data are not there: no folder {SHARED.name} beside the checkout")
    return SHARED
