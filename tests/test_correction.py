"""Noise correction: draws with the covariance of exact gradients in spite of gradient noise.

A step that has more gradient noise than it can correct for is reported.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import table_1
import tallmc
from kept_programs import run_once
from problems import DYNAMICS, SUBSAMPLES, exact_posterior, linear, logistic, slow_after, slow_among
from stationary import exact_law, fixed_point, gradient_covariance, law_z, run_chains
from tallmc.contrib.constrained import Mirrored, Projected, Reflected
from tallmc.contrib.proximal import Proximal
from tallmc.correction import NoiseCorrection
from tallmc.dynamics import (
    BAOAB,
    SGHMC,
    GeometricLangevin,
    Hamiltonian,
    Langevin,
    LeimkuhlerMatthews,
    MatrixFriction,
    Microcanonical,
    NoseHoover,
    PreconditionedLangevin,
    RiemannianHamiltonian,
    RiemannianLangevin,
)
from tallmc.dynamics.dynamics import drag, reduced_noise
from tallmc.dynamics.metric import inverse_root
from tallmc.geometry import Dense, Identity
from tallmc.gradient import ControlVariate, Full, Simple
from tallmc.subsample import AllRows, Preferential, Stratified
from tallmc.subsample.selection import Carried, Estimate
from test_unbiased import all_batches

ROUND = Stratified(np.arange(12) % 2, at_least=2)
FRICTION = 8.0


def even(dim):
    """Rows of similar size, so that all batches are about equally noisy."""
    rng = np.random.default_rng(3)
    x = rng.choice([-1.0, 1.0], size=(16, dim)) * rng.uniform(0.8, 1.2, size=(16, dim))
    y = x.sum(1) + rng.choice([-1.0, 1.0], size=16) * rng.uniform(0.8, 1.2, size=16)
    return tallmc.models.linear_regression(x, y, prior_variance=4.0, noise_variance=1.0)


def share_of_noise(method, posterior):
    """The gradient's share of the noise of a step of size one, in the noisiest direction."""
    bound = method.prepare(posterior).kernel
    dynamics, d = bound.kernel.dynamics, posterior.dim
    C = (
        np.asarray(inverse_root(dynamics.metric, jnp.zeros(d)))
        if isinstance(method.dynamics, RiemannianLangevin)
        else np.asarray(dynamics.geometry.push(jnp.eye(d))).T
    )
    V = C.T @ gradient_covariance(bound)(exact_posterior(posterior)[1]) @ C
    overdamped = isinstance(method.dynamics, Langevin | RiemannianLangevin)
    friction = 1 if overdamped else method.dynamics.friction
    return np.linalg.eigvalsh(V)[-1] / (4 * friction)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dynamics", "geometry", "shape"),
    slow_after(
        1,
        [
            (Langevin(), Identity(), "dense"),
            (RiemannianLangevin(), Identity(), "dense"),
            (SGHMC(2.0), Dense(), "dense"),
            (Langevin(), Dense(), "diagonal"),
            (SGHMC(FRICTION), Identity(), "diagonal"),
        ],
    ),
    ids=["langevin", "riemannian", "underdamped-dense", "langevin-dense", "underdamped"],
)
def test_corrected_law_is_that_of_exact_gradients(dynamics, geometry, shape):
    """The estimate from each batch is unbiased, so second moments are exact.

    The diagonal form is tested in one dimension, where it is the whole covariance.
    """
    posterior = even(dim=1 if shape == "diagonal" else 2)
    parts = {"dynamics": dynamics, "geometry": geometry, "gradient": Simple(), "batch_size": 12}
    step = 0.15 / share_of_noise(tallmc.Method(**parts, step_size=1.0), posterior)
    noisy = exact_law(tallmc.Method(**parts, step_size=step).prepare(posterior).kernel, step)
    quiet = {**parts, "gradient": Full(), "subsample": AllRows(), "batch_size": None}
    exact = exact_law(tallmc.Method(**quiet, step_size=step).prepare(posterior).kernel, step)
    assert np.trace(noisy.covariance) > 1.08 * np.trace(exact.covariance)
    corrected = tallmc.Method(**parts, step_size=step, correction=NoiseCorrection(shape))
    z = law_z(corrected.prepare(posterior).kernel, exact, chains=512)
    assert max(z.values()) < 4.6, z


