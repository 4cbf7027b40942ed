"""Chains on several devices: the draws are those of one device, bit for bit."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import tallmc
from problems import slow_after
from row_stores import write_logistic
from tallmc._engine.chains import chains_on
from tallmc._engine.kernel import BoundKernel
from tallmc._engine.run import Run, chain_keys

pytestmark = pytest.mark.filterwarnings("ignore::tallmc.SamplingWarning")


def posteriors(store: Path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(500, 2))
    y = rng.random(500) < 1 / (1 + np.exp(-x @ [1.0, -1.0]))
    carried = tallmc.models.logistic_regression(x, y, prior_variance=10.0)
    stored = tallmc.models.logistic_regression(tallmc.rows.open(store), prior_variance=10.0)
    return carried, stored


METHODS = {
    "memory": tallmc.methods.saga_ld(1e-3, batch_size=8),
    "store": tallmc.methods.svrg_ld(1e-4, batch_size=8, every=20),
}
"""One reads rows on the device; to the other the host sends rows."""


def draws_of(name: str, store: Path, devices=None) -> np.ndarray:
    posterior = dict(zip(METHODS, posteriors(store), strict=True))[name]
    return tallmc.sample(
        posterior, METHODS[name], chains=10, n_draws=40, devices=devices, progress=False
    ).positions


def devices_of_groups(name: str, store: Path, devices) -> list[int]:
    """The number of the device on which each group of ten chains is."""
    posterior = dict(zip(METHODS, posteriors(store), strict=True))[name]
    kernel = METHODS[name].prepare(posterior).kernel.kernel
    with chains_on(devices):
        start = np.broadcast_to(np.asarray(posterior.init), (10, posterior.dim))
        run = Run(
            BoundKernel(kernel, posterior), chain_keys(0, 10), jax.numpy.array(start), 0, 1, 9
        )
        run.run_to(9)
    return [next(iter(state.outcome.devices())).id for state in run._chains._states]


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_after(1, METHODS))
def test_two_devices_change_no_bit(name, tmp_path):
    store = write_logistic(tmp_path / "store")
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_ENABLE_X64": "1", "JAX_PLATFORMS": "cpu"}
    arguments = [sys.executable, __file__, tmp_path, name]
    subprocess.run(arguments, check=True, env=environment, timeout=240)
    expected = draws_of(name, store)
    assert np.isfinite(expected).all()
    for kind in ("number", "sequence"):
        found = np.load(tmp_path / f"{kind}.npy")
        np.testing.assert_array_equal(found, expected, err_msg=kind, strict=True)
    np.testing.assert_array_equal(np.load(tmp_path / "placed.npy"), [[0, 1, 0], [1, 0, 1]])


@pytest.fixture(scope="module")
def small():
    return tallmc.models.logistic_regression(np.ones((4, 1)), [0, 1, 1, 0], prior_variance=1.0)


@pytest.mark.parametrize("devices", [0, len(jax.local_devices()) + 1, "cpu", True])
def test_the_number_of_devices_is_checked(small, devices):
    with pytest.raises(
        tallmc.InvalidInput, match=r"devices must be an int in \[1, number of local"
    ):
        tallmc.sample(small, devices=devices)


@pytest.mark.parametrize("devices", [[], [jax.local_devices()[0]] * 2, ["cpu"]])
def test_devices_are_checked(small, devices):
    with pytest.raises(tallmc.InvalidInput, match="devices must be different devices"):
        tallmc.sample(small, devices=devices)


if __name__ == "__main__":
    folder, name = Path(sys.argv[1]), sys.argv[2]
    backwards = jax.local_devices()[::-1]
    for kind, devices in (("number", 2), ("sequence", backwards)):
        np.save(folder / f"{kind}.npy", draws_of(name, folder / "store", devices))
    placed = [devices_of_groups(name, folder / "store", devices) for devices in (2, backwards)]
    np.save(folder / "placed.npy", placed)
