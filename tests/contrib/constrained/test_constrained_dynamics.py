"""Projected, reflected and mirrored dynamics: exact laws by quadrature, bias, input, verdicts."""

import dataclasses

import jax
import jax.numpy as jnp
import jax.scipy.stats as stats
import numpy as np
import pytest
from constrained_laws import free_law, projected_law, reflected_law, target_law

import tallmc
from stationary import cast, largest_z, run_chains
from steps import random_point, stepped, with_given_gradient
from tallmc.contrib.constrained import (
    Box,
    Entropic,
    HalfSpace,
    LogBarrier,
    Mirrored,
    Projected,
    Reflected,
    prepared_settings,
)
from tallmc.methods.pairs import PairRun
from tallmc.results.report import Verdict

LIMIT = 4.6
ROWS = np.array([-1.0, 0.0, 0.5, 1.0, 1.5])  # of mean 0.4; their mean has variance 1
LOW, HIGH = 0.0, 2.5
TRUTH = target_law(LOW, HIGH, lambda x: (x - ROWS.mean()) ** 2 / 2)


def normal_row(params, row):
    return -((params["mean"] - row) ** 2) / (2 * len(ROWS))


def flat(params):
    return 0.0


def truncated_gaussian(init=1.0):
    """N(0.4, 1) of which a dynamics keeps the part in [0, 2.5]; five rows."""
    return tallmc.Posterior(normal_row, flat, data=ROWS, init={"mean": init})


def method(dynamics, step, size=1):
    return tallmc.Method(dynamics=dynamics, batch_size=size, step_size=step)


def row_means(step):
    """The means of the moves of a step that reads one of the five rows."""
    return lambda x: [x - step / 2 * (x - row) for row in ROWS]


def moments_z(per_step, laws, functions):
    """Largest |z| of means of `functions` over positions (chains, steps) against the law."""
    found = np.stack([function(per_step).mean(axis=1) for function in functions], axis=1)
    return largest_z(found, np.array([laws.expect(function) for function in functions]))


POWERS = [lambda x: x, lambda x: x**2, lambda x: x**3]
BOXES = {
    "projected": (Projected({"mean": Box(LOW, HIGH)}), projected_law),
    "reflected": (Reflected({"mean": Box(LOW, HIGH)}), reflected_law),
}
STEP = 0.2


def box_draws(dynamics, step=STEP, chains=512, steps=400, bound=None):
    bound = bound or method(dynamics, step).prepare(truncated_gaussian()).kernel
    return run_chains(bound, chains=chains, steps=steps, burn_in=100, start=[1.0])[..., 0]


@pytest.mark.parametrize("name", BOXES)
def test_law_in_a_box_is_that_of_its_transition(name):
    """With one row per step, so that gradient noise is part of the law."""
    dynamics, law_of = BOXES[name]
    law, found = law_of(LOW, HIGH, row_means(STEP), STEP), box_draws(dynamics)
    at_ends = [lambda x: (x == LOW) * 1.0, lambda x: (x == HIGH) * 1.0]
    functions = POWERS + (at_ends if name == "projected" else [])
    assert moments_z(found, law, functions) < LIMIT
    assert (found.min(), found.max()) >= (LOW, LOW) and found.max() <= HIGH
    assert ((found == LOW).mean() > 0.05) == (name == "projected")


def mean_only(step):
    """The mean of the move with the exact gradient."""
    return lambda x: [x - step / 2 * (x - ROWS.mean())]


@pytest.mark.parametrize(("name", "order"), [("projected", 0.5), ("reflected", 1.0)])
def test_bias_has_its_order_in_the_step_size(name, order):
    law_of, steps = BOXES[name][1], np.array([0.02, 0.01, 0.005])
    laws = [law_of(LOW, HIGH, mean_only(step), step) for step in steps]
    for of in (lambda law: law.mean, lambda law: law.sd):
        bias = np.array([of(law) - of(TRUTH) for law in laws])
        found = np.log2(bias[:-1] / bias[1:])
        np.testing.assert_allclose(found, order, atol=0.1)
    if name == "projected":
        mass = np.array([law.weights[0] for law in laws])
        np.testing.assert_allclose(np.log2(mass[:-1] / mass[1:]), 0.5, atol=0.05)


