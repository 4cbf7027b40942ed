"""The adaptive size is eq. 19, the bound of eq. 18 holds, and a step reads that many rows."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tallmc
from problems import linear, logistic, slow_after
from tallmc._engine.run import Run, chain_keys
from tallmc.gradient import ControlVariate
from tallmc.subsample import BoundedNoise, Preferential

METHODS = {"asgld_cv": tallmc.methods.asgld_cv, "asgld_cv_ps": tallmc.methods.asgld_cv_ps}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("model", slow_after(1, [logistic, linear]))
def test_size_is_eq_19_and_keeps_the_noise_under_the_threshold(name, model):
    posterior = model(n_rows=2000, dim=3)
    anchor = tallmc.anchor.find_anchor(posterior)
    lipschitz, position_rng = np.asarray(posterior.lipschitz()), np.random.default_rng(0)
    threshold = 1e5
    bound_kernel = METHODS[name](1e-4, threshold).prepare(posterior, anchor).kernel
    kernel, rows = bound_kernel.kernel, bound_kernel.rows
    p = kernel.selection.stream.probabilities()
    sizes = []
    for scale in (0.0, 0.01, 0.03, 0.1, 0.3):
        position = anchor.position + scale * position_rng.normal(size=3)
        squared_distance = float(jnp.sum((position - anchor.position) ** 2))
        bound = squared_distance * np.sum(lipschitz**2 / p)
        n = int(kernel.selection.size_at(position))
        assert n == min(max(int(np.ceil(bound / threshold)), 1), 2000)
        residuals = kernel.gradient.residuals(position, rows.columns)
        r = np.asarray(kernel.model.expand(residuals, rows.columns))
        noise = (np.sum(r**2 / p[:, None]) - np.sum(r.sum(0) ** 2)) / n
        assert noise <= bound / n * (1 + 1e-9)  # eq. 18
        if n < 2000:
            assert noise <= threshold
        sizes.append(n)
    assert sizes[0] == 1
    assert sizes == sorted(sizes)
    assert sizes[-1] > 50


def test_threshold_is_that_of_section_5_3_3():
    posterior = linear(n_rows=2000, dim=2)
    anchor = tallmc.anchor.find_anchor(posterior)
    pilot = tallmc.methods.sgld_cv_ps(1e-4, batch_size=2).prepare(posterior, anchor).kernel
    found = tallmc.methods.method.noise_threshold(pilot, anchor, chains=5, steps=400, seed=3)
    kernel = pilot.kernel
    keys, start = chain_keys(3, 5, purpose=1), jnp.broadcast_to(anchor.position, (5, 2))
    run = Run(pilot, keys, start, burn_in=0, thin=1, n_draws=400)
    run.run_to(400)
    squared = np.sum((run.positions() - np.asarray(anchor.position)) ** 2, axis=2)
    expected_percentiles = [np.sort(chain)[379:381].mean() for chain in squared]
    np.testing.assert_allclose(found.squared_distances, expected_percentiles, rtol=0.05)
    p, L = kernel.selection.stream.probabilities(), np.asarray(posterior.lipschitz())
    bound = np.sum(L**2 / p)
    assert found.threshold == pytest.approx(found.squared_distances.max() * bound / 2, rel=1e-12)
    assert found.n_row_evals == 5 * 400 * 2 + 2000

    size = BoundedNoise(pilot_steps=400, pilot_chains=5)
    method = tallmc.Method(
        gradient=ControlVariate(), subsample=Preferential(), batch_size=size, step_size=1e-4
    )
    prepared = method.prepare(posterior, anchor, seed=3)
    per_distance = float(prepared.kernel.composition.selection.rows_per_squared_distance)
    assert per_distance == pytest.approx(bound / found.threshold, rel=1e-9)
    # Three passes: the check of the anchor, the weights and the Lipschitz constants.
    assert prepared.n_row_evals == anchor.n_row_evals + 3 * 2000 + found.n_row_evals


def test_rows_read_follow_the_size_and_nothing_is_compiled_again():
    posterior = linear(n_rows=20_000, dim=2)
    bound = tallmc.methods.asgld_cv(1e-4, noise_threshold=1e6).prepare(posterior).kernel
    selection = bound.kernel.selection
    compiled = eqx.filter_jit(
        lambda bound, position, words: bound.kernel.estimate(position, words, bound.rows)
    )
    sizes = []
    for scale in (0.01, 0.1, 1.0):
        words = selection.draw(jax.random.key(0), 1)[0]
        estimate = compiled(bound, selection.anchor + scale, words)
        sizes.append(int(estimate.n_rows))
    assert sizes[0] < sizes[1] < sizes[2]
    assert compiled._cached._cache_size() == 1


@pytest.mark.slow
def test_recorded_sizes_and_row_counts_agree():
    posterior = linear(n_rows=2000, dim=2)
    method = tallmc.methods.asgld_cv(1e-4, noise_threshold=3e6)
    draws = tallmc.sample(posterior, method, chains=3, n_draws=200, burn_in=0, seed=0)
    sizes, rows = draws.sample_stats["batch_size"], draws.sample_stats["n_row_evals"]
    assert sizes.min() >= 1
    assert sizes.max() > sizes.min()
    np.testing.assert_array_equal(np.cumsum(sizes, axis=1), rows)
    assert draws.n_row_evals_sampling == rows[:, -1].sum()
