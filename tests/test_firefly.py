"""Firefly Monte Carlo is exact for any fraction, proposal and anchor."""

import dataclasses
import functools
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tallmc
from kept_programs import run_often, run_once
from problems import linear, logistic, logistic_by_autodiff, slow_after
from tallmc._engine.kernel import BoundKernel, Gathered, NewChain
from tallmc.dynamics.dynamics import PositionState
from tallmc.geometry import Dense
from tallmc.methods.firefly import (
    WORD,
    BrightRows,
    FireflyKernel,
    FlyMC,
    Ring,
    TangentBound,
    gap,
    pack,
)
from tallmc.models.priors import LaplacePrior, StudentTPrior
from test_mutants import cast

LIMIT = 4.6
AWAY = {"beta": np.array([1.2, -0.8])}


def three_points():
    """With few rows and a wide prior, gaps are large and the posterior is far from Gaussian."""
    x = [[1.0, 2.5], [2.0, -1.0], [-1.5, 1.5]]
    return tallmc.models.logistic_regression(x, [1, 0, 1], prior_variance=4.0)


def prepared(proposal="langevin", fraction=0.3, at=AWAY, step_size=2.0) -> BoundKernel:
    method = FlyMC(step_size=step_size, fraction=fraction, proposal=proposal)
    return method.prepare(*three_points_anchored(at is AWAY)).kernel


@functools.cache
def three_points_anchored(away: bool):
    posterior = three_points()
    return posterior, anchored(posterior, AWAY if away else None)


def anchored(posterior, at=None) -> tallmc.anchor.Anchor:
    return tallmc.anchor.find_anchor(posterior, at=at)


def quadrature(
    posterior, centre, scale, half_width: float, points: int
) -> tuple[np.ndarray, np.ndarray]:
    """Positions θ = centre + scale u on a square grid of u, and their posterior weights."""
    axis = np.linspace(-half_width, half_width, points)
    grid = centre + np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2) @ np.asarray(scale).T
    potential = np.asarray(jax.lax.map(posterior.potential, jnp.asarray(grid), batch_size=256))
    weight = np.exp(potential.min() - potential)
    return grid, weight / weight.sum()


@functools.cache
def three_points_quadrature() -> tuple[np.ndarray, np.ndarray]:
    return quadrature(three_points(), np.zeros(2), 2 * np.eye(2), 8, 121)


def moments_of(positions: np.ndarray) -> np.ndarray:
    """First and second moments of two parameters, along the last axis."""
    a, b = positions[..., 0], positions[..., 1]
    return np.stack([a, b, a * a, a * b, b * b], axis=-1)


def run_z(draws, truth: np.ndarray, moments=moments_of) -> float:
    """Largest |z| of the moments, with errors from the spread between chains."""
    per_chain = moments(np.asarray(draws.positions, float)).mean(axis=1)
    error = per_chain.std(0, ddof=1) / len(per_chain) ** 0.5
    return np.abs((per_chain.mean(0) - truth) / error).max()


def posterior_draws(posterior, count: int) -> np.ndarray:
    """Independent draws, by rejection from the prior with probability Π L_i."""
    rng = np.random.default_rng(0)
    x, y = np.asarray(posterior.data.x), np.asarray(posterior.data.y)
    prior_sd = np.sqrt(float(posterior.model.prior.variance))
    proposals = rng.normal(0, prior_sd, size=(40 * count, x.shape[1]))
    likelihood = np.prod(1 / (1 + np.exp(-(2 * y - 1) * (proposals @ x.T))), axis=1)
    kept = proposals[rng.uniform(size=len(proposals)) < likelihood]
    assert len(kept) >= count
    return kept[:count]


@run_once
def expected_numbers_bright(bound, positions):
    return jax.vmap(lambda at: exact_chances(bound, at).sum())(positions)