def test_projection_acts_like_a_boundary_farther_out():
    """By 0.5826 √ε (Asmussen, Glynn and Pitman, 1995), up to terms of order ε."""
    shift = 0.5826 * np.sqrt(0.005)
    law = projected_law(LOW, HIGH, mean_only(0.005), 0.005, count=250)
    wider = target_law(LOW - shift, HIGH + shift, lambda x: (x - ROWS.mean()) ** 2 / 2)
    clipped = wider.moved_to(lambda x: np.clip(x, LOW, HIGH))
    assert abs(law.mean - TRUTH.mean) > 10 * abs(law.mean - clipped.mean)


def test_half_spaces_have_the_laws_of_boxes_in_turned_coordinates():
    """The direction n/‖n‖ of an isotropic Gaussian is a truncated Gaussian, the other one free."""
    normal, offset, step = np.array([3.0, 4.0]), -1.0, 0.3
    posterior = tallmc.Posterior(
        lambda p, row: 0.0 * row,
        lambda p: -jnp.sum(p["x"] ** 2) / 2,
        data=np.ones(2),
        init={"x": np.array([-1.0, -1.0])},
    )
    along = lambda x: [x * (1 - step / 2)]
    laws = {Projected: projected_law, Reflected: reflected_law}
    for kind, law_of in laws.items():
        dynamics = kind({"x": HalfSpace(normal, offset)})
        bound = method(dynamics, step).prepare(posterior).kernel
        found = run_chains(bound, chains=512, steps=300, burn_in=50, start=[-1.0, -1.0])
        inwards, sideways = -found @ normal / 5, found @ np.array([4.0, -3.0]) / 5
        law = law_of(0.2, 8.0, along, step)
        assert moments_z(inwards, law, POWERS) < LIMIT
        assert inwards.min() > 0.2 - 1e-9
        free = np.array([0.0, 1 / (1 - step / 4)])
        per_chain = np.stack([sideways.mean(1), (sideways**2).mean(1)], axis=1)
        assert largest_z(per_chain, free) < LIMIT


@pytest.mark.parametrize(
    ("box", "values", "folded"),
    [
        (Box(0.0, 1.0), [-0.3, 0.4, 1.25, 2.6, -1.4], [0.3, 0.4, 0.75, 0.6, 0.6]),
        (Box(low=1.0), [0.25, 3.0, -9.0, 1.0, 2.0], [1.75, 3.0, 11.0, 1.0, 2.0]),
        (Box(high=1.0), [0.25, 3.0, -9.0, 1.0, 2.0], [0.25, -1.0, -9.0, 1.0, 0.0]),
        (Box(), [0.25, 3.0, -9.0, 1.0, 2.0], [0.25, 3.0, -9.0, 1.0, 2.0]),
    ],
)
def test_reflection_folds_into_a_box(box, values, folded):
    posterior = tallmc.Posterior(
        lambda p, row: 0.0 * row, lambda p: 0.0 * p.sum(), data=np.ones(2), init=np.full(5, 1.0)
    )
    dynamics = method(Reflected(box), 0.1).prepare(posterior).kernel.kernel.dynamics
    reflect, project = dynamics._inside, dynamics._projected
    np.testing.assert_allclose(reflect(jnp.asarray(values)), folded, atol=1e-12)
    np.testing.assert_allclose(project(jnp.asarray(values)), np.clip(values, box.low, box.high))
    for broken in (np.nan, np.inf):
        hidden = project(jnp.full(5, broken)), reflect(jnp.full(5, broken))
        assert not np.isfinite(hidden).any(), "a chain that has failed must not look well"


# Mirrored dynamics.

