"""Posteriors with parameters of groups: densities of your own, matrix factorisation, and draws."""

import jax.numpy as jnp
import jax.scipy.stats as densities
import numpy as np
import pytest
from scipy import stats

import tallmc
from tallmc.contrib.groups import Local, LocalPosterior, NormalGroups, matrix_factorisation

RNG = np.random.default_rng(5)


def mixed(x, y, groups):
    """A regression whose intercepts differ between groups, with unknown sds."""
    n_groups = groups.max() + 1

    def log_prior(shared):
        prior = densities.norm.logpdf(shared["beta"], 0.0, 10.0).sum()
        prior += densities.norm.logpdf(shared["mean"], 0.0, 10.0)
        return prior - sum(0.5 * (shared[name] / 5.0) ** 2 for name in ("effect_sd", "noise_sd"))

    return LocalPosterior(
        lambda shared, local, row: densities.norm.logpdf(
            row["y"], jnp.dot(row["x"], shared["beta"]) + local["effects"], shared["noise_sd"]
        ),
        log_prior,
        {"x": x, "y": y},
        {"beta": np.zeros(x.shape[1]), "mean": y.mean(), "effect_sd": 0.5, "noise_sd": y.std()},
        {
            "effects": Local(
                groups,
                np.full(n_groups, y.mean()),
                NormalGroups(lambda shared: (shared["mean"], shared["effect_sd"])),
            )
        },
        transforms={"effect_sd": "positive", "noise_sd": "positive"},
    )


def test_densities_of_your_own_have_their_formulas():
    """Shared parameters under a constraint, with its Jacobian, and effects under their prior."""
    groups = np.repeat(np.arange(4), 8)
    x = RNG.normal(size=(32, 2))
    y = x @ [1.0, -0.5] + np.array([1.0, 0.0, -1.0, 0.5])[groups] + 0.3 * RNG.normal(size=32)
    posterior = mixed(x, y, groups)
    found = []
    for _ in range(3):
        position = np.asarray(posterior.init) + 0.3 * RNG.normal(size=posterior.dim)
        free = posterior.layout.split(position)
        values = {k: v[0, 0] for k, v in posterior.quantities.of(position[None, None]).items()}
        predictor = x @ values["beta"] + values["effects"][groups]
        exact = stats.norm.logpdf(values["beta"], 0, 10).sum()
        exact += stats.norm.logpdf(values["mean"], 0, 10)
        exact += stats.norm.logpdf(values["effects"], values["mean"], values["effect_sd"]).sum()
        exact += stats.norm.logpdf(y, predictor, values["noise_sd"]).sum()
        for name in ("effect_sd", "noise_sd"):
            np.testing.assert_allclose(values[name], np.exp(free[name]), rtol=1e-12)
            exact += stats.halfnorm.logpdf(values[name], scale=5) + free[name].sum()
        found.append(float(posterior.potential(position)) + exact)
    np.testing.assert_allclose(found, found[0], atol=1e-9)  # equal up to a constant


USERS, ITEMS = np.array([0, 0, 1, 2, 2, 1]), np.array([0, 1, 1, 0, 1, 0])
RATINGS = np.array([4.0, 1.0, 2.0, 3.0, 5.0, 2.5])


def test_local_matrix_factorisation_has_the_density_of_the_dense_one():
    dense = matrix_factorisation(USERS, ITEMS, RATINGS, rank=2)
    local = matrix_factorisation(USERS, ITEMS, RATINGS, rank=2, local=True)
    assert local.layout.names == dense.layout.names
    np.testing.assert_array_equal(local.init, dense.init)
    for _ in range(3):
        position = RNG.normal(size=dense.dim)
        np.testing.assert_allclose(local.potential(position), dense.potential(position), rtol=1e-12)
        np.testing.assert_allclose(
            local.gradient(position), dense.gradient(position), rtol=1e-9, atol=1e-9
        )


def test_a_user_without_ratings_is_refused_in_the_local_form():
    with pytest.raises(tallmc.InvalidInput, match="no row of group 3"):
        matrix_factorisation(USERS, ITEMS, RATINGS, n_users=4, rank=2, local=True)
    with pytest.raises(tallmc.InvalidInput, match="local=True"):
        matrix_factorisation(USERS, ITEMS, RATINGS, rank=2, keep="all")


@pytest.mark.slow
def test_draws_agree_with_nuts():
    """All parameters, among them the variances, at a small step size."""
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(20), 10)
    x = rng.normal(size=(200, 2))
    y = x @ [1.0, -1.0] + 1 + 0.7 * rng.normal(size=20)[groups] + 0.5 * rng.normal(size=200)
    posterior = mixed(x, y, groups)
    exact = tallmc.reference.nuts(posterior, chains=4, n_draws=1000, seed=1)
    method = tallmc.contrib.groups.local_sgld(0.005, 20, preconditioned=True)
    draws = tallmc.sample(posterior, method, chains=16, n_draws=1000, thin=40, burn_in=20_000)
    mean, sd = exact.positions.mean(axis=(0, 1)), exact.positions.std(axis=(0, 1))
    means = draws.positions.mean(axis=1)
    error = means.std(axis=0, ddof=1) / np.sqrt(len(means))
    # A bias of order ε: 5 % of a standard deviation, beside the errors of both runs.
    assert (np.abs(means.mean(axis=0) - mean) < 0.05 * sd + 4.6 * (error + sd / 30)).all()
    ratio = draws.positions.std(axis=(0, 1)) / sd
    assert (np.abs(ratio - 1) < 0.12).all()
