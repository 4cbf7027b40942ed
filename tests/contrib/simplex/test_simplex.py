"""Dirichlet–multinomial counts: estimated counts, stationary laws, and what is refused."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tallmc
from tallmc._core.random import new_key
from tallmc._rows.law import Batch
from tallmc._store.setup import decode_method, encode_method
from tallmc.contrib.simplex import DirichletMultinomial, SimplexSampler
from tallmc.subsample import Preferential, Uniform
from test_mutants import cast

LARGEST_Z = 4.6
PRIOR = np.array([0.1, 0.5, 2.0])
ROWS = np.random.default_rng(4).poisson([2.0, 0.3, 0.7], (40, 3))


def posterior():
    return tallmc.contrib.simplex.dirichlet_multinomial(ROWS, PRIOR)


def estimate(subsample, row):
    """n̂ from one row of a subsample of size one."""
    target = posterior()
    method = tallmc.contrib.simplex.scir(step_size=1.0, batch_size=1, subsample=subsample)
    kernel = method.prepare(target).kernel.kernel
    drawn = kernel.selection.stream.at(jnp.array([row]))
    batch = target.rows.gather(drawn)
    simplex = target.model.simplex(target.init)
    return np.asarray(target.model.expected_counts(simplex, batch, new_key(0)))


def mean_over_draws(subsample, probabilities, estimated=estimate):
    return sum(p * estimated(subsample, row) for row, p in enumerate(probabilities))


def laws():
    weights = ROWS.sum(axis=1) + 1.0
    biased = 0.9 * weights / weights.sum() + 0.1 / len(ROWS)
    yield Uniform(), np.full(len(ROWS), 1 / len(ROWS))
    yield Preferential(weights, floor=0.1), biased


@pytest.mark.parametrize("law", list(laws()), ids=["uniform", "preferential"])
def test_estimated_counts_are_unbiased_by_enumeration(law):
    subsample, probabilities = law
    found = mean_over_draws(subsample, probabilities)
    np.testing.assert_allclose(found, ROWS.sum(axis=0), rtol=1e-9)  # the table of draws has 32 bits


def test_a_forgotten_scale_is_found():
    def unscaled(subsample, row):
        target = posterior()
        batch = Batch(target.rows.take(jnp.array([row])), jnp.ones(1))
        return np.asarray(target.model.expected_counts(jnp.ones(3) / 3, batch, new_key(0)))

    found = mean_over_draws(Uniform(), np.full(len(ROWS), 1 / len(ROWS)), unscaled)
    assert np.abs(found - ROWS.sum(axis=0)).max() > 1


def stationary_z(step_size, size, inflation=None):
    """|z| of mean and variance of θ of many chains, against SCIR's law with subsampled counts."""
    method = tallmc.contrib.simplex.scir(step_size=step_size, batch_size=size)
    draws = tallmc.sample(
        posterior(), method, chains=600, n_draws=4, thin=16, burn_in=48, progress=False
    )
    n_rows, chains = len(ROWS), 600
    a = PRIOR + ROWS.sum(axis=0)
    noise = n_rows**2 / size * (1 - size / n_rows) * ROWS.var(axis=0, ddof=1)
    variance = a + noise * np.tanh(step_size / 4) if inflation is None else inflation * a
    squares = (draws.positions - a) ** 2
    found = []
    for values, wanted in ((draws.positions, a), (squares, variance)):
        of_chains = values.mean(axis=1)
        found.append((of_chains.mean(axis=0) - wanted) / (of_chains.std(axis=0) / chains**0.5))
    return np.abs(found).max()


def test_scir_with_subsampled_counts_has_its_stationary_law():
    """θ_k has mean α + n and variance α + n + Var(n̂) tanh(ε/4); ε = 0.5, autocorrelation e⁻⁴."""
    assert stationary_z(0.5, 5) < LARGEST_Z
    assert stationary_z(0.5, 5, inflation=1.0) > LARGEST_Z, "the inflation must be visible"


class WithBackground(DirichletMultinomial):
    """A category comes from w with probability 1/5, and else from (½, ½)."""

    totals_vary = True

    def expected_counts(self, simplex, batch, key):
        from_simplex = simplex / (simplex + 4 * 0.5)
        return batch.weights @ (batch.rows * from_simplex)


def test_scir_has_no_tilt_where_totals_vary():
    """Seven rows of the first category, x ~ w/5 + 4/5·(½, ½): the total is 0.3 to 2.3.

    θ. that follows the total has the law p(w)(α. + n.(w)), and the mean 0.651 instead of 0.609. At
    ε = 0.2 the error of discretisation is still 0.018.
    """
    prior, n = np.array([0.5, 1.0]), 7
    made = tallmc.contrib.simplex.dirichlet_multinomial(np.tile([1, 0], (n, 1)), prior)
    target = dataclasses.replace(made, model=cast(made.model, WithBackground))
    method = tallmc.contrib.simplex.scir(step_size=0.05, batch_size=n)
    draws = tallmc.sample(
        target, method, chains=300, n_draws=30, thin=30, burn_in=300, progress=False
    )
    w = (np.arange(20_000) + 0.5) / 20_000
    density = w ** (prior[0] - 1) * (1 - w) ** (prior[1] - 1) * (w / 5 + 0.4) ** n
    truth = density @ w / density.sum()
    means = draws.values["probabilities"][..., 0].mean(axis=1)
    error = means.std() / len(means) ** 0.5
    assert abs(means.mean() - truth) < LARGEST_Z * error
    assert error < 0.006, "the tilt of 0.043 must be visible"