COINS = np.array([1.0, 1.0, 1.0, 0.0, 0.0])
PRIOR = np.array([1.5, 2.0])
ALPHA = PRIOR + np.array([COINS.sum(), len(COINS) - COINS.sum()])


def coin(params, row):
    return row * jnp.log(params["p"][0]) + (1 - row) * jnp.log(params["p"][1])


def beta_prior(params):
    return jnp.sum((PRIOR - 1) * jnp.log(params["p"]))


def beta_bernoulli():
    """The posterior of p = (p₁, p₂) is Dirichlet(4.5, 4)."""
    return tallmc.Posterior(coin, beta_prior, data=COINS, init={"p": np.array([0.5, 0.5])})


def logistic(y):
    return 1 / (1 + np.exp(-y))


def coin_means(step, rows=COINS):
    """∇Ŵ = (N + α₀ of the prior) θ₁ − N x − α₁ of the prior, for a row x."""
    total = len(COINS) + PRIOR.sum()
    return lambda y: [
        y - step / 2 * (total * logistic(y) - len(COINS) * row - PRIOR[0]) for row in rows
    ]


def entropic_law(step, rows=COINS):
    return free_law(14.0, coin_means(step, rows), step, 400).moved_to(logistic)


def entropic_draws(bound, chains=512, steps=400, start=(0.5, 0.5)):
    return run_chains(bound, chains=chains, steps=steps, burn_in=100, start=list(start))


ENTROPIC = Mirrored({"p": Entropic()})


def test_law_on_a_simplex_is_that_of_its_transition():
    """With one row per step. The mean is that of the posterior at any step size."""
    step = 0.3
    law = entropic_law(step)
    found = entropic_draws(method(ENTROPIC, step).prepare(beta_bernoulli()).kernel)
    assert moments_z(found[..., 0], law, POWERS) < LIMIT
    np.testing.assert_allclose(found.sum(axis=-1), 1, atol=1e-12)
    assert law.mean == pytest.approx(ALPHA[0] / ALPHA.sum(), abs=1e-8)


def test_bias_on_a_simplex_is_of_first_order():
    exact = np.sqrt(ALPHA.prod() / (ALPHA.sum() ** 2 * (ALPHA.sum() + 1)))
    bias = [entropic_law(step, rows=[COINS.mean()]).sd - exact for step in (0.1, 0.05, 0.025)]
    np.testing.assert_allclose(np.log2(np.array(bias[:-1]) / bias[1:]), 1, atol=0.1)


def topic_row(params, row):
    return jnp.sum(row * jnp.log(params["w"]))


def topic_prior(params):
    return jnp.sum(jnp.log(params["w"]))  # Dirichlet(2, 2, 2)


def test_dirichlet_multinomial_with_subsampled_counts():
    """Means are exact at any step size. Covariances are right at a small one."""
    counts = np.random.default_rng(0).multinomial(2, [0.5, 0.3, 0.2], size=6).astype(float)
    posterior = tallmc.Posterior(topic_row, topic_prior, data=counts, init={"w": np.full(3, 1 / 3)})
    alpha = 2.0 + counts.sum(axis=0)
    mean = alpha / alpha.sum()
    noisy = method(Mirrored({"w": Entropic()}), 0.1, size=2).prepare(posterior).kernel
    found = run_chains(noisy, chains=512, steps=300, burn_in=100, start=mean)
    assert largest_z(found.mean(axis=1), mean) < LIMIT
    ula = tallmc.Method(
        dynamics=Mirrored({"w": Entropic()}),
        gradient=tallmc.gradient.Full(),
        subsample=tallmc.subsample.AllRows(),
        step_size=0.004,
    )
    found = run_chains(
        ula.prepare(posterior).kernel, chains=512, steps=100, burn_in=400, start=mean, thin=20
    )
    covariance = (np.diag(mean) - np.outer(mean, mean)) / (alpha.sum() + 1)
    centred = found - mean
    squares = np.einsum("cti,ctj->cij", centred, centred) / centred.shape[1]
    assert largest_z(found.mean(axis=1), mean) < LIMIT
    assert largest_z(squares[:, :2, :2], covariance[:2, :2]) < LIMIT


