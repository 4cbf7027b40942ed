"""Chains on several devices: the draws are those of one device, bit for bit."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import tallmc
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


def all_draws(store: Path, devices=None) -> dict[str, np.ndarray]:
    """Draws of methods that read rows on the device, and rows that the host sends to it."""
    carried, stored = posteriors(store)
    runs = {
        "memory": (carried, tallmc.methods.saga_ld(1e-3, batch_size=8)),
        "store": (stored, tallmc.methods.svrg_ld(1e-4, batch_size=8, every=20)),
    }
    return {
        name: tallmc.sample(
            posterior, method, chains=10, n_draws=40, devices=devices, progress=False
        ).positions
        for name, (posterior, method) in runs.items()
    }


def devices_of_groups(store: Path, devices) -> list[int]:
    """The number of the device on which each group of ten chains is."""
    posterior = posteriors(store)[0]
    kernel = tallmc.methods.sgld(1e-3, batch_size=8).prepare(posterior).kernel.kernel
    with chains_on(devices):
        start = np.broadcast_to(np.asarray(posterior.init), (10, posterior.dim))
        run = Run(
            BoundKernel(kernel, posterior), chain_keys(0, 10), jax.numpy.array(start), 0, 1, 9
        )
        run.run_to(9)
    return [next(iter(state.outcome.devices())).id for state in run._chains._states]


def test_two_devices_change_no_bit(tmp_path):
    store = write_logistic(tmp_path / "store")
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_ENABLE_X64": "1", "JAX_PLATFORMS": "cpu"}
    subprocess.run([sys.executable, __file__, tmp_path], check=True, env=environment, timeout=240)
    expected = all_draws(store)
    for kind in ("number", "sequence"):
        for name, draws in expected.items():
            assert np.isfinite(draws).all()
            found = np.load(tmp_path / f"{name}-{kind}.npy")
            np.testing.assert_array_equal(found, draws, err_msg=name, strict=True)
    np.testing.assert_array_equal(np.load(tmp_path / "placed.npy"), [[0, 1, 0], [1, 0, 1]])


@pytest.mark.parametrize("devices", [0, len(jax.local_devices()) + 1, "cpu", True])
def test_the_number_of_devices_is_checked(tmp_path, devices):
    carried, _ = posteriors(write_logistic(tmp_path / "store"))
    with pytest.raises(
        tallmc.InvalidInput, match=r"devices must be an int in \[1, number of local"
    ):
        tallmc.sample(carried, devices=devices)


@pytest.mark.parametrize("devices", [[], [jax.local_devices()[0]] * 2, ["cpu"]])
def test_devices_are_checked(tmp_path, devices):
    carried, _ = posteriors(write_logistic(tmp_path / "store"))
    with pytest.raises(tallmc.InvalidInput, match="devices must be different devices"):
        tallmc.sample(carried, devices=devices)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    backwards = jax.local_devices()[::-1]
    for kind, devices in (("number", 2), ("sequence", backwards)):
        for name, draws in all_draws(folder / "store", devices).items():
            np.save(folder / f"{name}-{kind}.npy", draws)
    placed = [devices_of_groups(folder / "store", devices) for devices in (2, backwards)]
    np.save(folder / "placed.npy", placed)
