"""Weights learned on the run: the tree that holds them and the law that they make.

They converge to the weights with the least noise.
"""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import tallmc
from kept_programs import run_once
from problems import GRADIENTS, logistic, residual_matrix, slow_after
from tallmc._engine.run import Run
from tallmc._rows.law import first_of_each
from tallmc.rows import RowDraws
from tallmc.subsample import Bandit, bandit
from tallmc.subsample.bandit import BanditSelection, LearnedWeights, SumTree
from tallmc.subsample.selection import Carried
from test_mutants import mutate
from test_preferential import pseudo_variance
from test_unbiased import learned_by, moments_by_enumeration

POSITION = jnp.array([0.7, -1.3])


def prepared(posterior, size=4, gradient="simple", **settings):
    method = tallmc.Method(
        subsample=Bandit(**settings), gradient=GRADIENTS[gradient], batch_size=size, step_size=1e-3
    )
    return method.prepare(posterior).kernel


def selection_of(n_rows, size=4, floor=0.1, rate=0.5, dtype=jnp.float64):
    return BanditSelection(size=size, n_rows=n_rows, floor=floor, rate=rate, dtype=dtype)


def at_start(selection) -> LearnedWeights:
    """What is known before the first step."""
    return selection.start(selection.draw(jax.random.key(0), 1)[0])


def units_of(learned, n_rows) -> np.ndarray:
    return np.asarray(learned.units.levels[0], np.int64)[:n_rows]


def check_tree(tree: SumTree, n_rows: int) -> None:
    """Every node is the sum of its children, and entries beyond the last row are zero."""
    levels = [np.asarray(level, np.int64) for level in tree.levels]
    assert levels[0][n_rows:].sum() == 0
    for below, above in itertools.pairwise(levels):
        sums = below.reshape(-1, 8).sum(1)
        np.testing.assert_array_equal(above[: len(sums)], sums)
        assert above[len(sums) :].sum() == 0
    assert int(run_once(SumTree.total)(tree)) == levels[0].sum()


@run_once
def tree_and_places(units, places):
    tree = SumTree.of(units)
    return tree, tree.find(places)


@pytest.mark.parametrize("n_rows", [1, 2, 7, 8, 9, 100, 513])
def test_each_row_holds_as_many_places_as_it_has_units(n_rows):
    units = np.random.default_rng(n_rows).integers(0, 20, n_rows) + (np.arange(n_rows) == 0)
    places = np.arange(units.sum(), dtype=np.uint32)
    tree, found = tree_and_places(units.astype(np.uint32), places)
    check_tree(tree, n_rows)
    np.testing.assert_array_equal(found, np.repeat(np.arange(n_rows), units))


@pytest.mark.parametrize("n_rows", slow_after(1, [100, 5, 4097]))
def test_rows_are_drawn_by_the_law_that_the_weights_assume(n_rows):
    selection, rng = selection_of(n_rows, size=400_000), np.random.default_rng(0)

    @run_once
    def draw(units):
        learned = LearnedWeights(SumTree.of(units), jnp.ones(()))
        words = selection.draw(jax.random.key(0), 1)[0]
        return learned, selection.draws_at(learned, selection.draw_rows(learned, words))

    learned, drawn = draw(np.ceil(100 * rng.lognormal(0, 1.5, n_rows)).astype(np.uint32))
    p = np.asarray(selection.probabilities(learned))
    expected = selection.size * p
    counts = np.bincount(drawn.indices, minlength=n_rows)
    chi2 = np.sum((counts - expected) ** 2 / expected)
    # Wilson and Hilferty: the cube root of chi-square is nearly normal.
    degrees, variance = n_rows - 1, 2 / (9 * (n_rows - 1))
    assert abs(((chi2 / degrees) ** (1 / 3) - 1 + variance) / np.sqrt(variance)) < 4.6
    weights = 1 / (selection.size * p[np.asarray(drawn.indices)])
    np.testing.assert_allclose(drawn.weights, weights, rtol=1e-12)
    assert (1 / (n_rows * p)).max() <= 1 / 0.1


def after_steps(bound, start, steps):
    """The states of chains after so many steps."""
    keys = jax.random.split(jax.random.key(0), len(start))
    run = Run(bound, keys, start, steps - 1, 1, 1)
    run.run_to(1)
    assert run.step == steps
    return run.state