KNOW_THEIR_SPREAD = [
    name
    for name, subsample in SUBSAMPLES.items()
    if subsample.knows_its_spread and name not in ("bandit", "optimal")
]
OTHER_WEIGHTS = [
    name for name in KNOW_THEIR_SPREAD if "-weights" in name and name != "curvature-weights"
]


@pytest.mark.parametrize("name", slow_among(OTHER_WEIGHTS, KNOW_THEIR_SPREAD))
def test_spread_estimates_the_covariance_without_bias_by_enumeration(name):
    posterior, position = logistic(), jnp.array([0.7, -1.3])
    method = tallmc.Method(
        subsample=SUBSAMPLES[name], gradient=ControlVariate(), batch_size=3, step_size=0.1
    )
    bound = method.prepare(posterior, tallmc.anchor.find_anchor(posterior)).kernel
    kernel, rows = bound.kernel, bound.rows

    @run_once
    @jax.vmap
    def estimate(drawn):
        return kernel.estimate(position, kernel.selection.gather(drawn, rows), rows)

    drawn, p = all_batches(bound, position, None)
    found = estimate(drawn)
    values, each = np.asarray(found.gradient), np.asarray(found.spread)
    spreads = each.transpose(0, 2, 1) @ each
    exact = (values - p @ values).T * p @ (values - p @ values)
    np.testing.assert_allclose(np.tensordot(p, spreads, 1), exact, atol=1e-12 * np.abs(exact).max())


@pytest.mark.parametrize(
    ("name", "gradient"),
    slow_after(
        1,
        [
            ("own-weights", ControlVariate()),
            ("uniform", Simple()),
            ("uniform", ControlVariate()),
            ("own-weights", Simple()),
        ],
    ),
    ids=["own-weights-cv", "uniform-simple", "uniform-cv", "own-weights-simple"],
)
def test_groups_estimate_the_covariance_without_bias_by_enumeration(name, gradient):
    posterior, position = logistic(), jnp.array([0.7, -1.3])
    parts = {"subsample": SUBSAMPLES[name], "gradient": gradient, "batch_size": 4, "step_size": 0.1}
    anchor = tallmc.anchor.find_anchor(posterior)
    plain = tallmc.Method(**parts).prepare(posterior, anchor).kernel
    grouped = tallmc.Method(**parts, correction=NoiseCorrection("dense", groups=2))
    bound = grouped.prepare(posterior, anchor).kernel
    kernel, rows = bound.kernel, bound.rows
    stacked, p = all_batches(bound, position, None)

    def estimate(kernel, drawn):
        return kernel.estimate(position, kernel.selection.gather(drawn, rows), rows)

    found = run_once(jax.vmap(lambda drawn: estimate(kernel, drawn)))(stacked)
    expected = run_once(jax.vmap(lambda drawn: estimate(plain.kernel, drawn)))(stacked)
    np.testing.assert_allclose(found.gradient, expected.gradient, rtol=1e-10, atol=1e-12)
    values = np.asarray(found.gradient)
    exact = (values - p @ values).T * p @ (values - p @ values)
    mean = np.tensordot(p, np.asarray(found.noise), 1)
    np.testing.assert_allclose(mean, exact, atol=1e-12 * np.abs(exact).max())


@pytest.mark.slow
@pytest.mark.parametrize("shape", slow_after(1, ["dense", "diagonal"]))
def test_calibrated_friction_brings_the_variance_back(shape):
    """It removes at least two thirds of the variance that noise and discretisation add."""
    posterior = even(dim=2)
    parts = {"dynamics": SGHMC(FRICTION), "batch_size": 4}
    step = 0.3 / share_of_noise(tallmc.Method(**parts, step_size=1.0), posterior)
    uncorrected = tallmc.Method(**parts, step_size=step).prepare(posterior).kernel
    noisy = exact_law(uncorrected, step).covariance
    # More friction also reduces the discretisation error, so the posterior is the reference.
    exact = exact_posterior(posterior)[1]
    correction = NoiseCorrection(shape, through="friction", calibrate_every=300)
    method = tallmc.Method(**parts, step_size=step, correction=correction)
    settings = {"chains": 256, "steps": 100, "thin": 20, "burn_in": 1000}
    start = exact_posterior(posterior)[0]
    draws = run_chains(method.prepare(posterior).kernel, start=start, **settings)
    excess = np.trace(np.cov(draws.reshape(-1, 2).T)) - np.trace(exact)
    assert abs(excess) < np.trace(noisy - exact) / 3