def invariance_z(bound: BoundKernel, chains: int = 4000, steps: int = 5) -> float:
    """Largest |z| of joint moments of θ and the number bright, a few steps from exact draws."""
    grid, weight = three_points_quadrature()
    expected_bright = np.asarray(expected_numbers_bright(bound, jnp.asarray(grid)))
    starts = jnp.asarray(posterior_draws(bound.posterior, chains))
    state = after_steps(bound, starts, jax.random.key(1), steps)
    bright = np.bitwise_count(np.asarray(state.carried)).sum(axis=1)

    def joint_moments(positions, bright):
        products = positions * bright[:, None]
        return np.concatenate([moments_of(positions), bright[:, None], products], axis=1)

    truth = weight @ joint_moments(grid, expected_bright)
    found = joint_moments(np.asarray(state.position), bright)
    return np.abs((found.mean(0) - truth) / (found.std(0) / np.sqrt(chains))).max()


@run_often
def after_steps(bound: BoundKernel, starts, key, steps: int):
    """The states of chains from these starts.

    Without the loop, which draws whole blocks of randomness for long runs.
    """
    kernel, rows = bound.kernel, bound.rows
    init_keys, draw_keys = jax.random.split(key, (2, len(starts)))
    nothing = Gathered(None, None)
    init = lambda key, start: kernel.init(NewChain(key, start, None, nothing), rows)
    state = jax.vmap(init)(init_keys, starts)
    drawn = jax.vmap(lambda key: kernel.draw(key, steps), out_axes=1)(draw_keys)
    step_of = jax.vmap(lambda state, gathered: kernel.step(state, gathered, jnp.int32(0), rows))

    def one_step(state, drawn):
        return step_of(state, kernel.gather(drawn, rows)).state, None

    return jax.lax.scan(one_step, state, drawn)[0]


def exact_chances(bound, position):
    """P(z_i = 1 | θ), from the textbook form of the bound."""
    x, y, *_ = bound.posterior.data
    s = (2 * y - 1) * (x @ position)
    return 1 - jnp.exp(textbook_log_bound(x @ bound.kernel.bound.anchor, s) - jax.nn.log_sigmoid(s))


def textbook_log_bound(m, s):
    """A s² + s/2 + c with ξ = |m|: Maclaurin and Adams (2014), section 3.1."""
    xi = jnp.abs(m)
    a = jnp.where(xi < 1e-8, -1 / 8, -jnp.tanh(xi / 2) / (4 * jnp.maximum(xi, 1e-8)))
    return a * s**2 + s / 2 - a * xi**2 + xi / 2 - jnp.logaddexp(xi, 0)


AT_ANCHOR, MOVES = [-30.0, -3.0, -0.1, 0.0, 1e-6, 0.5, 8.0], np.linspace(-60, 60, 241)
M, U = (values.ravel() for values in np.meshgrid(AT_ANCHOR, MOVES))
gaps = run_once(gap)


@functools.cache
def by_textbook():
    """The gaps of both responses at M and U, and their derivatives in U for y = 1."""

    @run_once
    def all_of(m, u):
        gap_of = lambda m, u, response: (
            jax.nn.log_sigmoid(response * (m + u)) - textbook_log_bound(m, response * (m + u))
        )
        both = [jax.vmap(gap_of, in_axes=(0, 0, None))(m, u, response) for response in (-1.0, 1.0)]
        derivative = jax.grad(gap_of, argnums=1)
        return both, jax.vmap(derivative, in_axes=(0, 0, None))(m, u, 1.0)

    return jax.tree.map(np.asarray, all_of(jnp.asarray(M), jnp.asarray(U)))


def test_the_gap_is_that_of_the_textbook_bound():
    for exact in by_textbook()[0]:
        np.testing.assert_allclose(gaps(M, U)[0], exact, rtol=1e-9, atol=1e-12)


def test_the_bound_is_below_the_likelihood_and_tangent_at_both_points():
    assert (np.asarray(gaps(M, U)[0]) > 0).all()
    for u in (np.zeros_like(M), -2 * M):
        value, slope = gaps(M, u)
        np.testing.assert_allclose(value, 0, atol=1e-13)
        np.testing.assert_allclose(slope, 0, atol=1e-13)


