"""Group effects that are integrated out (`models/groups.py`)."""

import dataclasses
import threading
import types
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import tallmc
from kept_programs import run_once
from tallmc._core.arrays import DenseMap, layout_of, named_leaves
from tallmc._fit import regression, store_design
from tallmc._fit.coefficients import RememberedEffects
from tallmc._fit.fit import regression_problem
from tallmc._fit.model import RegressionModel
from tallmc._fit.stored import load_fit
from tallmc._rows.law import Batch
from tallmc._store.setup import fingerprint
from tallmc.methods.abstract import Account, ErrorBudget
from tallmc.methods.automatic.hard_rows import enough_draws
from tallmc.methods.automatic.method import (
    has_few_rows,
    integration_shift,
    with_integration_error,
)
from tallmc.models import groups
from tallmc.models.design import GroupedObservations, GroupTerm
from tallmc.models.families import FAMILIES
from tallmc.models.groups import (
    MOST_AT_ONCE,
    EffectLaw,
    QuadratureGroups,
    cholesky,
    grouped_table,
    turns,
)
from tallmc.models.posterior import ModelPosterior
from tallmc.models.priors import LogHalfStudentTPrior, NormalPrior
from tallmc.results import prediction


@pytest.fixture(autouse=True, scope="module")
def few_levels_are_many():
    """Groups are integrated out even if there are few."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(regression, "FEW_LEVELS", 1)
        yield


SIZES = (1, 4, 2, 7, 3)
N, G = sum(SIZES), len(SIZES)
CODES = np.random.default_rng(1).permutation(np.repeat(np.arange(G), SIZES))


class Found(NamedTuple):
    """Everything about a model at a position, by one program."""

    values: Any
    gradients: Any
    by_differentiation: Any
    hessian: Any
    hessian_by_differentiation: Any
    third: Any
    third_by_differentiation: Any
    changes: Any
    moved: Any
    mean: Any
    squares: Any
    sizes: Any
    drawn: Any


WEIGHTS = np.arange(1.0, G + 1)
NOISE = np.random.default_rng(0).uniform(0.1, 0.9, size=(G, 3, 3))


@run_once
def everything_at(model, block, position, moves) -> Found:
    weights = jnp.asarray(WEIGHTS)

    def potentials(at):
        return model.row_potentials(at, block)

    def hessian(at):
        return model.block_hessian(at, block, weights)

    metric = DenseMap(jnp.eye(len(position)))
    return Found(
        potentials(position),
        model.row_gradients(position, block),
        jax.jacfwd(potentials)(position),
        hessian(position),
        jax.jacfwd(lambda at: weights @ model.row_gradients(at, block))(position),
        model.third_derivatives(position, metric, Batch(block, weights)),
        jax.jacfwd(hessian)(position),
        model.sum_of_changes(position, moves, Batch(block, weights)),
        jax.lax.map(potentials, position + moves),
        *model.moments(position, block),
        *sizes_and_draws(model, block, position, moves, jnp.asarray(NOISE)),
    )


def sizes_and_draws(model, block, position, moves, noise):
    if not isinstance(model, QuadratureGroups):
        return None, None
    metric = DenseMap(jnp.eye(len(position)))
    return model.series_sizes(position, metric, moves, block), model.draw(noise, position, block)


def found_at(model, block, position) -> Found:
    found = everything_at(model, block, jnp.asarray(position), jnp.asarray(moves_of(position)))
    return jax.tree.map(np.asarray, found)


def moves_of(position):
    return np.random.default_rng(0).normal(size=(2, len(position))) / 2


def observations(y):
    rng = np.random.default_rng(0)
    x = np.column_stack([np.ones(N), rng.normal(size=N)])
    offset, weight = rng.normal(size=N) / 2, rng.uniform(0.5, 2, size=N)
    term = GroupTerm(jnp.asarray(CODES), jnp.asarray(x), G)
    return GroupedObservations(*map(jnp.asarray, (x, y, offset, weight)), (term,))


def quadrature(family, rows, n_shared, at_once):
    start = {"a": jnp.zeros(2), "b": jnp.zeros(n_shared), "c": jnp.zeros(2), "d": jnp.zeros(1)}
    layout, init = layout_of({name: part for name, part in start.items() if part.size})
    sorted_rows = grouped_table(rows)
    model = QuadratureGroups(
        init=init,
        layout=layout,
        likelihood=FAMILIES[family].likelihood(FAMILIES[family].links[0], 2, None),
        prior=NormalPrior(jnp.asarray(4.0)),
        sd_prior=LogHalfStudentTPrior(jnp.full(2, 2.5), jnp.asarray(4.0)),
        n_columns=2,
        n_effects=2,
        table=sorted_rows.table,
        n_nodes=13,
        rows_at_once=at_once,
    )
    return model, sorted_rows


def by_brute_force(rows, potential, position, n_shared, n_points=161):
    """f_g and the moments of γ from a fine grid, in the order of the levels."""
    beta, shared = position[:2], position[2 : 2 + n_shared]
    sds, t = np.exp(position[-3:-1]), np.tanh(position[-1])
    factor = sds[:, None] * np.array([[1.0, 0.0], [t, np.sqrt(1 - t**2)]])
    axis = np.linspace(-8, 8, n_points)
    eta = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
    gamma = eta @ factor.T
    log_prior = stats.norm.logpdf(eta).sum(axis=1) + 2 * np.log(axis[1] - axis[0])
    values, moments = [], []
    for level in range(G):
        mine = level == CODES
        x, y, o, w = (np.asarray(of)[mine] for of in rows_of(rows))
        z = (x @ beta + o)[:, None] + x @ gamma.T
        joint = np.exp(log_prior - w @ potential(z, y[:, None], shared))
        total = joint.sum()
        values.append(-np.log(total))
        moments.append((joint @ gamma / total, (gamma * joint[:, None]).T @ gamma / total))
    return np.array(values), *(np.array(of) for of in zip(*moments, strict=True))


def rows_of(rows):
    return rows.fixed, rows.y, rows.offset, rows.weight


def negative_binomial(z, y, shared):
    """−log p(y) up to a constant in y, in the form of `models/families/negative_binomial.py`."""
    alpha = np.exp(shared[0])
    r = 1 / alpha
    mu = np.exp(z)
    whole = stats.nbinom.logpmf(y, r, r / (r + mu))
    y_log_y = np.where(y > 0, y * np.log(np.maximum(y, 1)), 0)
    return -(whole) - (y - y_log_y + np.array([[float(_log_factorial(k[0]))] for k in y]))


def _log_factorial(k):
    return np.sum(np.log(np.arange(1, int(k) + 1)))


CASES = {
    "bernoulli": (lambda z, y, shared: np.logaddexp(0, z) - y * z, 0, 1, 1.0),
    "gaussian": (lambda z, y, s: s[0] + (y - z) ** 2 * np.exp(-2 * s[0]) / 2, 1, 2, 2.0),
    "negative_binomial": (negative_binomial, 1, 2, 6.0),
}


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("gaussian", "negative_binomial")]


@pytest.fixture(scope="module", params=["bernoulli", *SLOW])
def case(request):
    potential, n_shared, at_once, most = CASES[request.param]
    with jax.enable_x64(True):
        y = np.floor(np.random.default_rng(2).uniform(0, most + 1, size=N))
        rows = observations(y)
        model, found = quadrature(request.param, rows, n_shared, at_once)
        position = np.array([-0.4, 0.3, *([-0.5] * n_shared), -0.3, -0.7, 0.4])
        at = found_at(model, found.rows.columns, position)
        yield model, found, at, by_brute_force(rows, potential, position, n_shared), position


def test_quadrature_is_the_integral_over_the_effects(case):
    _, found, at, (values, mean, squares), _ = case
    np.testing.assert_allclose(at.values[found.places], values, atol=2e-6)
    np.testing.assert_allclose(at.mean[found.places], mean, atol=2e-5)
    np.testing.assert_allclose(at.squares[found.places], squares, atol=2e-5)


def test_derivatives_are_those_of_the_integral(case):
    """Closed forms against automatic differentiation; the nodes are constants in both."""
    _, _, at, _, _ = case
    np.testing.assert_allclose(at.gradients, at.by_differentiation, atol=1e-12)
    np.testing.assert_allclose(at.hessian, at.hessian_by_differentiation, atol=1e-11)
    third = at.third.reshape(at.third_by_differentiation.shape)
    np.testing.assert_allclose(third, at.third_by_differentiation, atol=1e-10)


def test_too_few_nodes_are_seen():
    """Their error in posterior sds is about that against many nodes, and a doubt names it."""
    spread = 0.3
    with jax.enable_x64(True):
        y = np.random.default_rng(2).integers(0, 2, size=N).astype(float)
        model, found = quadrature("bernoulli", observations(y), 0, 1)
        at = jnp.array([-0.4, 0.3, 0.8, 0.5, 0.4])
        few, many = (dataclasses.replace(model, n_nodes=count) for count in (2, 15))
        slopes = [of.potential_and_gradient(at, found.rows).float64()[1] for of in (few, many)]
        shifts = [
            integration_shift(ModelPosterior(of, found.rows), at, spread * jnp.eye(5))
            for of in (few, model)
        ]
    truth = spread * np.abs(slopes[1] - slopes[0]).max()
    assert truth > 0.04
    assert 0.7 * truth < shifts[0] < 3 * truth  # the largest at three places
    assert shifts[1] < 1e-3
    seen, quiet = (
        with_integration_error(Account(None, ErrorBudget()), shift).doubts for shift in shifts
    )
    assert len(seen) == 1 and "integrals over the group effects" in seen[0]
    assert not quiet


def test_changes_from_a_centre_are_those_of_the_integral(case):
    """The search for the modes of the effects starts at those of the centre."""
    _, _, at, _, _ = case
    wanted = (at.moved - at.values) @ np.arange(1.0, G + 1)
    np.testing.assert_allclose(at.changes, wanted, atol=1e-5)


@run_once
def results_at(model, block, position, moves, weights, noise):
    per_group = (
        model.row_potentials(position, block),
        model.row_gradients(position, block),
        *model.moments(position, block),
        *sizes_and_draws(model, block, position, moves, noise),
    )
    sums = (
        model.block_hessian(position, block, weights),
        model.sum_of_changes(position, moves, Batch(block, weights)),
    )
    return per_group, sums


def test_groups_in_pieces_are_groups_at_once(case):
    """Groups of any order, one of them twice: pieces are of groups of like size.

    Third derivatives are those of the Hessian.
    """
    model, found, at, _, position = case
    order, weights = np.array([4, 0, 2, 1, 3, 0]), np.append(WEIGHTS[[4, 0, 2, 1, 3]], 0.0)
    block = jax.tree.map(lambda of: of[order], found.rows.columns)
    in_pieces = dataclasses.replace(model, groups_at_once=2)
    given = map(jnp.asarray, (position, moves_of(position), weights, NOISE[order]))
    per_group, sums = results_at(in_pieces, block, *given)
    expected = (at.values, at.gradients, at.mean, at.squares, at.sizes, at.drawn)
    expected = jax.tree.map(lambda of: of[order], expected), (at.hessian, at.changes)
    found = jax.tree.leaves((per_group, sums))
    for one, other in zip(found, jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-11)


def rows_read(sizes, turn):
    """What a loop over the rows of these groups reads; one per turn for the turn itself."""
    largest = np.sort(sizes)[::-1][:: turn.groups_at_once]
    n_groups = min(turn.groups_at_once, len(sizes))
    return np.sum(-(-largest // turn.rows_at_once) * (1 + turn.rows_at_once * n_groups))


@pytest.mark.parametrize("n_huge", [1, 3, 20])
def test_few_huge_groups_do_not_make_the_others_as_dear(n_huge):
    sizes = np.append(np.ones(3000, int), np.repeat(27_000 // n_huge, n_huge))
    assert rows_read(sizes, turns(sizes, 9)) < 30 * sizes.sum()


def test_groups_of_like_size_share_all_turns():
    sizes = np.random.default_rng(0).poisson(10, size=10_000)
    assert turns(sizes, 9) == (1, MOST_AT_ONCE)


def test_draws_of_effects_have_their_law(case):
    """Each position has effects of its own: positions that differ in the last bits are draws."""
    model, found, at, _, position = case
    with jax.enable_x64(True):
        law = EffectLaw(model, found.rows, jnp.asarray(found.places))
        positions = position + 1e-6 * np.arange(1600)[:, None]
        drawn = law.draws(positions, np.arange(G))
        # A group's search for its mode must not go on because that of another does.
        alone = [law.draws(positions[100:101], np.array([level]))[0, 0] for level in range(G)]
    np.testing.assert_allclose(alone, drawn[100], rtol=1e-12)
    mean, squares = at.mean[found.places], at.squares[found.places]
    for found_now, wanted in ((drawn, mean), (np.einsum("kgr,kgs->kgrs", drawn, drawn), squares)):
        error = found_now.std(axis=0) / np.sqrt(len(drawn))
        assert np.abs((found_now.mean(axis=0) - wanted) / error).max() < 4.6


@pytest.mark.parametrize("noise", [None, pytest.param(0.7, marks=pytest.mark.slow)])
def test_normal_effects_have_the_density_of_the_multivariate_normal(noise):
    """The densities of two positions; a row of weight w counts w times."""
    rng = np.random.default_rng(3)
    rows = observations(rng.normal(size=N))
    table = {"y": np.asarray(rows.y), "x": np.asarray(rows.fixed)[:, 1], "g": CODES}
    table |= {"o": np.asarray(rows.offset), "w": rng.integers(1, 4, size=N).astype(float)}
    options = {"offset": "o", "weights": "w", "noise_variance": noise, "standardise": False}
    model = RegressionModel(family="gaussian", formula="y ~ x + (1 + x | g)", **options)
    with jax.enable_x64(True):
        posterior = regression_problem(table, model).posterior
        block, init = posterior.rows.columns, np.asarray(posterior.init)
        positions = init + np.random.default_rng(4).normal(size=(2, len(init))) / 3
        found = [found_at(posterior.model, block, at) for at in positions]
        factors = [np.asarray(posterior.model.factor(jnp.asarray(at))) for at in positions]
    x, counts = np.column_stack([np.ones(N), table["x"]]), table["w"].astype(int)
    totals = []
    for at, factor in zip(positions, factors, strict=True):
        variance = np.exp(2 * at[2]) if noise is None else noise
        total = 0.0
        for level in range(G):
            mine = np.repeat(np.flatnonzero(level == CODES), counts[level == CODES])
            covariance = variance * np.eye(len(mine)) + x[mine] @ factor @ factor.T @ x[mine].T
            middle = x[mine] @ at[:2] + table["o"][mine]
            total -= stats.multivariate_normal.logpdf(table["y"][mine], middle, covariance)
        totals.append(total)
    ours = [each.values.sum() for each in found]
    assert ours[1] - ours[0] == pytest.approx(totals[1] - totals[0], abs=1e-10)
    for each in found:
        np.testing.assert_allclose(each.gradients, each.by_differentiation, atol=1e-11)
        np.testing.assert_allclose(each.hessian, each.hessian_by_differentiation, atol=1e-10)
        third = each.third.reshape(each.third_by_differentiation.shape)
        np.testing.assert_allclose(third, each.third_by_differentiation, atol=1e-9)


@pytest.fixture(scope="module")
def wide():
    """A normal response with eight effects per group, and everything about it at some positions."""
    rng, n_effects, n_rows = np.random.default_rng(5), 8, 60
    x = rng.normal(size=(n_rows, n_effects - 1))
    codes = np.arange(n_rows) % 12
    table = {"y": rng.normal(size=n_rows), "g": codes}
    table |= {f"x{k}": x[:, k] for k in range(n_effects - 1)}
    terms = " + ".join(f"x{k}" for k in range(n_effects - 1))
    formula = f"y ~ {terms} + (1 + {terms} | g)"
    with jax.enable_x64(True):
        plan = RegressionModel(family="gaussian", formula=formula, standardise=False)
        posterior = regression_problem(table, plan).posterior
        model, block = posterior.model, posterior.rows.columns
        positions = np.asarray(posterior.init) + rng.normal(size=(3, posterior.dim)) / 5
        positions[1:, :n_effects] = np.asarray(model.centre)  # where sums of a group are its own
        move, steps = (jnp.asarray(rng.normal(size=(*k, posterior.dim))) for k in ((), (2,)))
        weights = jnp.ones(posterior.n_rows)

        def total(at):
            return jnp.sum(model.row_potentials(at, block))

        @run_once
        def found(at):
            slope = jax.grad(total)
            return {
                "potentials": model.row_potentials(at, block),
                "factor": model.factor(at),
                "gradient": model.sum_remainders(0, at, at, Batch(block, weights)),
                "in one pass": model.potentials_and_gradient(at, Batch(block, weights)),
                "of rows": jnp.sum(model.row_gradients(at, block), axis=0),
                "by differentiation": slope(at),
                "product": jnp.dot(model.block_hessian(at, block, weights), move),
                "product by differentiation": jax.jvp(slope, (at,), (move,))[1],
                "changes": model.sum_of_changes(at, steps, Batch(block, weights)),
                "changed": jax.lax.map(lambda step: total(at + step) - total(at), steps),
            }

        each = [jax.tree.map(np.asarray, found(jnp.asarray(at))) for at in positions]
    return model, np.column_stack([np.ones(n_rows), x]), table["y"], codes, positions, each


def test_many_effects_of_a_group_have_the_density_of_the_multivariate_normal(wide):
    _, x, y, codes, positions, found = wide
    totals = np.zeros((len(positions), 12))
    for at, each, total in zip(positions, found, totals, strict=True):
        spread, k = each["factor"] @ each["factor"].T, x.shape[1]
        for g in range(12):
            mine, of_y = x[codes == g], y[codes == g]
            covariance = np.exp(2 * at[k]) * np.eye(len(mine)) + mine @ spread @ mine.T
            total[g] = -stats.multivariate_normal.logpdf(of_y, mine @ at[:k], covariance)
    ours = np.stack([each["potentials"] for each in found])
    assert ours[1].sum() - ours[0].sum() == pytest.approx((totals[1] - totals[0]).sum(), abs=1e-9)
    # Groups alone, as in a search for the mode on some of them; all have the same size.
    np.testing.assert_allclose(ours[2] - ours[1], totals[2] - totals[1], atol=1e-9)


def test_derivatives_of_many_effects_are_those_of_their_density(wide):
    for each in wide[-1]:
        potentials, each["with potentials"] = each["in one pass"]
        assert potentials.sum() == pytest.approx(each["potentials"].sum(), abs=1e-10)
        for name in ("gradient", "with potentials", "of rows"):
            np.testing.assert_allclose(each[name], each["by differentiation"], atol=1e-10)
        np.testing.assert_allclose(
            each["product"], each["product by differentiation"], rtol=1e-9, atol=1e-9
        )


def test_changes_of_many_effects_are_those_of_their_density(wide):
    for each in wide[-1]:
        np.testing.assert_allclose(each["changes"], each["changed"], rtol=1e-11)


def test_steps_of_a_search_change_sds_and_correlations_by_little(wide):
    """Coefficients may take whole steps, whatever their units."""
    model, step = wide[0], np.zeros(8 + 1 + 8 + 28)
    step[0] = 50.0
    assert model.step_share(step) == 1.0
    step[-1] = -7.0
    assert model.step_share(step) == pytest.approx(0.1)


def test_factors_of_many_matrices_in_two_threads_end():
    """LAPACK's calls for many matrices, in a loop of two threads, waited for each other."""
    matrices = jnp.broadcast_to(2 * jnp.eye(21), (1024, 21, 21))

    @run_once
    def repeated(a):
        return jax.lax.scan(lambda a, _: (cholesky(a) + jnp.eye(21), None), a, None, length=20)[0]

    def run():
        ended.append(repeated(matrices).block_until_ready())

    ended: list[Any] = []
    threads = [threading.Thread(target=run, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert len(ended) == 2


def test_correlations_have_the_lkj_prior():
    """Against NumPyro: the factor of the correlation matrix, and its density with the Jacobian."""
    numpyro = pytest.importorskip("numpyro.distributions")
    from tallmc.models.groups import NormalGroups

    r, free = 3, np.random.default_rng(0).normal(size=(2, 3))
    with jax.enable_x64(True):
        model = NormalGroups(
            init=jnp.zeros(6),
            layout=layout_of({"a": jnp.zeros(6)})[0],
            likelihood=FAMILIES["gaussian"].likelihood("identity", 2, jnp.asarray(1.0)),
            prior=NormalPrior(jnp.asarray(1.0)),
            sd_prior=LogHalfStudentTPrior(jnp.ones(r), jnp.asarray(4.0)),
            n_columns=0,
            n_effects=r,
            centre=jnp.zeros(0),
            xx=jnp.zeros((0, 0)),
        )
        transform = numpyro.transforms.CorrCholeskyTransform()

        @run_once
        @jax.vmap
        def both(free):
            position, root = jnp.concatenate([jnp.zeros(r), free]), transform(free)
            density = numpyro.LKJCholesky(r, 1.0).log_prob(root)
            density += transform.log_abs_det_jacobian(free, root)
            return model.factor(position), root, model.prior_potential(position), density

        factors, roots, potentials, densities = map(np.asarray, both(jnp.asarray(free)))
    np.testing.assert_allclose(factors, roots, atol=1e-12)
    assert potentials[0] - potentials[1] == pytest.approx(densities[1] - densities[0], abs=1e-10)


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(5)
    x = rng.normal(3, 2, size=60)
    return {
        "y": (rng.uniform(size=60) < 0.5).astype(int),
        "x": x,
        "g": rng.choice(list("abcdef"), 60),
        "one": np.full(60, "a"),
        "row": [f"r{k}" for k in range(60)],
    } | {f"x{k}": rng.normal(size=60) for k in range(5)}


def problem(table, formula, family="bernoulli"):
    return regression_problem(table, RegressionModel(family=family, formula=formula))


@pytest.fixture(scope="module")
def known(table):
    """A posterior, and a program for the means of the rows of the table at five positions."""
    found = problem(table, "y ~ x + (1 + x | g)").posterior
    block = found.predictive.encode(table)
    of_draws = jax.vmap(found.predictive.mean, (0, None))
    return found, run_once(lambda positions: of_draws(positions, block))


def test_predictions_use_the_effects_that_draws_have(table, known):
    found, means_at = known
    assert found.n_rows == 6 and found.dim == 5
    positions = np.asarray(found.init) + np.random.default_rng(0).normal(size=(1, 5, 5)) / 5
    values = found.quantities.of(positions)
    assert values["1|g"].shape == values["x|g"].shape == (1, 5, 6)
    assert found.quantities.coords["g_correlation_dim"] == ("1, x",)
    np.testing.assert_allclose(values["g_correlation"][0, :, 0], np.tanh(positions[0, :, -1]), 1e-5)
    means = means_at(jnp.asarray(positions[0]))
    level = np.searchsorted(list("abcdef"), table["g"])
    z = values["Intercept"][0][:, None] + values["x"][0][:, None] * table["x"]
    z = z + values["1|g"][0][:, level] + values["x|g"][0][:, level] * table["x"]
    np.testing.assert_allclose(means, 1 / (1 + np.exp(-z)), atol=1e-9)


@pytest.mark.parametrize("most", [2**25, 200])
def test_predictions_by_part_are_averages_over_draws_and_their_effects(
    table, known, most, monkeypatch
):
    """With room for the effects of all groups, or of so few that parts have few rows each."""
    monkeypatch.setattr(prediction, "_MOST_EFFECTS", most)
    found, means_at = known
    draws = draws_near_the_start(found, 5)
    each = means_at(jnp.asarray(draws.positions[0]))
    np.testing.assert_allclose(draws.predict(table).mean, np.mean(each, axis=0), rtol=1e-9)
    simulated = draws.posterior_predictive(table)[0]
    monkeypatch.setattr(prediction, "_MOST_EFFECTS", 2**25)
    np.testing.assert_array_equal(simulated, draws.posterior_predictive(table)[0])
    new = {"x": [1.0, 2.0, 1.0], "g": ["other", "other", "b"]}
    both = draws.predict(new, new_groups="draw").mean
    of_known = draws.predict({"x": [1.0], "g": ["b"]}).mean
    np.testing.assert_allclose(both[2], of_known[0], rtol=1e-12)
    monkeypatch.setattr(prediction, "_MOST_EFFECTS", most)
    np.testing.assert_array_equal(draws.predict(new, new_groups="draw").mean, both)


def draws_near_the_start(found, n_draws):
    """Draws with different effects."""
    positions = np.asarray(found.init) + 1e-6 * np.arange(n_draws)[:, None]
    outcome = (tallmc.results.draws.Outcome.OK,)
    timing = tallmc.results.draws.Timing(0.0, 0.0, 0.0)
    return tallmc.results.draws.Draws(
        positions[None],
        {},
        outcome,
        0,
        0,
        timing,
        found.layout,
        {},
        quantities=found.quantities,
        predictive=found.predictive,
    )


def test_draws_with_effects_that_read_rows_are_asked_for_sparingly(table, monkeypatch):
    """Effects of a normal response come from sums, and those of many groups are not in a draw."""
    with_effects = problem(table, "y ~ x + (1 + x | g)").posterior
    assert enough_draws(with_effects) is None
    normal = problem(table, "y ~ x + (1 + x | g)", "gaussian").posterior
    assert enough_draws(normal) == enough_draws(problem(table, "y ~ x").posterior) == 3000
    monkeypatch.setattr(regression, "_MOST_SHOWN", 5)
    assert enough_draws(problem(table, "y ~ x + (1 + x | g)").posterior) == 3000


def table_of_groups(n_groups, per_group, family):
    rng = np.random.default_rng(0)
    g, x = np.repeat(np.arange(n_groups), per_group), rng.normal(size=n_groups * per_group)
    z = 0.5 * x + 0.8 * rng.normal(size=n_groups)[g]
    y = rng.poisson(np.exp(z)) if family == "poisson" else (z + rng.logistic(size=len(z)) > 0)
    return {"y": y.astype(int), "x": x, "g": np.char.add("g", g.astype(str))}


@pytest.mark.parametrize(("n_groups", "few"), [(6, True), (101, False), (512, False)])
def test_a_hundred_groups_are_not_few_rows(n_groups, few):
    """Each group costs as much as many rows, but sums of a normal response as little as one."""
    table, formula = table_of_groups(n_groups, 2, "bernoulli"), "y ~ x + (1 + x | g)"
    assert has_few_rows(problem(table, formula).posterior) == few
    assert has_few_rows(problem(table, formula, "gaussian").posterior)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["bernoulli", "poisson"])
def test_a_hundred_groups_are_sampled_by_their_series(family):
    """Against importance sampling with integrals over the effect on a grid, in float64."""
    table = table_of_groups(101, 10, family)
    draws = tallmc.fit("y ~ x + (1 | g)", table, family=family, progress=False)
    assert draws.report.trusted and draws.report.ess >= 1000
    assert "hard rows of 101, the others by their series" in draws.report.reasons[0]
    assert draws.positions.shape[1] < 200  # each draw has effects that take a pass over the rows
    model = problem(table, "y ~ x + (1 | g)", family).posterior.model
    likelihood = stats.bernoulli if family == "bernoulli" else stats.poisson
    of_predictor = (lambda q: 1 / (1 + np.exp(-q))) if family == "bernoulli" else np.exp
    x = (table["x"] - table["x"].mean()) / table["x"].std()
    eta = np.linspace(-6, 6, 61)
    flat = draws.positions.reshape(-1, 3).astype(np.float64)
    proposal = stats.multivariate_t(flat.mean(axis=0), 1.2 * np.cov(flat.T), df=8, seed=0)
    at = proposal.rvs(1000)
    found = -proposal.logpdf(at) - np.asarray(jax.lax.map(model.prior_potential, jnp.asarray(at)))
    for k, (intercept, slope, log_sd) in enumerate(at):
        q = (intercept + slope * x)[:, None] + np.exp(log_sd) * eta
        rows = likelihood.logpmf(table["y"][:, None], of_predictor(q))
        of_groups = rows.reshape(101, 10, -1).sum(axis=1) - eta**2 / 2
        found[k] += np.logaddexp.reduce(of_groups, axis=1).sum()
    weights = np.exp(found - found.max())
    weights /= weights.sum()
    mean = weights @ at
    sd = np.sqrt(weights @ (at - mean) ** 2)
    error = np.sqrt(1 / draws.report.ess + np.sum(weights**2))
    assert np.abs((flat.mean(axis=0) - mean) / sd).max() < 4.6 * error
    assert np.abs(flat.std(axis=0) / sd - 1).max() < 4.6 * error


def test_effects_do_not_depend_on_how_many_are_drawn_at_once(table, monkeypatch):
    found = problem(table, "y ~ x + (1 + x | g)").posterior
    law = found.predictive.model.law
    positions = draws_near_the_start(found, 3).positions[0]
    expected = law.draws(positions, np.arange(6))
    sizes, effects_at = [], groups._effects_at

    def recorded(law, positions, levels):
        sizes.append(len(levels))
        return effects_at(law, positions, levels)

    monkeypatch.setattr(groups, "_effects_at", recorded)
    monkeypatch.setattr(groups, "_FEW", 2)
    monkeypatch.setattr(groups, "_MANY_DRAWS", 2)
    np.testing.assert_allclose(law.draws(positions, np.arange(6)), expected, rtol=1e-9)
    assert sizes == [6]


def test_effects_of_a_draw_are_drawn_once(table):
    """A run is judged as it grows, and its draws are in the report and in the summary."""
    found = problem(table, "y ~ x + (1 + x | g)").posterior
    quantities, positions = found.quantities, draws_near_the_start(found, 5).positions
    expected, drawn, function = quantities.of(positions), [], quantities.effects.function

    def counted(positions):
        drawn.append(positions.shape[1])
        return function(positions)

    quantities.effects = RememberedEffects(counted)
    for n_draws in (3, 5, 5, 2):
        at = quantities.of(positions[:, :n_draws])
        for name, values in expected.items():
            np.testing.assert_array_equal(at[name], values[:, :n_draws])
    assert drawn == [3, 2]
    at = quantities.of(positions[:, ::-1])  # other draws
    np.testing.assert_array_equal(at["1|g"], expected["1|g"][:, ::-1])
    assert drawn == [3, 2, 5]


def test_the_table_of_effects_has_the_moments_of_draws(table):
    """In the units of the table, against many draws of the effects at the same positions."""
    found = problem(table, "y ~ x + (1 + x | g)").posterior
    draws = draws_near_the_start(found, 1600)
    shown = draws.group_effects(n_draws=4)
    assert list(shown.index) == list("abcdef") and shown.index.name == "g"
    for term in ("1|g", "x|g"):
        drawn, sd = draws.values[term][0], shown[f"{term}_sd"].to_numpy()
        z = (drawn.mean(axis=0) - shown[term]) / (sd / np.sqrt(len(drawn)))
        assert np.abs(z).max() < 4.6
        squares = (drawn - shown[term].to_numpy()) ** 2
        error = squares.std(axis=0) / np.sqrt(len(drawn))
        assert np.abs((squares.mean(axis=0) - sd**2) / error).max() < 4.6


@pytest.mark.parametrize(
    ("formula", "text"),
    [
        ("y ~ x + (1 | one)", "'one' must have at least two levels to be a group; got one level"),
        ("y ~ x + (1 | row)", "have groups of several rows; got 60 levels in 60 rows"),
        ("y ~ x + (1 + level | g)", "'level' must vary within groups of 'g'"),
        ("y ~ x + (1 + x + x0 + x1 + x2 + x3 + x4 | g)", "have at most 5 columns before the bar"),
    ],
)
def test_groups_that_say_nothing_are_refused_in_one_line(table, formula, text):
    codes = np.searchsorted(list("abcdef"), table["g"])
    with pytest.raises(tallmc.InvalidInput) as caught:
        problem(table | {"level": codes.astype(float)}, formula)
    assert text in str(caught.value) and "\n" not in str(caught.value)


def test_effects_of_many_groups_need_a_common_column(table):
    with pytest.raises(tallmc.InvalidInput, match="have an intercept or a column besides") as error:
        problem(table, "y ~ 0 + (1 | g)")
    assert "Write 1 +" in str(error.value)
    problem(table, "y ~ 1 + (1 | g)")


def test_single_rows_may_be_groups_of_counts(table):
    found = problem(table, "y ~ x + (1 | row)", "poisson").posterior
    assert found.n_rows == 60


def test_few_groups_have_the_same_prior(table):
    """Effects in the position: log N(u; 0, LLᵀ) and the priors of L, those of integrated ones."""
    integrated = problem(table, "y ~ x + (1 + x | g)").posterior
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(regression, "FEW_LEVELS", 100)
        whole = problem(table, "y ~ x + (1 + x | g)").posterior
    rng = np.random.default_rng(0)
    ours, theirs = [], []
    for _ in range(2):
        shared, effects = rng.normal(size=5) / 2, rng.normal(size=(6, 2))
        factor = np.asarray(integrated.model.factor(jnp.asarray(shared)))
        density = stats.multivariate_normal.logpdf(effects, cov=factor @ factor.T).sum()
        theirs.append(float(integrated.model.prior_potential(jnp.asarray(shared))) - density)
        position = np.concatenate([shared[:2], effects.ravel(), shared[2:]])
        ours.append(float(whole.model.prior_potential(jnp.asarray(position))))
    assert ours[1] - ours[0] == pytest.approx(theirs[1] - theirs[0], abs=1e-9)


def test_a_loaded_fit_draws_the_same_effects_from_its_table(table, tmp_path):
    draws = draws_near_the_start(problem(table, "y ~ x + (1 + x | g)").posterior, 16)
    draws.save(tmp_path / "draws")
    with pytest.raises(tallmc.InvalidInput, match=r"tallmc\.load\(path, data=table\)"):
        tallmc.load(tmp_path / "draws").predict(table)
    loaded = tallmc.load(tmp_path / "draws", data=table)
    np.testing.assert_array_equal(loaded.predict(table).mean, draws.predict(table).mean)
    np.testing.assert_array_equal(loaded.group_effects(n_draws=4), draws.group_effects(n_draws=4))
    fewer = {name: values[:30] for name, values in table.items()}
    with pytest.raises(tallmc.InvalidInput, match="data must be the table of the fit"):
        tallmc.load(tmp_path / "draws", data=fewer)


# Row stores


@pytest.fixture(scope="module")
def stored(table, tmp_path_factory):
    """The table with a group of numbers, and row stores of it by whether they are standardised."""
    names = ("y", "x", "g", "row", "x0")
    whole = {name: table[name] for name in names} | {"id": 10**6 + np.arange(60) % 7}
    folders = {is_scaled: tmp_path_factory.mktemp("rows") / "rows" for is_scaled in (True, False)}
    for is_scaled, folder in folders.items():
        options = {"standardise": is_scaled, "dtype": "float64", "progress": False}
        tallmc.ingest(whole, folder, **options)
    return whole, folders


@pytest.mark.parametrize(
    ("formula", "family"),
    [
        ("y ~ x + (1 | g)", "bernoulli"),
        ("x0 ~ x + (1 + x | g)", "gaussian"),
        ("y ~ x + g + (1 | id)", "bernoulli"),
    ],
)
def test_a_row_store_gives_the_posterior_of_its_table(stored, formula, family):
    """So the draws are the same: bits where the store holds the numbers of the table."""
    whole, folders = stored
    expected = problem(whole, formula, family)
    found = {scaled: problem(folder, formula, family) for scaled, folder in folders.items()}
    assert fingerprint(found[False].posterior) == fingerprint(expected.posterior)
    assert found[False].form.encoding.to_json() == expected.form.encoding.to_json()
    leaves = named_leaves((expected.posterior.model, expected.posterior.rows))
    for name, leaf in named_leaves(
        (found[True].posterior.model, found[True].posterior.rows)
    ).items():
        np.testing.assert_allclose(leaf, leaves[name], rtol=1e-10, atol=1e-10, err_msg=name)


def test_a_fit_of_a_store_predicts_its_rows_and_new_groups(stored, tmp_path):
    whole, folders = stored
    draws = draws_near_the_start(problem(folders[False], "y ~ x + (1 + x | g)").posterior, 16)
    wanted = draws.predict(whole).mean
    np.testing.assert_array_equal(draws.predict(folders[False]).mean, wanted)
    np.testing.assert_array_equal(draws.predict(tallmc.rows.open(folders[False])).mean, wanted)
    new = {"x": [1.0], "g": ["other"]}
    with pytest.raises(
        tallmc.InvalidInput, match=r"have levels that the fit has seen; got 'other'"
    ):
        draws.predict(new)
    assert 0 < draws.predict(new, new_groups="draw").mean[0] < 1
    draws.save(tmp_path / "draws")
    loaded = tallmc.load(tmp_path / "draws", data=folders[False])
    np.testing.assert_array_equal(loaded.group_effects(n_draws=4), draws.group_effects(n_draws=4))


def test_stores_too_large_for_groups_are_refused_before_they_are_read(
    stored, monkeypatch, tmp_path
):
    whole, folders = stored
    monkeypatch.setattr(store_design, "MOST_BYTES", 2**10)
    with pytest.raises(tallmc.InvalidInput) as caught:
        problem(folders[True], "y ~ x + (1 | g)")
    assert "have at most 9.53674e-07 GiB in the columns of a fit with group terms" in str(
        caught.value
    )
    assert "0.0 GiB in 60 rows of y, x, g. Use fewer columns" in str(caught.value)
    monkeypatch.undo()
    with pytest.raises(tallmc.InvalidInput, match="use columns of the row store; got 'h'"):
        problem(folders[True], "y ~ x + (1 | h)")
    wide = {"y": whole["y"], "id": 10**9 + np.arange(60) * 10**6, "x": whole["x"]}
    tallmc.ingest(wide, tmp_path / "rows", progress=False)
    for name in ("id", "x"):
        with pytest.raises(tallmc.InvalidInput, match=r"be text, or whole numbers .*Ingest it as"):
            problem(tmp_path / "rows", f"y ~ x + (1 | {name})")


def test_values_that_ingestion_marked_are_missing_again(table, tmp_path):
    x = np.where(np.arange(60) % 9 == 4, np.nan, table["x"])
    color = np.where(np.arange(60) % 7 == 3, None, np.array(list("uvw"))[np.arange(60) % 3])
    gaps = {"y": table["y"], "x": x, "color": color, "g": table["g"]}
    options = {"response": "y", "missing": "indicator", "standardise": False}
    tallmc.ingest(gaps, tmp_path / "rows", dtype="float64", progress=False, **options)
    formula = "y ~ x + color + (1 | g)"
    model = RegressionModel(family="bernoulli", formula=formula, missing="indicator")
    expected, found = regression_problem(gaps, model), problem(tmp_path / "rows", formula)
    assert "x_missing" in found.form.columns.names
    assert found.form.to_json() == expected.form.to_json()
    assert fingerprint(found.posterior) == fingerprint(expected.posterior)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("family", ["bernoulli", "gaussian"])
def test_draws_of_groups_from_a_store_are_those_from_memory(tmp_path, family):
    rng = np.random.default_rng(0)
    g, x = rng.integers(0, 150, 3000), rng.normal(size=3000)
    z = rng.normal(size=150)[g] + 0.5 * x + rng.logistic(size=3000)
    y = (z > 0).astype(int) if family == "bernoulli" else z
    table = {"y": y, "x": x, "g": np.char.add("shop ", g.astype(str))}
    tallmc.ingest(table, tmp_path / "rows", response="y", dtype="float64", progress=False)
    options = {"family": family, "n_draws": 40, "progress": False, "seed": 1}
    found = tallmc.fit("y ~ x + (1 | g)", tmp_path / "rows", store=tmp_path / "run", **options)
    expected = tallmc.fit("y ~ x + (1 | g)", table, **options)
    np.testing.assert_allclose(found.positions, expected.positions, rtol=1e-5, atol=1e-5)
    resumed = tallmc.resume(tmp_path / "run", tmp_path / "rows", n_draws=60, progress=False)
    np.testing.assert_array_equal(resumed.positions[:, :40], found.positions)
    new, loaded = {"x": [0.5], "g": ["shop 7"]}, load_fit(tmp_path / "run", None)
    np.testing.assert_array_equal(loaded.predict(new).mean, resumed.predict(new).mean)


def test_updates_of_groups_are_refused(stored, monkeypatch):
    """A store has its old rows again; and integrated effects cannot be taken out of a series."""
    whole, folders = stored
    draws = draws_near_the_start(problem(folders[False], "y ~ x + (1 | g)").posterior, 4)
    with pytest.raises(tallmc.InvalidInput, match="one whose group effects are integrated out"):
        draws.update(whole)
    monkeypatch.setattr(regression, "FEW_LEVELS", 100)
    draws = draws_near_the_start(problem(folders[False], "y ~ x + (1 | g)").posterior, 4)
    draws = dataclasses.replace(draws, series=types.SimpleNamespace(view=None))
    with pytest.raises(tallmc.InvalidInput, match="be a table for a fit with group terms"):
        draws.update(folders[False])