@pytest.mark.parametrize(
    ("n_rows", "gradient"),
    slow_after(
        1,
        [
            (70, "simple"),
            (3, "saga"),
            (70, "svrg"),
            (70, "control-variate"),
            (70, "saga"),
            (3, "simple"),
            (3, "control-variate"),
            (3, "svrg"),
        ],
    ),
)
def test_the_tree_stays_a_tree_of_sums(gradient, n_rows):
    bound = prepared(logistic(n_rows=n_rows), size=3, gradient=gradient)
    state = after_steps(bound, jnp.tile(POSITION, (3, 1)), 1000)
    assert (state.outcome == 0).all()
    carried = jax.tree.map(np.asarray, state.chains.carried.selection)
    for chain in range(3):
        learned = jax.tree.map(lambda leaf, chain=chain: leaf[chain], carried)
        check_tree(learned.units, n_rows)
        units = units_of(learned, n_rows)
        assert units.min() >= 1 and units.max() > units.min()
    assert not np.array_equal(*carried.units.levels[0][:2])


def test_a_row_seen_twice_moves_once(monkeypatch):
    """S ← s^(1−ρ) (‖r‖/r̄)^ρ for the rows that were drawn, and for no others."""
    selection = selection_of(20)
    learned = dataclasses.replace(at_start(selection), mean_norm=jnp.asarray(2.0))
    norms = jnp.array([1.0, 9.0, 1.0, 1.0])

    def learn(learned, indices):
        drawn = selection.draws_at(learned, indices)
        return drawn, selection.learn(learned, drawn, norms)

    drawn, new = run_once(learn)(learned, jnp.array([4, 11, 4, 4]))
    mean = 2 * (1 - 4 / 128) + 4 / 128 * np.sum(np.asarray(drawn.weights * norms)) / 20
    assert float(new.mean_norm) == pytest.approx(mean, rel=1e-12)
    expected = np.full(20, 4096)
    expected[4] = np.floor(4096 * (1 / mean) ** 0.5)
    expected[11] = np.ceil(4096 * (9 / mean) ** 0.5)
    np.testing.assert_array_equal(units_of(new, 20), expected)
    check_tree(new.units, 20)

    monkeypatch.setattr(bandit, "first_of_each", lambda indices: jnp.ones(indices.shape, bool))
    _, mutant = run_once(lambda *of: learn(*of))(learned, jnp.array([4, 11, 4, 4]))
    assert units_of(mutant, 20)[4] != expected[4]