@pytest.mark.slow
def test_passes_of_a_calibrated_correction_are_counted():
    correction = NoiseCorrection(calibrate_every=10)
    method = tallmc.Method(batch_size=2, step_size=0.001, correction=correction)
    draws = tallmc.sample(linear(), method, chains=1, n_draws=25, burn_in=0)
    assert draws.n_row_evals_sampling == 25 * 2 + 3 * 12


@pytest.mark.parametrize(
    "covariance",
    [np.array([0.5, 3.0]), np.array([[0.5, 0.4], [0.4, 3.0]])],
    ids=["diagonal", "dense"],
)
def test_injected_noise_is_positive_by_construction(covariance):
    """Directions with too much gradient noise get no other; what is uncorrected is reported."""
    normal = np.random.default_rng(0).normal(size=(100_000, 2))
    reduced = lambda z, share: reduced_noise(z, jnp.asarray(covariance), jnp.asarray(share))
    noise = np.asarray(jax.vmap(lambda z: reduced(z, 0.5).noise)(jnp.asarray(normal)))
    V = np.diag(covariance) if covariance.ndim == 1 else covariance
    values, axes = np.linalg.eigh(0.5 * V)
    wanted = axes @ np.diag(np.maximum(1 - values, 0)) @ axes.T
    products = np.einsum("ni,nj->nij", noise, noise)
    error = products.std(0) / np.sqrt(len(noise)) + 1e-12
    assert (np.abs(products.mean(0) - wanted) / error).max() < 4.6
    first = jnp.asarray(normal[0])
    found = reduced(first, 0.5)
    uncorrected = np.maximum(values - 1, 0).sum() / values.sum()
    assert float(found.stats["uncorrected_noise"]) == pytest.approx(uncorrected)
    assert int(found.outcome) == tallmc.diagnose.Outcome.OK
    assert int(reduced(first, 0.6).outcome) == tallmc.diagnose.Outcome.TOO_NOISY


def test_drag_is_the_papers_friction():
    momentum, V = jnp.array([1.0, -2.0]), jnp.array([[2.0, 0.5], [0.5, 1.0]])
    step = jnp.asarray(0.1)
    dense = 0.05 * np.asarray(V) @ [1.0, -2.0]
    np.testing.assert_allclose(drag(momentum, V, step)[0], dense)
    np.testing.assert_allclose(drag(momentum, jnp.diagonal(V), step)[0], [0.1, -0.1])
    assert int(drag(momentum, 1e3 * V, step)[1]) == tallmc.diagnose.Outcome.TOO_NOISY


def test_a_step_too_large_for_the_correction_is_an_outcome_not_a_wrong_answer():
    method = tallmc.Method(batch_size=2, step_size=0.5, correction=NoiseCorrection())
    with pytest.warns(
        tallmc.SamplingWarning, match="more gradient noise than its step can correct"
    ):
        draws = tallmc.sample(linear(), method, chains=3, n_draws=50, burn_in=0)
    assert set(draws.outcomes) == {tallmc.diagnose.Outcome.TOO_NOISY}
    assert np.isnan(draws.positions[:, -1]).all()


@pytest.mark.slow
def test_suggested_step_of_ewsg_vr_is_one_that_friction_can_correct():
    """From a start far from the mode too, at 625 rows of data per row of a batch."""
    rng, n_rows = np.random.default_rng(0), 20_000
    x = rng.normal(size=(n_rows, 3))
    y = x @ [1.0, -2.0, 0.5] + rng.normal(size=n_rows)
    posterior = tallmc.models.linear_regression(x, y, prior_variance=10.0, noise_variance=1.0)
    method = tallmc.suggest(posterior, "ewsg_vr", batch_size=32).method
    draws = tallmc.sample(posterior, method, chains=2, n_draws=40, thin=25, burn_in=1000)
    assert draws.ok.all()