BARRIER = LogBarrier(-1.0, 2.0)
BUMP = 3.0  # the density is (θ + 1)³ (2 − θ)³ times that of the rows


def bump(params):
    return BUMP * (jnp.log(params["mean"] + 1) + jnp.log(2 - params["mean"]))


def barrier_posterior():
    return tallmc.Posterior(normal_row, bump, data=ROWS, init={"mean": 0.5})


def barrier_theta(y):
    """The root in (−1, 2) of 1/(2 − θ) − 1/(θ + 1) = y, by bisection."""
    low, high = np.full(np.shape(y), -1.0), np.full(np.shape(y), 2.0)
    for _ in range(200):
        middle = (low + high) / 2
        below = 1 / (2 - middle) - 1 / (middle + 1) < y
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return (low + high) / 2


def barrier_means(step, rows):
    """∇W = (∂f + ∂ log h'')/h'', with derivatives of h by hand."""

    def means(y):
        x = barrier_theta(y)
        second = (x + 1) ** -2 + (2 - x) ** -2
        third = -2 * (x + 1) ** -3 + 2 * (2 - x) ** -3
        prior = -BUMP / (x + 1) + BUMP / (2 - x)
        return [y - step / 2 * ((x - row) + prior + third / second) / second for row in rows]

    return means


def barrier_law(step, rows=ROWS):
    return free_law(60.0, barrier_means(step, rows), step, 800).moved_to(barrier_theta)


@pytest.mark.slow
def test_law_of_a_log_barrier_is_that_of_its_transition():
    step = 0.4
    law = barrier_law(step)
    bound = method(Mirrored({"mean": BARRIER}), step).prepare(barrier_posterior()).kernel
    found = run_chains(bound, chains=512, steps=400, burn_in=100, start=[0.5])[..., 0]
    assert moments_z(found, law, POWERS) < LIMIT
    truth = target_law(
        -1.0,
        2.0,
        lambda x: (x - ROWS.mean()) ** 2 / 2 - BUMP * np.log((x + 1) * (2 - x)),
    )
    bias = [barrier_law(s, [ROWS.mean()]).sd - truth.sd for s in (0.1, 0.05)]
    assert np.log2(bias[0] / bias[1]) == pytest.approx(1, abs=0.1)


MAPS = {
    "entropic": (Entropic(), np.array([0.2, 0.5, 0.3])),
    "log-barrier": (LogBarrier([-1.0, 0.0, 2.0], [2.0, 1.0, 2.5]), np.array([0.4, 0.9, 2.01])),
}


def mirrors_of(chosen, layout, dtype):
    """The dynamics with mirror maps prepared for positions of this layout."""
    return Mirrored(chosen)._with(mirrors=prepared_settings("mirrors", chosen, layout, dtype))


@pytest.mark.parametrize("name", MAPS)
def test_mirror_maps_are_inverse_and_have_their_derivatives(name):
    """By automatic differentiation, in the entries that are free."""
    chosen, theta = MAPS[name]
    posterior = tallmc.Posterior(
        lambda p, row: 0.0 * row, lambda p: 0.0 * p.sum(), data=np.ones(2), init=theta
    )
    mirrors = mirrors_of(chosen, posterior.layout, posterior.dtype)
    dual = mirrors.dual(jnp.asarray(theta))
    np.testing.assert_allclose(mirrors.primal(dual), theta, atol=1e-12)
    one = jnp.ones_like(dual)
    free = mirrors.mirrors.replaced(one, lambda mirror, of: mirror.free(dual[of]))
    k = int(free.sum())
    embed = lambda free: jnp.zeros(3).at[:k].set(free)
    jacobian = jax.jacobian(lambda free: mirrors.primal(embed(free)))(dual[:k])
    g = jnp.array([0.7, -1.2, 0.4])
    np.testing.assert_allclose(mirrors.pull(dual, g)[:k], jacobian.T @ g, atol=1e-12)
    volume = lambda free: jnp.linalg.slogdet(
        jax.jacobian(lambda free: mirrors.primal(embed(free))[:k])(free)
    )[1]
    np.testing.assert_allclose(
        mirrors.volume_gradient(dual)[:k], jax.grad(volume)(dual[:k]), atol=1e-10
    )
    assert not np.any(mirrors.pull(dual, g)[k:]) and not np.any(mirrors.volume_gradient(dual)[k:])