@pytest.mark.parametrize("n", [1, 5, 64, 65, 300])
def test_first_of_each_is_the_first(n):
    indices = np.random.default_rng(n).integers(0, max(1, n // 2), n)
    expected = np.isin(np.arange(n), np.unique(indices, return_index=True)[1])
    np.testing.assert_array_equal(run_once(first_of_each)(indices), expected)


@pytest.mark.slow
def test_units_never_outgrow_their_budget():
    """Norms that grow faster than their running mean ask for more and more units.

    In float32, the default of users.
    """
    n_rows, size = 600_000, 1000
    selection = selection_of(n_rows, size=size, rate=1.0, dtype=jnp.float32)

    def step(t, learned):
        drawn = selection.draws_at(learned, (t * size + jnp.arange(size)) % n_rows)
        inflated = dataclasses.replace(drawn, weights=drawn.weights * 1e-4)
        return selection.learn(learned, inflated, jnp.ones(size, jnp.float32))

    @run_once
    def many():
        learned = lax.fori_loop(0, 600, step, at_start(selection))
        words = selection.draw(jax.random.key(0), 1)[0]
        sizes = learned.units.total(), selection.floor_units(learned)
        return learned, sizes, selection.draw_rows(learned, words)

    learned, (whole, floor), indices = many()
    total = int(units_of(learned, n_rows).sum())
    assert 0.99 * selection.most_units < total <= selection.most_units + 1000
    assert int(whole) == total
    assert total + n_rows * int(floor) < 2**31
    indices = np.asarray(indices)
    assert indices.min() >= 0 and indices.max() < n_rows


@pytest.mark.parametrize("norm", [0.0, np.nan, np.inf])
def test_a_batch_that_tells_nothing_changes_no_weight(norm):
    selection = selection_of(20)
    learned = dataclasses.replace(at_start(selection), mean_norm=jnp.asarray(2.0))

    @run_once
    def learn(learned, norms):
        return selection.learn(learned, selection.draws_at(learned, jnp.arange(4)), norms)

    new = learn(learned, np.full(4, norm))
    np.testing.assert_array_equal(units_of(new, 20), 4096)


@pytest.mark.parametrize(
    ("size", "gradient"),
    slow_after(1, [(32, "simple"), (32, "control-variate"), (1, "simple"), (1, "control-variate")]),
)
def test_learned_weights_go_to_the_norms_of_the_residuals(gradient, size):
    """At one position, nearly to the optimum of Lemmas 3.1 and 3.2, with the floor.

    The noise of the optimum is much below that of uniform weights.
    """
    n_rows = 100
    bound = prepared(logistic(n_rows=n_rows), size=size, gradient=gradient)
    kernel, rows = bound.kernel, bound.rows
    r = residual_matrix(kernel.gradient, rows, POSITION)
    norms = np.linalg.norm(r, axis=1)
    optimum = 0.9 * norms / norms.sum() + 0.1 / n_rows
    steps = 20_000 // size

    @run_once
    def many(key):
        words = kernel.selection.draw(key, steps)
        see = lambda t, carried: kernel.estimate(POSITION, words[t], rows, carried).carried
        return lax.fori_loop(0, steps, see, Carried(None, at_start(kernel.selection)))

    learned = many(jax.random.key(0)).selection
    p = kernel.selection.probabilities(learned)
    laws = (np.full(n_rows, 1 / n_rows), p, optimum)
    uniform, learned, best = (pseudo_variance(r, law) for law in laws)
    assert best < 0.6 * uniform
    assert learned - best < 0.05 * (uniform - best)
    matters = norms > 0.2 * norms.mean()
    assert np.abs(np.log(p / optimum))[matters].max() < 0.25


@pytest.mark.slow
def test_learned_weights_lower_the_noise_on_a_run():
    bound = prepared(logistic(n_rows=300, dim=3), size=8)
    state = after_steps(bound, jnp.zeros((2, 3)), 2000)
    for chain in range(2):
        learned = jax.tree.map(
            lambda leaf, chain=chain: leaf[chain], state.chains.carried.selection
        )
        r = residual_matrix(bound.kernel.gradient, bound.rows, state.chains.position[chain])
        noise = pseudo_variance(r, bound.kernel.selection.probabilities(learned))
        assert noise < 0.7 * pseudo_variance(r, np.full(300, 1 / 300))


class WeightsOfTheStart(BanditSelection):
    """Draws by the learned weights, with the importance weights of the start."""

    def draws_at(self, learned, indices):
        return RowDraws(indices, jnp.full(indices.shape, self.n_rows / self.size))


class FloorForgotten(BanditSelection):
    def draws_at(self, learned, indices):
        units = learned.units.at(indices).astype(self.dtype)
        return RowDraws(indices, learned.units.total().astype(self.dtype) / (self.size * units))


@pytest.mark.parametrize("kind", [WeightsOfTheStart, FloorForgotten])
def test_enumeration_kills(kind):
    posterior = logistic()
    bound = prepared(posterior, size=3)
    p = bound.kernel.selection.probabilities(learned_by(bound, POSITION, None))
    mutant = mutate(bound, "selection", kind)
    exact = np.asarray(posterior.gradient(POSITION))
    assert p.max() > 1.5 * p.min()
    assert np.abs(moments_by_enumeration(mutant, POSITION)[1] - exact).max() > 1e-3
    mean = moments_by_enumeration(bound, POSITION)[1]
    np.testing.assert_allclose(mean, exact, atol=1e-12 * np.abs(exact).max())


@pytest.mark.slow
def test_a_step_copies_no_tree():
    """The compiled loop over steps copies no array that has one entry per row."""
    n_rows = 5000
    bound = prepared(logistic(n_rows=n_rows), size=4)
    selection = bound.kernel.selection
    words = selection.draw(jax.random.key(0), 8)

    def many(bound, words, carried):
        def see(t, carried):
            return bound.kernel.estimate(POSITION, words[t], bound.rows, carried).carried

        return lax.fori_loop(0, 8, see, carried)

    lowered = jax.jit(many, donate_argnums=2).lower(
        bound, words, Carried(None, at_start(selection))
    )
    text = lowered.compile().as_text()
    assert f"u32[{n_rows}]" in text
    assert not [line for line in text.splitlines() if f"u32[{n_rows}]" in line and " copy(" in line]


@pytest.mark.slow
def test_single_precision_stays_single():
    x = np.random.default_rng(0).normal(size=(50, 2)).astype(np.float32)
    posterior = tallmc.models.logistic_regression(x, np.arange(50) % 2, prior_variance=1.0)
    method = tallmc.Method(subsample=Bandit(), batch_size=4, step_size=1e-3)
    draws = tallmc.sample(posterior, method, chains=2, n_draws=50)
    assert draws.positions.dtype == np.float32
    assert np.isfinite(draws.positions).all()