def test_noise_left_uncorrected_is_reported():
    """With rows of very different size, some batches have too much spread in one direction."""
    method = tallmc.Method(batch_size=3, step_size=0.3, correction=NoiseCorrection())
    start = exact_posterior(linear())[0]
    with pytest.warns(
        tallmc.SamplingWarning, match="of the gradient noise was too large for the step to correct"
    ):
        draws = tallmc.sample(linear(), method, chains=64, n_draws=8, burn_in=0, start=start)
    assert draws.ok.any()


def test_strata_know_their_spread_when_each_is_drawn_from_twice():
    method = tallmc.Method(
        batch_size=6, subsample=ROUND, step_size=0.005, correction=NoiseCorrection()
    )
    draws = tallmc.sample(linear(), method, chains=2, n_draws=50)
    assert draws.ok.all()
    assert 0 <= draws.sample_stats["uncorrected_noise"].max() <= 1


@pytest.mark.slow
def test_correction_goes_with_preferential_weights_and_control_variates():
    posterior, step = even(dim=2), 0.03
    method = tallmc.Method(
        gradient=ControlVariate(),
        subsample=Preferential("curvature"),
        batch_size=8,
        step_size=step,
        correction=NoiseCorrection("dense"),
    )
    exact = exact_law(tallmc.methods.ula(step).prepare(posterior).kernel, step)
    z = law_z(method.prepare(posterior).kernel, exact)
    assert max(z.values()) < 4.6, z


# Each dynamics by itself: a step is affine in its noise ξ and its gradient g, s' = … + Bg + Nξ.

V = np.array([[2.0, 0.6], [0.6, 1.0]])
METRIC_ROOT = np.array([[1.5, 0.0], [0.4, 1.2]])
METRIC = METRIC_ROOT @ METRIC_ROOT.T
INVERSE_ROOT = np.linalg.inv(METRIC_ROOT).T
SAME_PLACE = {
    "langevin": (Langevin(), 0.3),
    "underdamped": (SGHMC(3.0), 0.3),
    "matrix-friction": (MatrixFriction([[4.0, 1.0], [1.0, 2.0]]), 0.3),
    "trajectories": (Hamiltonian(4, 3.0), 0.3),
    "geometric-langevin": (GeometricLangevin(3.0), 0.3),
    "nose-hoover": (NoseHoover(3.0), 0.3),
    "riemannian-langevin": (RiemannianLangevin(lambda params: jnp.asarray(METRIC)), 0.3),
    "riemannian-hamiltonian": (RiemannianHamiltonian(lambda params: jnp.asarray(METRIC), 3.0), 0.3),
    "rmsprop": (PreconditionedLangevin(decay=1.0), 0.03),
    "projected": (Projected({}), 0.3),
    "reflected": (Reflected({}), 0.3),
    "mirrored": (Mirrored({}), 0.3),  # with mirror maps: test_constrained_dynamics.py
    "proximal": (Proximal(), 0.3),
    "sgld-recipe": (table_1.sgld_recipe(2), 0.3),
    "sghmc-recipe": (table_1.sghmc_recipe(2, 3.0), 0.3),
    "sgrld-recipe": (table_1.sgrld_recipe(2, lambda zeta: jnp.asarray(INVERSE_ROOT)), 0.3),
}
IN_CONTRIB = [
    name for name, (choice, _) in SAME_PLACE.items() if "contrib" in type(choice).__module__
]
BETWEEN = {
    "leimkuhler-matthews": (LeimkuhlerMatthews(), 0.2),
    "splitting": (BAOAB(3.0), 0.4),
}


def test_every_dynamics_that_injects_noise_corrects_for_gradient_noise():
    tested = {type(choice) for choice, _ in (SAME_PLACE | BETWEEN).values()}
    tested.add(Microcanonical)  # its steps are not affine: test_microcanonical.py
    for choice in DYNAMICS.values():
        allows_for_it = choice.exact_only or choice.reads_fisher_information
        assert allows_for_it or (type(choice) in tested and "noise" in choice.corrects_through)