def test_the_slope_of_the_gap_is_its_derivative():
    np.testing.assert_allclose(gaps(M, U)[1], by_textbook()[1], rtol=1e-9, atol=1e-12)


def test_the_gap_keeps_its_relative_accuracy_in_single_precision():
    rng = np.random.default_rng(0)
    m = np.float32(3 * rng.normal(size=10_000))
    u = np.float32(rng.normal(size=10_000) * 10.0 ** rng.uniform(-5, 1, size=10_000))
    single, _ = gaps(m, u)
    double, _ = gaps(m.astype(float), u.astype(float))
    assert single.dtype == jnp.float32
    allowed = 5e-7 * (np.abs(u) + u.astype(float) ** 2) + 2e-14
    assert (np.abs(np.float64(single) - double) <= allowed).all()


def test_no_position_makes_a_nan_in_single_precision():
    values = np.array([0.0, 1e-30, 1e-7, 1e-3, 1.0, 50.0, 100.0, 1e4, 1e10], np.float32)
    signed = np.r_[values, -values]
    m, u = (part.ravel() for part in np.meshgrid(signed, signed))
    for part in gaps(m, u):
        assert part.dtype == np.float32
        assert np.isfinite(part).all()
    x = np.ones((1, 1), np.float32)
    posterior = tallmc.models.logistic_regression(x, [1], prior_variance=1.0)
    zero = jnp.zeros(1, jnp.float32)
    bound = TangentBound(posterior.model, zero, zero, jnp.eye(1, dtype=jnp.float32))
    sums = run_once(lambda at: bound.bright_sum(at, posterior.data, jnp.array([True])))
    for position in values:
        total, gradient = sums(position[None])
        assert np.isfinite(total) and np.isfinite(gradient).all()


@pytest.mark.parametrize("prior", ["normal", "laplace", "student-t"])
def test_the_known_part_is_the_prior_and_the_bounds(prior):
    """A prior that was expanded at the anchor would be another one, unless it is Gaussian."""
    posterior = logistic(n_rows=5)
    mean, scale = jnp.zeros(posterior.dim), jnp.full(posterior.dim, 0.3)
    priors = {
        "normal": posterior.model.prior,
        "laplace": LaplacePrior(scale, mean),
        "student-t": StudentTPrior(scale, jnp.asarray(2.0), mean),
    }
    posterior = eqx.tree_at(lambda p: p.model.prior, posterior, priors[prior])
    anchor = anchored(posterior, AWAY)
    bound = FlyMC(step_size=1.0).prepare(posterior, anchor).kernel.kernel.bound

    @run_once
    def both(at):
        gaps = jnp.sum(bound.gaps(at, posterior.data))
        return bound.known(at), jax.value_and_grad(lambda x: bound.known(x)[0])(at), gaps

    at = np.random.default_rng(1).normal(size=(4, posterior.dim))
    found = [both(jnp.asarray(position)) for position in at]
    values = np.array([float(known[0]) for known, _, _ in found])
    expected = [posterior.potential(p) + gaps for p, (_, _, gaps) in zip(at, found, strict=True)]
    np.testing.assert_allclose(np.diff(values), np.diff(np.array(expected)), atol=1e-10)
    for known, (_, slope), _ in found:
        np.testing.assert_allclose(known[1], slope, atol=1e-10)


@pytest.mark.parametrize("at", [None, AWAY])
def test_the_joint_density_sums_to_the_posterior_over_all_brightnesses(at):
    posterior = logistic(n_rows=5)
    bound = FlyMC(step_size=1.0).prepare(posterior, anchored(posterior, at)).kernel
    every = list(itertools.product([False, True], repeat=5))
    brightnesses = jnp.asarray(np.pad(every, ((0, 0), (0, WORD - 5))))

    @run_once
    def log_sums(bound, positions):
        def log_sum(position):
            def potential(bits):
                bright = BrightRows.of(pack(bits))
                return bound.kernel.evaluate(position, bright, bound.rows).potential.rounded()

            known = bound.posterior.potential(position)
            return jax.nn.logsumexp(-jax.lax.map(potential, brightnesses)) + known

        return jax.lax.map(log_sum, positions)

    positions = jnp.asarray([[0.7, -1.3], [0.0, 0.0], [-4.0, 2.0], [9.0, 9.0]])
    constants = np.asarray(log_sums(bound, positions))
    np.testing.assert_allclose(constants, constants[0], atol=1e-12)


