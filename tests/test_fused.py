"""The fused GPU kernel, run in the Pallas interpreter, equals the plain sum over rows."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tallmc
from kept_programs import run_once
from problems import slow_after
from tallmc._store.setup import fingerprint
from tallmc.models import generalised_linear as fused
from tallmc.rows import ResidentRows, RowDraws


@pytest.fixture
def regression(monkeypatch):
    monkeypatch.setattr(fused, "interpret", True)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 6))
    return tallmc.models.logistic_regression(x, rng.random(300) < 0.5, prior_variance=1.0)


def unpacked(posterior):
    """The same posterior without the packed copy of its rows that the GPU kernel reads."""
    return dataclasses.replace(posterior, rows=ResidentRows(posterior.data))


@pytest.mark.parametrize("n", slow_after(1, [37, 1, 16]))
def test_fused_sums_are_those_of_gathered_rows(regression, n):
    assert regression.rows.packed.shape == (300, 8)
    rng = np.random.default_rng(1)
    indices = jnp.asarray(rng.integers(0, 300, (4, n)), jnp.int32)
    weights = jnp.asarray(rng.uniform(0.5, 2, (4, n)), regression.init.dtype)
    positions = jnp.asarray(rng.normal(size=(4, 6)), regression.init.dtype)
    centre = jnp.asarray(rng.normal(size=6), regression.init.dtype)

    @run_once
    def sums(posterior):
        """The sums of all orders, by chain."""

        def of_chain(position, weights, indices):
            batch = posterior.rows.complete(posterior.rows.gather(RowDraws(indices, weights)))
            model = posterior.model
            return [model.sum_remainders(order, position, centre, batch) for order in (0, 1, 2)]

        return jax.vmap(of_chain)(positions, weights, indices)

    for found, plain in zip(sums(regression), sums(unpacked(regression)), strict=True):
        np.testing.assert_allclose(found, plain, rtol=1e-4, atol=1e-4)
        assert np.abs(plain).min() > 0


@pytest.mark.slow
def test_a_chain_by_fused_sums_is_a_chain_by_gathered_rows(regression):
    plain = unpacked(regression)
    method = tallmc.methods.sgld(step_size=1e-3, batch_size=20)
    found, expected = (
        tallmc.sample(posterior, method, n_draws=20, chains=2, burn_in=0, thin=1).positions
        for posterior in (regression, plain)
    )
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


def test_a_posterior_is_known_again_where_there_is_no_gpu(regression):
    assert fingerprint(regression) == fingerprint(unpacked(regression))


def test_no_copy_of_the_data_is_made_where_there_is_no_gpu():
    if jax.default_backend() == "gpu":
        pytest.skip("there is a GPU")
    assert (
        tallmc.models.logistic_regression(
            np.ones((3, 2)), [0, 1, 0], prior_variance=1.0
        ).rows.packed
        is None
    )