def test_scir_with_all_rows_draws_from_the_dirichlet():
    method = tallmc.contrib.simplex.scir(step_size=2.0, batch_size=len(ROWS))
    draws = tallmc.sample(posterior(), method, chains=400, n_draws=10, thin=4, progress=False)
    a = PRIOR + ROWS.sum(axis=0)
    mean, total = a / a.sum(), a.sum()
    values = draws.values["probabilities"].mean(axis=1)
    error = values.std(axis=0) / len(values) ** 0.5
    assert np.abs((values.mean(axis=0) - mean) / error).max() < LARGEST_Z
    squares = ((draws.values["probabilities"] - mean) ** 2).mean(axis=1)
    variance = mean * (1 - mean) / (total + 1)
    z = (squares.mean(axis=0) - variance) / (squares.std(axis=0) / len(squares) ** 0.5)
    assert np.abs(z).max() < LARGEST_Z


@pytest.mark.parametrize(
    "make", [tallmc.contrib.simplex.scir, tallmc.contrib.simplex.sgrld_simplex]
)
def test_draws_are_never_called_checked(make):
    with pytest.warns(tallmc.SamplingWarning):
        draws = tallmc.sample(
            posterior(),
            make(step_size=0.05, batch_size=5),
            n_draws=300,
            measure_bias=True,
            progress=False,
        )
    assert not draws.report.trusted
    values = draws.values["probabilities"]
    np.testing.assert_allclose(values.sum(axis=-1), 1, rtol=1e-10)
    assert (values > 0).all()


def test_gradient_methods_are_refused_with_the_cure():
    for method in (
        tallmc.methods.sgld(1e-3, batch_size=5),
        tallmc.methods.sgld_cv(1e-3, batch_size=5),
        tallmc.methods.mala(1e-3),
    ):
        with pytest.raises(tallmc.InvalidInput, match=r"scir\(step_size"):
            tallmc.sample(posterior(), method, progress=False)
    with pytest.raises(tallmc.InvalidInput, match=r"tallmc\.contrib\.simplex\.scir\(step_size="):
        tallmc.sample(posterior(), progress=False)


def test_simplex_methods_need_a_model_of_counts():
    rng = np.random.default_rng(0)
    regression = tallmc.models.linear_regression(rng.normal(size=(9, 1)), np.ones(9), 1.0, 1.0)
    with pytest.raises(tallmc.InvalidInput, match="dirichlet_multinomial"):
        tallmc.sample(regression, tallmc.contrib.simplex.scir(0.1, batch_size=2), progress=False)
    with pytest.raises(tallmc.InvalidInput, match="models of counts"):
        tallmc.suggest(regression, "scir")


@pytest.mark.parametrize(
    ("counts", "prior", "match"),
    [
        ([[1.5, 0]], 1.0, "be counts"),
        ([[-1, 0]], 1.0, "be counts"),
        ([[np.nan, 0]], 1.0, "be counts"),
        ([1, 2], 1.0, "be a matrix"),
        ([[1, 2]], 0.0, "be a positive number"),
        ([[1, 2]], [1.0, 1.0, 1.0], "be a positive number"),
    ],
)
def test_bad_counts_are_answered(counts, prior, match):
    with pytest.raises(tallmc.InvalidInput, match=match):
        tallmc.contrib.simplex.dirichlet_multinomial(counts, prior)


def test_settings_are_checked_and_stored():
    for wrong in ({"batch_size": 0}, {"transition": "euler"}, {"subsample": "uniform"}):
        with pytest.raises(tallmc.InvalidInput):
            SimplexSampler(**{"step_size": 0.1, "batch_size": 2, **wrong})
    with pytest.raises(tallmc.InvalidInput, match="size"):
        tallmc.contrib.simplex.scir(0.1, batch_size=41).prepare(posterior())
    method = tallmc.contrib.simplex.sgrld_simplex(0.1, batch_size=3)
    assert decode_method(*encode_method(method)) == method


@pytest.mark.filterwarnings("ignore::tallmc.SamplingWarning")
def test_a_stored_run_is_resumed_bit_for_bit(tmp_path):
    method, settings = (
        tallmc.contrib.simplex.scir(0.5, batch_size=5),
        {"chains": 2, "burn_in": 10, "progress": False},
    )
    whole = tallmc.sample(posterior(), method, n_draws=40, **settings)
    tallmc.sample(posterior(), method, n_draws=20, store=tmp_path / "run", **settings)
    longer = tallmc.resume(tmp_path / "run", posterior(), n_draws=40, progress=False)
    np.testing.assert_array_equal(longer.positions, whole.positions)


def test_sparse_matrices_are_counts():
    sparse = pytest.importorskip("scipy.sparse")
    dense = posterior()
    found = tallmc.contrib.simplex.dirichlet_multinomial(sparse.csr_matrix(ROWS), PRIOR)
    np.testing.assert_array_equal(jax.tree.leaves(found.rows)[0], jax.tree.leaves(dense.rows)[0])
