"""Operations on rows equal those on arrays, and methods refuse rows that they cannot read."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tallmc
from problems import DYNAMICS, GRADIENTS, SIZES, SUBSAMPLES, design, logistic
from tallmc.anchor.passes import CountedPasses
from tallmc.models.base import block_potential_and_gradient
from tallmc.models.posterior import _row_lipschitz
from tallmc.rows import AbstractRows, ResidentRows, RowAccess, RowDraws
from tallmc.rows import passes as _passes
from tallmc.rows.blocks import block_rows

N_ROWS = 20_011  # two full blocks and a partial one at this width
WIDTH = 60


def table() -> ResidentRows:
    rng = np.random.default_rng(0)
    return ResidentRows({"x": jnp.asarray(rng.normal(size=(N_ROWS, 3))), "y": jnp.arange(N_ROWS)})


def sum_of_products(rows, counted, factor):
    products = rows["x"] * rows["y"][:, None]
    return {"xy": factor * jnp.sum(products, axis=0, where=counted[:, None])}


def sum_of_chosen(rows, beside, counted, factor):
    return factor * jnp.sum(jnp.where(counted & (beside > 0), rows["y"], 0))


def doubled(total, factor):
    return jax.tree.map(lambda value: 2 * value, total.rounded())


def row_norms(rows, factor):
    return factor * jnp.linalg.norm(rows["x"], axis=1)


def test_reduce_is_the_sum_over_all_rows():
    rows = table()
    assert N_ROWS % block_rows(WIDTH) and 2 * block_rows(WIDTH) < N_ROWS
    x, y = np.asarray(rows.columns["x"]), np.asarray(rows.columns["y"])
    total = rows.reduce(sum_of_products, 3.0, width=WIDTH)
    np.testing.assert_allclose(total.float64()["xy"], 3 * (x * y[:, None]).sum(axis=0), rtol=1e-12)
    finished = rows.reduce(sum_of_products, 3.0, width=WIDTH, finish=doubled)
    np.testing.assert_allclose(finished["xy"], 6 * (x * y[:, None]).sum(axis=0), rtol=1e-12)
    chosen = rows.reduce(sum_of_chosen, 1, width=WIDTH, beside=jnp.arange(N_ROWS) % 2)
    assert int(chosen.float64()) == y[1::2].sum()


@pytest.mark.parametrize("n_rows", [3, 100, N_ROWS])
def test_a_compiled_pass_agrees_with_one_driven_by_the_host(n_rows):
    rng = np.random.default_rng(0)
    x, position = rng.normal(size=(n_rows, 5)), jnp.asarray(rng.normal(size=5))
    posterior = tallmc.models.logistic_regression(x, rng.random(n_rows) < 0.5, prior_variance=1.0)
    model, rows = posterior.model, posterior.rows

    driven = rows.reduce(block_potential_and_gradient, model, position, width=WIDTH)
    compiled = eqx.filter_jit(
        lambda *args: args[0].reduce(block_potential_and_gradient, *args[1:], width=WIDTH)
    )(rows, model, position)
    jax.tree.map(
        lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12),
        driven.float64(),
        compiled.float64(),
    )


def test_programs_of_a_pass_do_not_depend_on_the_number_of_rows():
    def pass_over(n_rows):
        x = np.random.default_rng(0).normal(size=(n_rows, 5))
        posterior = tallmc.models.logistic_regression(x, x[:, 0] > 0, prior_variance=1.0)
        passes = CountedPasses(posterior)
        passes.value_and_gradient(np.zeros(5))
        passes.hessian(np.zeros(5))
        posterior.rows.map(_row_lipschitz, posterior.model, width=posterior.width)

    pass_over(N_ROWS)
    before = [program._cache_size() for program in (_passes._add_block, _passes._values)]
    pass_over(3 * N_ROWS + 17)
    after = [program._cache_size() for program in (_passes._add_block, _passes._values)]
    assert after == before


def test_a_subset_has_whole_blocks_and_needs_no_other_program():
    rows = table()
    size = block_rows(WIDTH)
    subset, everything = rows.subset(0.5, WIDTH), rows.subset(1.0, WIDTH)
    assert subset.n_rows == size and everything.n_rows == N_ROWS
    count = rows.reduce(sum_of_chosen, 1, width=WIDTH, beside=jnp.ones(N_ROWS), subset=subset)
    first = subset.numbers[0] * size
    assert int(count.float64()) == np.arange(first, first + size).sum()
    whole = rows.reduce(sum_of_chosen, 1, width=WIDTH, beside=jnp.ones(N_ROWS), subset=everything)
    assert int(whole.float64()) == np.arange(N_ROWS).sum()


def test_map_gives_one_value_per_row():
    rows = table()
    expected = 2 * np.linalg.norm(np.asarray(rows.columns["x"]), axis=1)
    np.testing.assert_allclose(rows.map(row_norms, 2.0, width=WIDTH), expected, rtol=1e-12)


@pytest.mark.parametrize("weights", ["uniform", "uneven"])
def test_a_stream_draws_from_its_probabilities_with_their_inverses(weights):
    n_rows, n_draws = 50, 200_000
    rows = ResidentRows({"y": jnp.arange(n_rows)})
    p = np.full(n_rows, 1 / n_rows)
    if weights == "uneven":
        p = np.random.default_rng(0).lognormal(size=n_rows)
        p /= p.sum()
    stream = rows.stream(None if weights == "uniform" else p, jnp.float64)
    np.testing.assert_allclose(stream.probabilities(), p, rtol=1e-6)
    drawn = stream.draw(jax.random.key(0), (n_draws,))
    counts = np.bincount(np.asarray(drawn.indices), minlength=n_rows)
    z = (counts - n_draws * p) / np.sqrt(n_draws * p * (1 - p))
    assert np.abs(z).max() < 4.6
    np.testing.assert_allclose(drawn.weights, 1 / p[np.asarray(drawn.indices)], rtol=1e-6)
    np.testing.assert_array_equal(rows.gather(drawn).rows["y"], drawn.indices)


def test_a_stream_can_be_entered_anywhere():
    stream = ResidentRows({"y": jnp.arange(50)}).stream(None, jnp.float64)
    whole, key = stream.draw(jax.random.key(1), (100,)), jax.random.key(1)
    part = stream.draw(key, (10,), 37)
    np.testing.assert_array_equal(part.indices, whole.indices[37:47])


class StreamedRows(AbstractRows):
    """Rows without `take`, a stand-in for rows that are not in memory."""

    inner: ResidentRows
    access = RowAccess.STREAM

    @property
    def n_rows(self):
        return self.inner.n_rows

    @property
    def row_shapes(self):
        return self.inner.row_shapes

    @property
    def floats_per_row(self):
        return self.inner.floats_per_row

    def reduce(self, *args, **options):
        return self.inner.reduce(*args, **options)

    def map(self, *args, **options):
        return self.inner.map(*args, **options)

    def take(self, indices):
        raise AssertionError("these rows cannot be taken by number")

    def first_where(self, *args, **options):
        return self.inner.first_where(*args, **options)

    def mixture(self, values, shares):
        return self.inner.mixture(values, shares)

    def preferential_stream(self, weights, **options):
        return self.inner.preferential_stream(weights, **options)

    def stream(self, probability, dtype):
        return self.inner.stream(probability, dtype)

    @property
    def on_host(self):
        return self.inner.on_host

    def gather(self, draws: RowDraws):
        return self.inner.gather(draws)

    def gather_on_host(self):
        return self.inner.gather_on_host()

    def complete(self, batch):
        return batch

    def subset(self, share, width):
        return self.inner.subset(share, width)


def streamed(n_rows=400):
    posterior = logistic(n_rows, dim=2)
    return eqx.tree_at(lambda p: p.rows, posterior, StreamedRows(posterior.rows))


STREAM_ALONE = {
    "sgld": tallmc.sgld(1e-3, size=4),
    "sgld_cv_ps": tallmc.sgld_cv_ps(1e-3, size=4),
    "sghmc_cv_ps": tallmc.sghmc_cv_ps(1e-2, size=4, friction=2.0),
    "svrg_ld": tallmc.svrg_ld(1e-3, size=4, every=5),
    "measured": tallmc.Method(
        gradient=tallmc.gradient.ControlVariate(2),
        subsample=tallmc.subsample.Preferential("residual"),
        size=tallmc.subsample.Measured(4, noise=1e-6, max_size=20),
        step_size=1e-3,
    ),
}


@pytest.mark.parametrize("name", STREAM_ALONE)
def test_methods_with_fixed_weights_need_streams_alone(name):
    method = STREAM_ALONE[name]
    assert method.row_access is RowAccess.STREAM
    options = {"chains": 2, "draws": 20, "burn_in": 0, "seed": 3}
    resident = tallmc.sample(logistic(400, dim=2), method, **options).positions
    np.testing.assert_array_equal(tallmc.sample(streamed(), method, **options).positions, resident)


NEED_TAKE = {
    "saga_ld": tallmc.saga_ld(1e-3, size=4),
    "bandit": tallmc.Method(subsample=tallmc.subsample.Bandit(), size=4, step_size=1e-3),
    "ewsg": tallmc.ewsg(1e-3, size=4, friction=1.0),
    "optimal": tallmc.Method(subsample=tallmc.subsample.Optimal(), size=4, step_size=1e-3),
    "mala": tallmc.mala(1e-3),
    "flymc": tallmc.flymc(1e-3),
    "without-replacement": tallmc.sgld(1e-3, size=4, replace=False),
}


@pytest.mark.parametrize("name", NEED_TAKE)
def test_methods_that_need_rows_by_number_are_refused_other_rows(name):
    with pytest.raises(tallmc.InvalidInput, match=r"must have rows in memory.*StreamedRows"):
        tallmc.sample(streamed(), NEED_TAKE[name], draws=5)


def test_every_part_says_how_it_reads_rows():
    parts = [*GRADIENTS.values(), *SUBSAMPLES.values(), *SIZES.values()]
    assert {type(part.row_access) for part in parts} == {RowAccess}
    assert DYNAMICS  # dynamics see gradients, never rows


def test_a_posterior_takes_rows_in_place_of_arrays():
    x = design(30, 2)
    rows = ResidentRows(jnp.asarray(x))
    densities = (lambda mean, row: -jnp.sum((row - mean) ** 2), lambda mean: 0.0)
    of_arrays, of_rows = (tallmc.Posterior(*densities, data, jnp.zeros(2)) for data in (x, rows))
    np.testing.assert_array_equal(of_arrays.gradient(jnp.ones(2)), of_rows.gradient(jnp.ones(2)))
    assert of_rows.rows is rows
