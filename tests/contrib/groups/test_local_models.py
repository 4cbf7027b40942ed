"""Mixed effects and matrix factorisation with parameters of groups: densities, and draws."""

import numpy as np
import pytest
from scipy import stats

import tallmc
from tallmc.contrib.groups import matrix_factorisation, mixed_effects

RNG = np.random.default_rng(5)
GROUPS = RNG.integers(0, 4, 30)
X, W = RNG.normal(size=(30, 2)), RNG.normal(size=(30, 1))
Y = X @ [1.0, -0.5] + np.array([1.0, 0.0, -1.0, 0.5])[GROUPS] + 0.3 * RNG.normal(size=30)


def log_posterior(values, y, logistic):
    """Log p(θ, y) of constrained parameters, by scipy."""
    eta = X @ values["beta"] + np.sum(
        np.column_stack([np.ones(30), W]) * values["effects"][GROUPS], axis=1
    )
    total = stats.norm.logpdf(values["beta"], 0, 10).sum()
    total += stats.norm.logpdf(values["effect_mean"], 0, 10).sum()
    total += stats.halfnorm.logpdf(values["effect_sd"], scale=5).sum()
    total += stats.norm.logpdf(values["effects"], values["effect_mean"], values["effect_sd"]).sum()
    if logistic:
        return total + stats.bernoulli.logpmf(y, 1 / (1 + np.exp(-eta))).sum()
    total += stats.halfnorm.logpdf(values["noise_sd"], scale=5)
    return total + stats.norm.logpdf(y, eta, values["noise_sd"]).sum()


@pytest.mark.parametrize("logistic", [False, True])
def test_mixed_effects_have_the_density_of_the_formulas(logistic):
    y = (Y > 0).astype(float) if logistic else Y
    labels = np.array(["d", "a", "c", "b"])[GROUPS]
    family = "logistic" if logistic else "gaussian"
    posterior = mixed_effects(X, y, labels, slopes=W, family=family)
    order = np.argsort(np.array(["d", "a", "c", "b"]))  # groups are sorted by label
    found = []
    for _ in range(3):
        position = np.asarray(posterior.init) + 0.3 * RNG.normal(size=posterior.dim)
        values = {k: v[0, 0] for k, v in posterior.quantities.of(position[None, None]).items()}
        values["effects"] = values["effects"][np.argsort(order)]
        free = posterior.layout.split(position)
        jacobian = sum(free[name].sum() for name in free if name.endswith("_sd"))
        exact = log_posterior(values, y, logistic) + jacobian
        found.append(float(posterior.potential(position)) + exact)
    np.testing.assert_allclose(found, found[0], atol=1e-9)  # equal up to a constant


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"family": "poisson"}, "family must be one of"),
        ({"y": Y[:5]}, "one row per response"),
        ({"groups": GROUPS[:5]}, "one row per response"),
        ({"slopes": W[:5]}, "one row per response"),
        ({"X": X[:, 0]}, "a matrix"),
        ({"X": X * np.nan}, "finite"),
        ({"family": "logistic"}, "0 or 1"),
        ({"prior_scale": 0.0}, "prior_scale"),
    ],
)
def test_bad_mixed_effects_are_refused(change, said):
    with pytest.raises(tallmc.InvalidInput, match=said):
        mixed_effects(**{"X": X, "y": Y, "groups": GROUPS, **change})


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
def test_mixed_effects_agree_with_nuts():
    """All parameters, among them the variances, at a small step size."""
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(20), 10)
    x = rng.normal(size=(200, 2))
    y = x @ [1.0, -1.0] + 1 + 0.7 * rng.normal(size=20)[groups] + 0.5 * rng.normal(size=200)
    posterior = mixed_effects(x, y, groups)
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