def test_the_gradient_given_brightness_is_the_derivative_of_the_potential():
    bound = prepared()
    kernel = bound.kernel
    used = np.array([True, False, True])

    def potential(at):
        known = kernel.bound.known(at)[0]
        return known + kernel.bound.bright_sum(at, bound.posterior.data, jnp.asarray(used))[0]

    @run_once
    def all_of(position):
        bright = BrightRows.of(pack(jnp.asarray(np.pad(used, (0, WORD - 3)))))
        estimate = kernel.evaluate(position, bright, bound.rows)
        found = estimate.potential.rounded(), estimate.gradient
        return found, jax.value_and_grad(potential)(position)

    found, expected = all_of(jnp.array([0.4, -0.9]))
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-13)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-12)


@run_once
def find_all(bits):
    bright = BrightRows.of(pack(bits))
    return bright, bright.rows(jnp.arange(len(bits)))


@pytest.mark.parametrize("share", [0.0, 0.003, 0.5, 1.0])
def test_bright_rows_are_found_by_rank(share):
    bits = np.random.default_rng(0).uniform(size=50 * WORD) < share
    bright, rows = find_all(jnp.asarray(bits))
    assert bright.count == bits.sum()
    assert (np.asarray(rows)[: bits.sum()] == np.flatnonzero(bits)).all()


class AlwaysBright(TangentBound):
    def chance_bright(self, position, rows):
        return jnp.full(rows.y.shape, 2.0)


