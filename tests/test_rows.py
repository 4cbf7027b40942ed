"""Operations on rows equal those on arrays, and methods refuse rows that they cannot read."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tallmc
from kept_programs import run_once
from problems import DYNAMICS, GRADIENTS, SIZES, SUBSAMPLES, design, slow_after
from tallmc._anchor.optimisers import CountedPasses
from tallmc._rows import passes as _passes
from tallmc._rows.passes import block_rows
from tallmc.models.model import block_potential_and_gradient
from tallmc.models.posterior import _row_lipschitz
from tallmc.rows import ResidentRows, RowAccess

N_ROWS = 20_011  # two full blocks and a partial one at this width
WIDTH = 60


def table() -> ResidentRows:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(N_ROWS, 3)), np.arange(N_ROWS)
    return ResidentRows({"x": jnp.asarray(x), "y": jnp.asarray(y)})


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
    chosen = rows.reduce(sum_of_chosen, 1, width=WIDTH, beside=jnp.asarray(np.arange(N_ROWS) % 2))
    assert int(chosen.float64()) == y[1::2].sum()


@pytest.mark.usefixtures("monkeypatch")  # no program is loaded without tracing
def test_the_functions_of_a_pass_are_traced_once():
    traced = []

    def total_of(rows, counted):
        traced.append("sum")
        return jnp.sum(jnp.where(counted, rows["y"], 0))

    def result_of(total):
        traced.append("result")
        return total.rounded()

    found = table().reduce(total_of, width=WIDTH, finish=result_of)
    assert int(found) == N_ROWS * (N_ROWS - 1) // 2
    assert traced == ["sum", "result"]


@pytest.mark.parametrize("n_rows", slow_after(2, [3, N_ROWS, 100]))
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
    before = len(_passes._of_block.programs)
    pass_over(3 * N_ROWS + 17)
    assert len(_passes._of_block.programs) == before


def test_a_subset_has_whole_blocks_and_needs_no_other_program():
    rows = table()
    size = block_rows(WIDTH)
    subset, everything = rows.subset(WIDTH, 1), rows.subset(WIDTH)
    assert subset.n_rows == size and everything.n_rows == N_ROWS
    count = rows.reduce(
        sum_of_chosen, 1, width=WIDTH, beside=jnp.asarray(np.ones(N_ROWS)), subset=subset
    )
    first = subset.blocks[0][1][0] * size
    assert int(count.float64()) == np.arange(first, first + size).sum()
    whole = rows.reduce(
        sum_of_chosen, 1, width=WIDTH, beside=jnp.asarray(np.ones(N_ROWS)), subset=everything
    )
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
    drawn = run_once(lambda key: stream.draw(key, (n_draws,)))(jax.random.key(0))
    counts = np.bincount(np.asarray(drawn.indices), minlength=n_rows)
    z = (counts - n_draws * p) / np.sqrt(n_draws * p * (1 - p))
    assert np.abs(z).max() < 4.6
    np.testing.assert_allclose(drawn.weights, 1 / p[np.asarray(drawn.indices)], rtol=1e-6)
    np.testing.assert_array_equal(rows.gather(drawn).rows["y"], drawn.indices)


def test_a_stream_can_be_entered_anywhere():
    stream = ResidentRows({"y": jnp.arange(50)}).stream(None, jnp.float64)
    draw = run_once(lambda key: (stream.draw(key, (100,)), stream.draw(key, (10,), 37)))
    whole, part = draw(jax.random.key(1))
    np.testing.assert_array_equal(part.indices, np.asarray(whole.indices)[37:47])


def test_every_part_says_how_it_reads_rows():
    parts = [*GRADIENTS.values(), *SUBSAMPLES.values(), *SIZES.values()]
    assert {type(part.row_access) for part in parts} == {RowAccess}
    assert DYNAMICS  # dynamics see gradients, never rows


def test_a_posterior_takes_rows_in_place_of_arrays():
    x = design(30, 2)
    rows = ResidentRows(jnp.asarray(x))
    densities = (lambda mean, row: -jnp.sum((row - mean) ** 2), lambda mean: 0.0)
    of_arrays, of_rows = (tallmc.Posterior(*densities, data, jnp.zeros(2)) for data in (x, rows))
    np.testing.assert_array_equal(of_arrays.gradient(np.ones(2)), of_rows.gradient(np.ones(2)))
    assert of_rows.rows is rows