def one_step(choice, covariance):
    """The state after a step as a function of (state, gradient, noise), and arguments for it."""
    dynamics = choice.prepare(linear())
    zero = lambda at, transition: Estimate(jnp.ones(2), jnp.int32(0), Carried())
    state = dynamics.init(jax.random.key(0), jnp.array([0.3, -0.2]), zero)
    if isinstance(choice, Hamiltonian):  # inside a trajectory, where no momentum is drawn
        state = dataclasses.replace(state, inner=jnp.int32(1))
    drawn = run_once(lambda: dynamics.noise(jax.random.key(1), 1, jnp.zeros(2)))()
    noise = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)[0]), drawn)

    def after(state, gradient, noise, step_size):
        def evaluate(at, transition):
            return Estimate(gradient, jnp.int32(0), Carried(), noise=covariance)

        moved = dynamics.step(state, evaluate, jnp.asarray(step_size), noise)
        flat = [leaf for leaf in jax.tree.leaves(moved.state) if leaf.dtype == jnp.float64]
        return jnp.concatenate([jnp.atleast_1d(leaf) for leaf in flat])

    return after, state, jnp.ones(2), noise


def matrices(choice, covariances, step):
    """B and N of a step, for each of these covariances."""

    def derivatives(covariance):
        after, state, gradient, noise = one_step(choice, covariance)
        leaves, structure = jax.tree.flatten(noise)
        in_noise = lambda first: after(
            state, gradient, jax.tree.unflatten(structure, [first, *leaves[1:]]), step
        )
        in_gradient = lambda g: after(state, g, noise, step)
        return lambda: (jax.jacfwd(in_gradient)(gradient), jax.jacfwd(in_noise)(leaves[0]))

    of_all = [derivatives(covariance) for covariance in covariances]
    found = run_once(lambda: [of() for of in of_all])()
    return [(np.asarray(B), np.asarray(N).reshape(len(B), -1)) for B, N in found]


@pytest.mark.parametrize("name", slow_among(IN_CONTRIB, SAME_PLACE))
def test_injected_noise_gives_up_what_gradient_noise_adds(name):
    """NNᵀ + BVBᵀ is the covariance of a step with exact gradients, for full and diagonal V."""
    choice, step = SAME_PLACE[name]
    given = [None, jnp.asarray(V), jnp.asarray(np.diag(V))]
    (_, exact), *corrected = matrices(choice, given, step)
    for full, (B, reduced) in zip((V, np.diag(np.diag(V))), corrected, strict=True):
        added = B @ full @ B.T
        assert np.trace(added) > 0.02 * np.trace(exact @ exact.T)
        np.testing.assert_allclose(reduced @ reduced.T + added, exact @ exact.T, atol=1e-12)


def stationary(choice, step, H, covariance, gradient_noise):
    """The covariance of the position, on a Gaussian with precision H."""
    after, state, gradient, noise = one_step(choice, covariance)
    ((B, N),) = matrices(choice, [covariance], step)
    leaves, structure = jax.tree.flatten(state)
    sizes = np.cumsum([leaf.size for leaf in leaves])[:-1]
    rebuilt = lambda flat: jax.tree.unflatten(structure, jnp.split(flat, sizes))
    flat = jnp.concatenate(leaves)
    A = np.asarray(run_once(jax.jacfwd(lambda s: after(rebuilt(s), gradient, noise, step)))(flat))
    M = A + B @ H @ np.eye(2, len(A))
    return fixed_point(lambda S: M @ S @ M.T + N @ N.T + B @ gradient_noise @ B.T, len(A))[:2, :2]


@pytest.mark.slow
@pytest.mark.parametrize("name", BETWEEN)
def test_correction_elsewhere_in_the_step_leaves_an_error_of_second_order(name):
    """Kick and noise are not at the same place, so a share of the excess remains.

    It goes as ε², and as ε for Leimkuhler–Matthews, whose ε is the square of a step of `BAOAB`.
    """
    choice, largest = BETWEEN[name]
    H, remaining = np.array([[2.0, 0.5], [0.5, 1.0]]), []
    for step in (largest, largest / 2):
        exact = stationary(choice, step, H, None, np.zeros((2, 2)))
        noisy = stationary(choice, step, H, None, V)
        corrected = stationary(choice, step, H, jnp.asarray(V), V)
        remaining.append(np.linalg.norm(corrected - exact) / np.linalg.norm(noisy - exact))
    order = np.log2(remaining[0] / remaining[1])
    assert remaining[0] < 0.15, remaining
    assert abs(order - (1 if name == "leimkuhler-matthews" else 2)) < 0.2, (order, remaining)