@pytest.mark.parametrize("n_rows", slow_after(1, [1300, 33]))
def test_a_ring_has_its_rows_and_no_others(n_rows):
    posterior = tallmc.models.logistic_regression(
        np.ones((n_rows, 1)), np.arange(n_rows) % 2, prior_variance=1.0
    )
    bound = FlyMC(step_size=1.0).prepare(posterior).kernel
    kernel, source = bound.kernel, bound.rows
    kernel = dataclasses.replace(kernel, bound=cast(kernel.bound, AlwaysBright))
    key, position = jax.random.key(0), jnp.zeros(1)

    @run_once
    def resample(start, size):
        state = kernel.init(NewChain(key, position, None, Gathered(None, None)), source)
        words = kernel.resample(
            source, jnp.zeros_like(state.carried), position, Ring(start, key), size
        )
        bright = BrightRows.of(words)
        return bright.count, bright.rows(jnp.arange(n_rows))

    sizes, starts = {1, -(-n_rows // 3), n_rows}, {0, n_rows // 2, n_rows - 1}
    for size, start in itertools.product(sizes, starts):
        count, found = resample(np.int32(start), np.int32(size))
        assert count == size
        rows = np.asarray(found)[:size]
        assert (rows == np.sort((start + np.arange(size)) % n_rows)).all()


def test_brightness_has_its_law_given_the_position():
    bound = FlyMC(step_size=1.0).prepare(logistic(n_rows=70)).kernel
    position, draws = jnp.array([0.6, -0.4]), 10_000

    @run_once
    def all_of(position):
        brightness = lambda key: (
            bound.kernel.init(
                NewChain(key, position, None, Gathered(None, None)), bound.rows
            ).carried
        )
        words = jax.vmap(brightness)(jax.random.split(jax.random.key(0), draws))
        return words, exact_chances(bound, position)

    words, chance = (np.asarray(part) for part in all_of(position))
    places = np.arange(WORD, dtype=np.uint32)
    bits = (words[:, :, None] >> places & 1).reshape(draws, -1)
    assert not bits[:, 70:].any()
    z = (bits[:, :70].mean(0) - chance) / np.sqrt(chance * (1 - chance) / draws)
    assert np.abs(z[chance * draws > 10]).max() < LIMIT
    assert (bits[:, :70].sum(0)[chance * draws <= 10] < 40).all()


@pytest.mark.parametrize(
    ("proposal", "fraction", "at"),
    slow_after(0, [("langevin", 0.3, AWAY), ("langevin", 1.0, None), ("random-walk", 0.3, None)]),
)
def test_moments_agree_with_quadrature(proposal, fraction, at):
    posterior = three_points()
    grid, weight = three_points_quadrature()
    method = FlyMC(step_size=2.0, fraction=fraction, proposal=proposal)
    settings = {"chains": 32, "n_draws": 1500, "burn_in": 100, "seed": 3}
    draws = tallmc.sample(posterior, method, anchor=anchored(posterior, at), **settings)
    assert 0.2 < draws.sample_stats["acceptance_rate"].mean() < 0.95
    assert 0.05 < draws.sample_stats["bright_rows"].mean() < 2.9
    assert run_z(draws, weight @ moments_of(grid)) < LIMIT


@pytest.mark.parametrize(
    ("proposal", "fraction", "at"),
    slow_after(1, [("langevin", 0.3, AWAY), ("random-walk", 1.0, None)]),
)
def test_a_step_leaves_the_joint_law_invariant(proposal, fraction, at):
    assert invariance_z(prepared(proposal, fraction, at)) < LIMIT


class BrightTermsForgotten(FireflyKernel):
    """The accept step sees the bound only."""

    def evaluate(self, position, bright, source):
        return super().evaluate(position, BrightRows.of(jnp.zeros_like(bright.words)), source)


class RolesSwapped(TangentBound):
    """P(z = 1 | θ) = B/L."""

    def chance_bright(self, position, rows):
        return 1 - super().chance_bright(position, rows)


class StalePotential(FireflyKernel):
    """The potential at θ has the old brightness, that at the proposal the new one."""

    def step(self, state, gathered, step, source):
        position = state.position
        ring, (key, noise) = gathered.selection, gathered.noise
        words = self.resample(source, state.carried, position, ring, self.ring_size)
        before, bright = BrightRows.of(state.carried), BrightRows.of(words)
        with_old = lambda at, to: self.evaluate(at, before, source)
        with_new = lambda at, to: self.evaluate(at, bright, source)
        motion = self.dynamics.init(key, position, with_old)
        moved = self.dynamics.step(motion, with_new, self.schedule(step), noise)
        right = super().step(state, gathered, step, source)
        motion = PositionState(moved.state.position)
        return right._replace(state=dataclasses.replace(right.state, motion=motion))


def roles_swapped(kernel):
    return dataclasses.replace(kernel, bound=cast(kernel.bound, RolesSwapped))


def prior_forgotten(kernel):
    bare = kernel.bound.precision - np.eye(2) / 4
    return eqx.tree_at(lambda k: k.bound.precision, kernel, bare)


def gradient_at_the_anchor_forgotten(kernel):
    return eqx.tree_at(lambda k: k.bound.gradient, kernel, jnp.zeros(2))


MUTANTS = {
    "bright-terms-forgotten": lambda kernel: cast(kernel, BrightTermsForgotten),
    "roles-of-likelihood-and-bound-swapped": roles_swapped,
    "prior-forgotten": prior_forgotten,
    "gradient-at-the-anchor-forgotten": gradient_at_the_anchor_forgotten,
}


def mutated(bound: BoundKernel, mutation) -> BoundKernel:
    return dataclasses.replace(bound, kernel=mutation(bound.kernel))


@pytest.mark.parametrize("name", MUTANTS)
def test_invariance_kills(name):
    z = invariance_z(mutated(prepared(), MUTANTS[name]))
    assert np.isfinite(z) and z > LIMIT, z


def test_invariance_kills_a_stale_potential():
    """The effect is small: z-steps of all rows, large moves and more steps make it visible."""
    bound = prepared(fraction=1.0, step_size=6.0)
    mutant = mutated(bound, lambda kernel: cast(kernel, StalePotential))
    z = invariance_z(mutant, chains=8000, steps=12)
    assert np.isfinite(z) and z > LIMIT, z


@pytest.mark.slow
def test_rows_are_counted():
    posterior = three_points()
    anchor = anchored(posterior, AWAY)
    method = FlyMC(step_size=2.0, fraction=0.3)
    draws = tallmc.sample(posterior, method, chains=32, n_draws=40, burn_in=0, anchor=anchor)
    stats = draws.sample_stats
    assert set(np.unique(stats["bright_rows"])) == {0, 1, 2, 3}
    assert (stats["batch_size"] == 1 + 2 * stats["bright_rows"]).all()
    assert (stats["n_row_evals"] == 3 + stats["batch_size"].cumsum(axis=1)).all()
    assert draws.n_row_evals_sampling == stats["n_row_evals"][:, -1].sum()
    assert (
        draws.n_row_evals_preparation == anchor.n_row_evals + 3 + 3
    )  # the anchor's check, the bound


@pytest.mark.slow
def test_draws_of_many_rows_in_single_precision_agree_with_quadrature():
    rng = np.random.default_rng(0)
    x = np.c_[np.ones(20_000), rng.normal(size=20_000)].astype(np.float32)
    y = rng.uniform(size=20_000) < 1 / (1 + np.exp(2.5 - x[:, 1]))
    double = tallmc.models.logistic_regression(x.astype(float), y, prior_variance=10.0)
    anchor = tallmc.anchor.find_anchor(double)
    grid, weight = quadrature(double, anchor.position, anchor.factor, 5, 17)
    mode, whitening = np.asarray(anchor.position), np.linalg.inv(anchor.factor).T
    whitened = lambda positions: moments_of((positions - mode) @ whitening)
    single = tallmc.models.logistic_regression(x, y, prior_variance=10.0)
    method = FlyMC(step_size=0.8, fraction=0.05, geometry=Dense())
    draws = tallmc.sample(single, method, chains=24, n_draws=500, burn_in=60, seed=1)
    assert draws.positions.dtype == np.float32
    assert draws.sample_stats["bright_rows"].mean() < 50
    assert run_z(draws, weight @ whitened(grid), whitened) < LIMIT


def test_a_start_where_every_row_is_bright_is_no_failure():
    posterior = three_points()
    method, start = FlyMC(step_size=2.0, fraction=0.3), np.array([1e4, -1e4])
    anchor = anchored(posterior, AWAY)
    draws = tallmc.sample(posterior, method, start=start, chains=32, n_draws=40, anchor=anchor)
    assert draws.ok.all()
    assert np.isfinite(draws.positions).all()
    assert np.abs(draws.positions[:, -1]).max() < 1e4


@pytest.mark.parametrize(
    ("posterior", "kind"),
    [(linear(), "the Gaussian family"), (logistic_by_autodiff(), "'Posterior'")],
)
def test_other_models_are_refused(posterior, kind):
    message = f"be a logistic regression for FlyMC.*tight lower bound.*{kind}"
    with pytest.raises(tallmc.InvalidInput, match=message):
        FlyMC(step_size=0.1).prepare(posterior)


def test_what_is_no_posterior_is_refused():
    with pytest.raises(
        tallmc.InvalidInput, match="posterior must be a tallmc posterior; got 'str'"
    ):
        FlyMC(step_size=0.1).prepare("rows")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"step_size": 0.0}, "step_size must be a finite number and > 0"),
        ({"fraction": 0.0}, "fraction must be a finite number and > 0 and <= 1; got 0.0"),
        ({"fraction": 1.5}, "fraction must be a finite number and > 0 and <= 1; got 1.5"),
        ({"proposal": "slice"}, "proposal must be one of 'random-walk', 'langevin'; got 'slice'"),
        ({"geometry": Dense}, "geometry must be a GeometryChoice"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(tallmc.InvalidInput, match=message):
        FlyMC(**{"step_size": 0.1, **settings})
