"""Double precision for all tests: exact identities are checked to 1e-12. Single precision has tests of its own."""

import os
import shutil
import tempfile
from pathlib import Path

import jax
import pytest

jax.config.update("jax_enable_x64", True)

_COMPILED = "JAX_COMPILATION_CACHE_DIR"


def pytest_configure(config):
    """What one test or process has compiled, the others of this run need not: a fifth less time."""
    if not hasattr(config, "workerinput") and _COMPILED not in os.environ:
        config.compiled = os.environ[_COMPILED] = tempfile.mkdtemp()
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    jax.config.update("jax_compilation_cache_dir", os.environ[_COMPILED])
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)


def pytest_unconfigure(config):
    if hasattr(config, "compiled"):
        shutil.rmtree(config.compiled, ignore_errors=True)


SHARED = Path(os.environ.get("TALLMC_SHARED", Path(__file__).resolve().parents[2] / "shared"))


@pytest.fixture
def shared():
    if not SHARED.is_dir():
        pytest.skip(f"the reference data are not there: no folder {SHARED.name} beside the checkout")
    return SHARED