@pytest.mark.parametrize("name", MAPS)
def test_injected_noise_in_the_mirror_gives_up_what_gradient_noise_adds(name):
    chosen, theta = MAPS[name]
    posterior = tallmc.Posterior(
        lambda p, row: 0.0 * row, lambda p: 0.0 * p.sum(), data=np.ones(2), init=theta
    )
    mirrors = mirrors_of(chosen, posterior.layout, posterior.dtype)
    dual = mirrors.dual(jnp.asarray(theta))
    half = np.array([[1.0, 0.0, 0.0], [0.3, 0.8, 0.0], [-0.2, 0.5, 0.6]])
    J = jax.jacobian(lambda g: mirrors.pull(dual, g))(jnp.zeros(3))
    for covariance in (half @ half.T, np.array([1.0, 0.4, 2.0])):
        full = np.diag(covariance) if covariance.ndim == 1 else covariance
        found = mirrors._in_dual(dual, jnp.asarray(covariance))
        np.testing.assert_allclose(found, J @ full @ J.T, atol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_mirror_stays_inside_however_far_the_dual_goes(dtype):
    far = np.array([-1e30, -1e6, -3.0, 0.0, 3.0, 1e6, 1e30], dtype)
    posterior = tallmc.Posterior(
        lambda p, row: 0.0 * row, lambda p: 0.0 * p.sum(), data=np.ones(2), init=np.full(7, 1.5)
    )
    barrier = mirrors_of(LogBarrier(1.0, 2.0), posterior.layout, dtype)
    theta = np.asarray(barrier.primal(jnp.asarray(far)))
    assert theta.dtype == dtype and ((theta > 1) & (theta < 2)).all()
    assert np.isfinite(barrier.volume_gradient(jnp.asarray(far))).all()
    entropic = mirrors_of(Entropic(), posterior.layout, dtype)
    theta = entropic.primal(jnp.asarray(far))
    assert (np.asarray(theta) > 0).all() and np.isfinite(1 / theta).all()
    assert np.isnan(barrier.primal(jnp.full(7, jnp.nan, dtype))).all()


# Mutants.


class VolumeForgotten(Mirrored):
    """∇ log det ∇²h is missing: the law is that of e^{−f} in the mirror."""

    def step(self, state, evaluate, step_size, noise):
        moved = super().step(state, evaluate, step_size, noise)
        extra = step_size / 2 * self.volume_gradient(state.dual)
        dual = moved.state.dual - extra
        return moved._replace(
            state=dataclasses.replace(moved.state, dual=dual, position=self.primal(dual))
        )


class NoiseOfAWholeStep(Mirrored):
    """√(2ε) η, as if ε were that of dθ = −∇f dt + √2 dB."""

    def step(self, state, evaluate, step_size, noise):
        return super().step(state, evaluate, step_size, jnp.sqrt(2) * noise)


def with_dynamics(bound, kind):
    mutant = cast(bound.kernel.dynamics, kind)
    return dataclasses.replace(bound, kernel=dataclasses.replace(bound.kernel, dynamics=mutant))


def points_of_departure(bound, count=12):
    """Rows, normal noise, and random points at which the gradient is given."""
    rng = np.random.default_rng(0)
    rows, noise = rng.integers(0, len(ROWS), count), 2 * rng.normal(size=count)
    return rows, noise, [random_point(bound, seed) for seed in range(count)]


def simplex_step_error(kind=Mirrored) -> float:
    """The largest error of steps against the formulas of which `entropic_law` is the law."""
    step = 0.3
    bound = with_dynamics(method(ENTROPIC, step).prepare(beta_bernoulli()).kernel, kind)
    rows, noise, points = points_of_departure(bound)
    y = np.linspace(-2.5, 2.5, len(points))
    p = np.stack([logistic(y), logistic(-y)], axis=1)
    x = np.stack([COINS[rows], 1 - COINS[rows]], axis=1)
    gradients = -(len(COINS) * x + PRIOR - 1) / p
    points = [
        dataclasses.replace(
            point,
            motion=type(point.motion)(jnp.asarray(p[i]), jnp.array([y[i], 0.0])),
            gradient=gradients[i],
            noise=np.array([noise[i], 0.7]),
        )
        for i, point in enumerate(points)
    ]
    after, _ = stepped(with_given_gradient(bound), bound.rows, *points)
    mean = np.stack(coin_means(step)(y))[rows, np.arange(len(y))]
    dual = mean + np.sqrt(step) * noise
    found = np.concatenate([after.dual[:, 0], after.position[:, 0], after.dual[:, 1]])
    return np.abs(found - np.concatenate([dual, logistic(dual), np.zeros_like(dual)])).max()


FOLDED = {
    "projected": lambda x: np.clip(x, LOW, HIGH),
    "reflected": lambda x: LOW + np.abs((x - LOW + HIGH - LOW) % (2 * (HIGH - LOW)) - (HIGH - LOW)),
}


def box_step_error(name, dynamics) -> float:
    """The largest error of steps against the formulas of which the laws in boxes are the law."""
    bound = method(dynamics, STEP).prepare(truncated_gaussian()).kernel
    rows, noise, points = points_of_departure(bound)
    x = np.linspace(LOW, HIGH, len(points))
    points = [
        dataclasses.replace(
            point,
            motion=type(point.motion)(jnp.asarray(x[i : i + 1])),
            gradient=x[i : i + 1] - ROWS[rows[i]],
            noise=noise[i : i + 1],
        )
        for i, point in enumerate(points)
    ]
    after, _ = stepped(with_given_gradient(bound), bound.rows, *points)
    mean = np.stack(row_means(STEP)(x))[rows, np.arange(len(x))]
    free = mean + np.sqrt(STEP) * noise
    assert ((free < LOW) | (free > HIGH)).sum() > 2
    return np.abs(after.position[:, 0] - FOLDED[name](free)).max()


@pytest.mark.smoke
def test_steps_are_those_of_the_formulas():
    """The laws that follow are compared with long runs in the tests above."""
    assert simplex_step_error() < 1e-12
    for name, (dynamics, _) in BOXES.items():
        assert box_step_error(name, dynamics) < 1e-12


@pytest.mark.smoke
@pytest.mark.parametrize("kind", [VolumeForgotten, NoiseOfAWholeStep])
def test_steps_on_a_simplex_kill(kind):
    assert 1e-2 < simplex_step_error(kind) < np.inf


@pytest.mark.smoke
@pytest.mark.parametrize("name", BOXES)
def test_steps_in_boxes_kill_one_constraint_in_place_of_the_other(name):
    other = BOXES["reflected" if name == "projected" else "projected"][0]
    assert 1e-2 < box_step_error(name, other) < np.inf


@pytest.mark.parametrize("kind", [VolumeForgotten, NoiseOfAWholeStep])
def test_the_law_on_a_simplex_kills(kind):
    bound = with_dynamics(method(ENTROPIC, 0.3).prepare(beta_bernoulli()).kernel, kind)
    z = moments_z(entropic_draws(bound)[..., 0], entropic_law(0.3), POWERS)
    assert LIMIT < z < np.inf


@pytest.mark.parametrize("name", BOXES)
def test_laws_in_boxes_kill_one_constraint_in_place_of_the_other(name):
    law_of = BOXES[name][1]
    other = BOXES["reflected" if name == "projected" else "projected"][0]
    law = law_of(LOW, HIGH, row_means(STEP), STEP)
    assert LIMIT < moments_z(box_draws(other), law, POWERS) < np.inf


# What users see.


def test_pairs_see_the_bias_of_projection_by_its_order():
    """c√ε: the difference of ε and ε/2 is 0.29 of the bias, and is scaled by 1/(1 − 2^−½)."""
    step = 0.1
    bound = method(BOXES["projected"][0], step).prepare(truncated_gaussian()).kernel
    pairs = PairRun(bound, jnp.full((128, 1), 0.9), burn_in=100, n_draws=400, thin=2)
    laws = (projected_law(LOW, HIGH, row_means(s), s) for s in (step, step / 2))
    bias, (coarse, fine) = pairs.bias(), laws
    expected = (coarse.mean - fine.mean) / fine.sd / (1 - 0.5**0.5)
    assert abs(bias.mean[0] - expected) < LIMIT * bias.mean_error[0]
    assert abs(bias.mean[0]) > 5 * bias.mean_error[0]
    true_bias = (coarse.mean - TRUTH.mean) / TRUTH.sd
    assert expected == pytest.approx(true_bias, rel=0.25)
    assert abs(2 * (1 - 0.5**0.5) * expected) < 0.8 * abs(true_bias), "twice is too little"


def test_verdicts_on_projection_and_reflection():
    """At a step size at which reflection is good, projection is not."""
    posterior, found = truncated_gaussian(), {}
    for name, (dynamics, _) in BOXES.items():
        full = tallmc.Method(
            dynamics=dynamics,
            gradient=tallmc.gradient.Full(),
            subsample=tallmc.subsample.AllRows(),
            step_size=0.1,
        )
        found[name] = tallmc.check(posterior, full, ess=20_000.0, thin=10, chains=16).verdict
    assert found == {"projected": Verdict.DOUBTFUL, "reflected": Verdict.CHECKED}


def test_anchors_may_lie_anywhere_inside_but_chains_start_inside():
    """The mode of f is at 0.4, outside of [1, 2]; its gradient at the boundary is not zero."""
    posterior = truncated_gaussian(init=1.5)
    cv = tallmc.Method(
        dynamics=Reflected({"mean": (1.0, 2.0)}),
        gradient=tallmc.gradient.ControlVariate(),
        batch_size=1,
        step_size=0.1,
    )
    with pytest.raises(tallmc.InvalidInput, match=r"start, parameter mean must lie in its domain"):
        tallmc.sample(posterior, cv, n_draws=10, progress=False)
    anchor = tallmc.anchor.find_anchor(posterior, at={"mean": 1.0})
    assert float(anchor.gradient[0]) == pytest.approx(0.6)
    # The residuals of this model are the same for all rows, so its gradients have no noise.
    bound = cv.prepare(posterior, anchor).kernel
    found = run_chains(bound, chains=256, steps=100, burn_in=50, start=[1.0])[..., 0]
    assert moments_z(found, reflected_law(1.0, 2.0, mean_only(0.1), 0.1), POWERS) < LIMIT


@pytest.mark.parametrize(
    ("dynamics", "message"),
    [
        (lambda: Projected({"mean": Box(2.0, 1.0)}), "low must be below high"),
        (lambda: Projected({"mean": (1.0, 1.0)}), "low must be below high"),
        (lambda: Projected({"mean": 3.0}), r"within\['mean'\] must be Box"),
        (lambda: Projected("mean"), "within must be Box"),
        (lambda: Projected(Entropic()), "within must be Box"),
        (lambda: Projected({"speed": (0.0, 2.0)}), r"name parameters of the posterior \(mean\)"),
        (lambda: Reflected({"mean": (1.5, 2.0)}), "init, parameter mean must lie in its domain"),
        (lambda: Reflected({"mean": Box([0.0, 0.0], 2.0)}), "low must be a number or have"),
        (lambda: Reflected(Box([0.0, 0.0], [1.0, 1.0, 1.0])), "high must fit the shape of low"),
        (lambda: Reflected(HalfSpace([0.0], 1.0)), "normal must be finite and not zero"),
        (lambda: Reflected(HalfSpace([1.0, 1.0], 1.0)), "normal must have the shape of position"),
        (lambda: Reflected(HalfSpace([1.0], np.inf)), "offset must be a finite number"),
        (lambda: Reflected(HalfSpace([1.0], 0.5)), "init, parameter position must lie"),
        (lambda: Mirrored({"mean": Box(0.0, 2.0)}), r"mirrors\['mean'\] must be Entropic"),
        (lambda: Mirrored({"mean": LogBarrier(0.0, np.inf)}), "high must be finite"),
        (lambda: Mirrored({"mean": (1.0, 2.0)}), "init, parameter mean must lie"),
        (lambda: Mirrored({"mean": Entropic()}), "parameter mean must have at least two entries"),
    ],
)
def test_bad_domains_are_refused(dynamics, message):
    with pytest.raises(tallmc.InvalidInput, match=message):
        method(dynamics(), 0.1).prepare(truncated_gaussian())


def test_a_parameter_off_the_simplex_is_refused():
    posterior = tallmc.Posterior(coin, beta_prior, data=COINS, init={"p": np.array([0.5, 0.6])})
    with pytest.raises(tallmc.InvalidInput, match="init, parameter p must lie in its domain"):
        method(ENTROPIC, 0.1).prepare(posterior)
    with pytest.raises(tallmc.InvalidInput, match="start, parameter p must lie in its domain"):
        tallmc.sample(
            beta_bernoulli(), method(ENTROPIC, 0.1), start={"p": np.array([1.0, 0.0])}, n_draws=10
        )


@pytest.mark.parametrize(
    "dynamics", [Projected((-1.0, 1.0)), Reflected((-1.0, 1.0)), Mirrored((-1.0, 1.0))]
)
def test_parts_that_do_not_fit_are_refused_with_the_reason(dynamics):
    with pytest.raises(tallmc.InvalidInput, match=r"be Identity\(\) with .*, whose"):
        tallmc.Method(
            dynamics=dynamics, batch_size=1, step_size=0.1, geometry=tallmc.geometry.Diagonal()
        )
    with pytest.raises(tallmc.InvalidInput, match="does not provide its transition density"):
        tallmc.Method(
            dynamics=dynamics,
            batch_size=1,
            step_size=0.1,
            subsample=tallmc.subsample.ExponentiallyWeighted(),
        )


def two_parameters():
    return tallmc.Posterior(
        lambda p, row: stats.norm.logpdf(row, p["mean"] + p["w"][0], 1.0),
        lambda p: jnp.sum(jnp.log(p["w"])),
        data=ROWS,
        init={"mean": 0.5, "w": np.array([0.2, 0.3, 0.5])},
    )


RUNS = {
    "projected": Projected({"mean": Box(low=0.0), "w": Box(0.05)}),
    "reflected": Reflected({"w": Box([0.1, 0.1, 0.1], 2.0), "mean": (0.0, 1.0)}),
    "mirrored": Mirrored({"w": Entropic(), "mean": LogBarrier(-1.0, 1.0)}),
}


@pytest.mark.parametrize("name", RUNS)
def test_runs_are_stored_and_resumed_bit_for_bit(name, tmp_path):
    posterior, chosen = two_parameters(), method(RUNS[name], 0.02, size=2)
    options = {"chains": 2, "burn_in": 5, "seed": 3, "progress": False}
    whole = tallmc.sample(posterior, chosen, n_draws=60, **options)
    tallmc.sample(posterior, chosen, n_draws=25, store=tmp_path / "run", **options)
    resumed = tallmc.resume(tmp_path / "run", posterior, n_draws=60, progress=False)
    np.testing.assert_array_equal(resumed.positions, whole.positions)
    assert whole.ok.all()
    if name == "mirrored":
        np.testing.assert_allclose(whole.params["w"].sum(axis=-1), 1, atol=1e-6)
    else:
        assert whole.params["mean"].min() >= 0
        assert "at_boundary" in whole.sample_stats
