"""Columns as codes: every product is that of the matrix, and so are the draws."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tallmc
from problems import slow_after
from regressions import run_once
from tallmc._core.arrays import DenseMap, DiagonalMap
from tallmc._fit import encoding
from tallmc._fit.fit import regression_problem
from tallmc._fit.model import RegressionModel
from tallmc._rows.law import Batch
from tallmc.methods.automatic import method as automatic
from tallmc.models import generalised_linear
from tallmc.models.design import (
    CodedColumns,
    Columns,
    GroupedObservations,
    GroupTerm,
    Observations,
    columns_of,
)
from tallmc.models.model import block_hessian_of

N = 300


def _coded(seed=0, grouped=False):
    """A block with two factors between the numbers and, perhaps, a group term."""
    rng = np.random.default_rng(seed)
    codes = np.stack([rng.integers(0, 5, N), rng.integers(1, 4, N)], axis=1).astype(np.uint8)
    dense = np.column_stack([np.ones(N), rng.normal(size=N)])
    x = CodedColumns(jnp.asarray(dense), jnp.asarray(codes), (5, 4), (0, 5, 1, 2, 3, 4, 6, 7, 8))
    values = np.zeros((9, 7))
    values[:5, :4], values[5:, 4:] = rng.normal(size=(5, 4)), rng.normal(size=(4, 3))
    values = jnp.asarray(values)
    y = jnp.asarray(rng.integers(0, 3, N).astype(float))
    if not grouped:
        return Observations(x, y), values
    groups = rng.integers(0, 6, N), rng.normal(size=(N, 2))
    term = GroupTerm(jnp.asarray(groups[0]), jnp.asarray(groups[1]), 6)
    return GroupedObservations(x, y, None, None, (term,)), values


def _matrix(block, values):
    """The same columns, one by one."""
    x = block.fixed if isinstance(block, GroupedObservations) else block.x
    dense, codes = np.asarray(x.dense), np.asarray(x.codes).astype(int)
    table = np.asarray(values)
    columns = [dense, table[codes[:, 0], :4], table[5 + codes[:, 1], 4:]]
    matrix = np.empty((N, 9))
    matrix[:, list(x.places)] = np.concatenate(columns, axis=1)
    np.testing.assert_array_equal(x.matrix(values), matrix)
    for term in getattr(block, "terms", ()):
        member = np.eye(term.n_groups)[np.asarray(term.codes)]
        products = member[:, :, None] * np.asarray(term.columns)[:, None, :]
        matrix = np.column_stack([matrix, products.reshape(N, -1)])
    return matrix


@jax.jit
def _products(x: Columns, m, r, w, factor):
    scale = jnp.abs(m[:, 0])
    return {
        "vector": x @ m[:, 0],
        "matrix": x @ m,
        "sums": x.sums(r[:, 0]),
        "sums of columns": x.sums(r),
        "gram": x.gram(w),
        "norms": x.norms(),
        "leverages": x.squared() @ scale,
        "column squares": x.squared().sums(w),
        "metric": x.pulled(DenseMap(factor)),
        "diagonal metric": x.pulled(DiagonalMap(scale)),
        "dense": x.matrix(),
    }


@pytest.mark.parametrize("grouped", [False, True])
def test_every_product_of_codes_is_that_of_the_matrix(grouped):
    block, values = _coded(grouped=grouped)
    whole, rng = _matrix(block, values), np.random.default_rng(1)
    d = whole.shape[1]
    args = rng.normal(size=(d, 4)), rng.normal(size=(N, 4)), rng.normal(size=N)
    args = *map(jnp.asarray, args), jnp.asarray(rng.normal(size=(d, d)))
    found = _products(columns_of(block, values), *args)
    expected = _products(Columns(jnp.asarray(whole)), *args)
    assert columns_of(block, values).shape == (N, d)
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-11, atol=1e-11, err_msg=name)
    np.testing.assert_allclose(found["dense"], whole, rtol=1e-13, atol=1e-13)


def _table(n=400):
    rng = np.random.default_rng(2)
    a, b = (rng.integers(0, k, n) for k in (6, 4))
    z = rng.normal(size=n)
    y = rng.poisson(np.exp(0.3 * z + 0.2 * (a == 2) - 0.3 * (b == 1)))
    text = {"a": np.array(list("uvwxyz"))[a], "b": np.array(list("klmn"))[b]}
    kind = np.array(["no", "one", "more"])[np.minimum(y, 2)]
    return {"y": y, "z": z, **text, "w": rng.uniform(1, 2, n), "o": z / 7, "k": kind}


FORMULAS = ["y ~ a + z + b", "y ~ 0 + b + a:b", "y ~ C(a, Treatment('w')) + z:a + (1 + z | b)"]


def _posteriors(monkeypatch, formula, **options):
    """The posterior of a formula with codes, and with a matrix."""
    monkeypatch.setattr(encoding, "_FEWEST_NUMBERS", 0)
    model = RegressionModel(**{"family": "poisson", **options}, formula=formula)
    coded = regression_problem(_table(), model).posterior

    def matrix(self, raw, n_rows, dtype):
        return self.matrix(raw, n_rows, dtype), None

    monkeypatch.setattr(encoding.ScaledTerms, "coded", matrix)
    return coded, regression_problem(_table(), model).posterior


def _of_model(model, block, positions, order):
    """Everything that methods ask of a regression."""
    centre, weights = positions[0], jnp.linspace(0.5, 1, len(block.y))
    batch, metric = Batch(block, weights), DenseMap(jnp.diag(jnp.linspace(0.01, 0.02, model.dim)))
    counted = jnp.ones(len(block.y), bool)
    moves = positions[1:] - centre
    found = {
        "potentials": model.row_potentials(centre, block),
        "sums": jax.vmap(lambda at: model.sum_remainders(order, at, centre, batch))(positions),
        "sum": model.sum_remainders(0, centre, centre, batch),
        "hessian": block_hessian_of(block, counted, model, centre),
        "norms": model.norms(model.row_gradients(centre, block), block),
        "expanded": model.expand(model.row_gradients(centre, block), block),
    }
    if not model.regression().one_predictor:
        return found
    return found | {
        "changes": model.sum_of_changes(centre, moves, batch),
        "remainders": jax.vmap(
            lambda move: model.sum_of_remainders(centre, move[None], batch, True)
        )(moves),
        "sizes": model.series_sizes(centre, metric, moves, block),
        "cubic": model.third_derivatives(centre, metric, batch),
        "curvature": model.curvature_norms(centre, metric.factor, block),
    }


@pytest.mark.parametrize("formula", slow_after(1, FORMULAS))
def test_models_of_codes_and_of_a_matrix_agree(monkeypatch, formula):
    coded, plain = _posteriors(monkeypatch, formula, weights="w", offset="o")
    x = getattr(coded.rows.columns, "fixed", None)
    assert isinstance(coded.rows.columns.x if x is None else x, CodedColumns)
    np.testing.assert_allclose(coded.init, plain.init, rtol=1e-9, atol=1e-9)
    rng = np.random.default_rng(3)
    positions = jnp.asarray(0.1 * rng.normal(size=(3, coded.dim)))
    found, expected = (
        run_once(_of_model)(of.model, of.rows.columns, positions, 2) for of in (coded, plain)
    )
    jax.tree.map(
        lambda one, two: np.testing.assert_allclose(one, two, rtol=1e-9, atol=1e-9), found, expected
    )


def test_the_softmax_of_codes_and_of_a_matrix_agree(monkeypatch):
    coded, plain = _posteriors(monkeypatch, "k ~ a + z + b", family="categorical")
    positions = jnp.asarray(0.1 * np.random.default_rng(3).normal(size=(3, coded.dim)))
    found, expected = (
        run_once(_of_model)(of.model, of.rows.columns, positions, 2) for of in (coded, plain)
    )
    jax.tree.map(
        lambda one, two: np.testing.assert_allclose(one, two, rtol=1e-9, atol=1e-9), found, expected
    )


def test_few_rows_are_a_matrix():
    model = RegressionModel(family="poisson", formula=FORMULAS[0])
    x = regression_problem(_table(), model).posterior.rows.columns.x
    assert isinstance(x, jax.Array) and x.shape == (400, 10)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::tallmc.SamplingWarning")
def test_draws_of_codes_and_of_a_matrix_agree(monkeypatch):
    """With rows drawn by number, whose codes are gathered for each chain."""
    posteriors = _posteriors(monkeypatch, FORMULAS[0])
    method = tallmc.methods.sgld(1e-4, batch_size=20)
    coded, plain = (
        tallmc.sample(of, method, chains=2, n_draws=50, seed=1, progress=False) for of in posteriors
    )
    for name, values in plain.values.items():
        np.testing.assert_allclose(coded.values[name], values, rtol=1e-8, atol=1e-8, err_msg=name)
    simulated = [
        draws.with_posterior(of).posterior_predictive(of.rows.take(jnp.arange(20)), n_draws=10)
        for draws, of in zip((coded, plain), posteriors, strict=True)
    ]
    np.testing.assert_array_equal(*simulated)


def test_many_coefficients_of_codes_are_sampled_exactly_on_all_rows(monkeypatch):
    """Effects of two factors: rows are short, and the search for a mode would end in a spike."""
    for module in (automatic, generalised_linear):
        monkeypatch.setattr(module, "MOST_DENSE", 8)
    monkeypatch.setattr(automatic, "exact_plan", lambda *args: args)
    model = RegressionModel(family="poisson", formula="y ~ z + (1 | a) + (1 | b)")
    posterior = regression_problem(_table(), model).posterior
    assert posterior.width == posterior.rows.floats_per_row < posterior.dim == 14
    _, anchor, metric, _, why, *_ = tallmc.Automatic().prepare(posterior)
    assert why[0].startswith("the rows are codes, and 14 parameters are many")
    np.testing.assert_array_equal(anchor.position, posterior.init)

    @jax.jit
    def scales(model, block, at):
        squares = model.expand(model.row_gradients(at, block), block) ** 2
        prior = jax.jvp(model.prior_gradient, (at,), (jnp.ones_like(at),))[1]
        return 1 / jnp.sqrt(jnp.sum(squares, axis=0) + jnp.abs(prior))

    wanted = scales(posterior.model, posterior.rows.columns, posterior.init)
    np.testing.assert_allclose(metric.scale, wanted, rtol=1e-5)
