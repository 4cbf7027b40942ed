"""Leave-one-out on a subsample of rows: exact with all rows, unbiased, honest errors."""

import dataclasses

import numpy as np
import pytest

import tallmc
from problems import laplace_draws, slow_after
from row_stores import stored_logistic
from tallmc.diagnose import loo

RNG = np.random.default_rng(8)
X = np.c_[np.ones(300), RNG.normal(size=(300, 3))]
ETA = X @ [0.3, 0.8, -0.5, 0.0]


@pytest.fixture(scope="module", params=slow_after(1, ["poisson", "linear"]))
def fitted(request):
    if request.param == "poisson":
        y = RNG.poisson(np.exp(ETA)).astype(float)
        posterior = tallmc.models.poisson_regression(X, y, prior_variance=4.0)
    else:
        y = ETA + RNG.normal(size=len(X))
        posterior = tallmc.models.linear_regression(X, y, prior_variance=4.0)
    return posterior, laplace_draws(posterior)


def test_with_all_rows_it_is_loo_of_arviz(fitted):
    import arviz_stats

    posterior, draws = fitted
    expected = arviz_stats.loo(draws.to_datatree(log_likelihood=posterior.data), pointwise=True)
    found = loo(draws, posterior, n=10_000)
    assert found.n == found.n_rows == 300
    assert found.elpd == pytest.approx(expected.elpd, rel=1e-10)
    assert found.se == pytest.approx(expected.se, rel=1e-8)
    assert found.p_loo == pytest.approx(expected.p, rel=1e-8)
    assert found.subsampling_se == 0
    np.testing.assert_allclose(found.pareto_k, expected.pareto_k.values.ravel(), rtol=1e-8)


@pytest.mark.slow
def test_estimates_are_unbiased_and_their_errors_honest(fitted):
    posterior, draws = fitted
    exact = loo(draws, posterior, n=300)
    found = [loo(draws, posterior, n=15, seed=seed) for seed in range(100)]
    elpd, p_loo = (np.array([getattr(one, name) for one in found]) for name in ("elpd", "p_loo"))
    assert abs(elpd.mean() - exact.elpd) < 4.6 * elpd.std() / np.sqrt(len(found))
    assert abs(p_loo.mean() - exact.p_loo) < 4.6 * p_loo.std() / np.sqrt(len(found))
    # The expectation of the squared error is the variance.
    excess = (elpd - exact.elpd) ** 2 - np.array([one.subsampling_se**2 for one in found])
    assert abs(excess.mean()) < 4.6 * excess.std() / np.sqrt(len(found))
    squares = np.array([one.se**2 for one in found])
    assert abs(squares.mean() - exact.se**2) < 4.6 * squares.std() / np.sqrt(len(found))
    # The surrogate explains most of the spread: rows alone would give an error 10 times as large.
    plain = exact.se * np.sqrt(300 / 15 * (1 - 15 / 300))
    assert np.median([one.subsampling_se for one in found]) < 0.1 * plain


@pytest.mark.slow
def test_rows_on_disk_give_the_same_estimate(tmp_path):
    on_disk, in_memory = stored_logistic(tmp_path / "rows")
    draws = laplace_draws(in_memory)
    found, expected = loo(draws, on_disk, n=40), loo(draws, in_memory, n=40)
    assert found.elpd == pytest.approx(expected.elpd, rel=1e-6)
    assert found.subsampling_se == pytest.approx(expected.subsampling_se, rel=1e-3)


def test_weights_of_draws_are_weights_of_importance_sampling(fitted):
    """A draw of weight 3 counts as the same draw three times."""
    posterior, draws = fitted
    order = np.argsort(draws.positions[0, :, 1])
    positions = draws.positions[:1, order]
    is_heavy = np.arange(len(order)) < 40
    one = dataclasses.replace(draws, positions=positions, outcomes=draws.outcomes[:1])
    steps = np.where(is_heavy, 3.0, 1.0)[None]
    weighted = loo(dataclasses.replace(one, sample_stats={"step_size": steps}), posterior, n=60)
    copies = np.repeat(positions, np.where(is_heavy, 3, 1), axis=1)
    repeated = loo(dataclasses.replace(one, positions=copies), posterior, n=60)
    plain = loo(one, posterior, n=60)
    assert weighted.elpd + weighted.p_loo == pytest.approx(
        repeated.elpd + repeated.p_loo, rel=1e-10
    )
    # The tails that are smoothed differ, the weights do not.
    assert abs(weighted.elpd - repeated.elpd) < 0.5 * abs(plain.elpd - repeated.elpd)


def test_bad_input_is_an_error(fitted):
    posterior, draws = fitted
    with pytest.raises(tallmc.InvalidInput, match="n must be an int of at least 2"):
        loo(draws, posterior, n=1)
    other = tallmc.models.logistic_regression(X[:, :2], (ETA > 0) * 1.0, prior_variance=1.0)
    with pytest.raises(tallmc.InvalidInput, match="have the parameters of the draws"):
        loo(draws, other)
    assert "of 300 rows" in repr(loo(draws, posterior, n=10))
