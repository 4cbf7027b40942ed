"""Long runs against the exact stationary law.

Mean, covariance, and the lag-1 covariance, which is sensitive to the step size. That each part of a
step is right is shown without chains (`steps.py`). A few short runs here go through all ways in
which the engine gives rows to a step: streams drawn ahead, rows taken by number, all rows, and
trajectories. `test_mutants.py` has mutants that runs of this length kill. The runs of all other
compositions are slow tests.
"""

import dataclasses
import itertools

import jax.numpy as jnp
import numpy as np
import pytest

import tallmc
from laws import LAWS
from problems import exact_posterior, linear, slow_after
from stationary import (
    Law,
    exact_law,
    fixed_point,
    gradient_covariance,
    largest_z,
    law_z,
)
from steps import error_against_the_papers
from tallmc._engine.run import Run, chain_keys
from tallmc.dynamics import Hamiltonian, RiemannianHamiltonian
from tallmc.geometry import Dense, Diagonal, Identity
from tallmc.gradient import ControlVariate, Full, Simple
from tallmc.subsample import AllRows, Preferential, Uniform

STEP = 0.15
AFFINE = {name: law for name, law in LAWS.items() if law.recursion is not None}
IN_ANY_GEOMETRY = [name for name, law in AFFINE.items() if law.choice.takes_geometry]
GRADIENTS = {"simple": Simple(), "control-variate": ControlVariate()}
SUBSAMPLES = {
    "uniform": Uniform(),
    "without-replacement": Uniform(replace=False),
    "gradient-weights": Preferential("gradient"),
    "curvature-weights": Preferential("curvature"),
}


def composed(dynamics, **parts):
    choice, step = AFFINE[dynamics].biased
    return tallmc.Method(dynamics=choice, step_size=step, **parts), step


SHORT = {"chains": 512, "steps": 300}
"""Settings of the runs in the fast suite."""


def check_law(method, step, posterior=None, anchor=None, **settings):
    bound = method.prepare(posterior or linear(), anchor).kernel
    z = law_z(bound, exact_law(bound, step), **settings)
    assert max(z.values()) < 4.6, z


@pytest.mark.parametrize(
    ("gradient", "subsample", "dynamics"),
    [
        ("simple", "uniform", "langevin"),
        ("control-variate", "curvature-weights", "langevin"),
        ("control-variate", "curvature-weights", "trajectories"),
        ("simple", "without-replacement", "langevin"),
    ],
)
def test_a_short_run_has_the_law_of_the_lyapunov_solution(dynamics, gradient, subsample):
    parts = {"gradient": GRADIENTS[gradient], "subsample": SUBSAMPLES[subsample]}
    check_law(*composed(dynamics, **parts, batch_size=4), **SHORT)


def test_a_short_run_with_all_rows_has_the_law_of_the_lyapunov_solution():
    check_law(*composed("langevin", gradient=Full(), subsample=AllRows()), **SHORT)


@pytest.mark.slow
@pytest.mark.parametrize("dynamics", AFFINE)
@pytest.mark.parametrize(
    ("gradient", "subsample"),
    [
        ("simple", "uniform"),
        ("control-variate", "curvature-weights"),
        ("simple", "curvature-weights"),
        ("control-variate", "uniform"),
    ],
)
def test_stationary_law_is_the_lyapunov_solution(dynamics, gradient, subsample):
    parts = {"gradient": GRADIENTS[gradient], "subsample": SUBSAMPLES[subsample]}
    check_law(*composed(dynamics, **parts, batch_size=4))


@pytest.mark.slow
@pytest.mark.parametrize("gradient", GRADIENTS)
@pytest.mark.parametrize("subsample", ["without-replacement", "gradient-weights"])
def test_langevin_law_with_other_subsamples(gradient, subsample):
    parts = {"gradient": GRADIENTS[gradient], "subsample": SUBSAMPLES[subsample]}
    check_law(*composed("langevin", **parts, batch_size=4))


@pytest.mark.slow
@pytest.mark.parametrize("dynamics", IN_ANY_GEOMETRY)
def test_stationary_law_with_exact_gradients(dynamics):
    check_law(*composed(dynamics, gradient=Full(), subsample=AllRows()))


@pytest.mark.slow
@pytest.mark.parametrize("dynamics", IN_ANY_GEOMETRY)
def test_stationary_law_in_dense_coordinates(dynamics):
    check_law(*composed(dynamics, batch_size=4, geometry=Dense([[0.3, 0.1], [0.1, 0.2]])))


@pytest.mark.slow
def test_stationary_law_in_diagonal_coordinates():
    check_law(*composed("underdamped", batch_size=4, geometry=Diagonal([0.5, 0.2])))


def test_control_variate_law_holds_with_an_anchor_away_from_the_mode():
    posterior = linear()
    away = tallmc.anchor.find_anchor(posterior, at={"beta": np.array([0.5, 2.5])})
    method, step = composed("langevin", gradient=ControlVariate(), batch_size=4)
    check_law(method, step, posterior, away, **SHORT)


@pytest.mark.parametrize("dynamics", ["leimkuhler-matthews", "splitting"])
@pytest.mark.parametrize("geometry", [Identity(), Dense()], ids=["identity", "dense"])
def test_second_order_positions_have_no_bias_on_a_gaussian(dynamics, geometry):
    method, step = composed(dynamics, gradient=Full(), subsample=AllRows(), geometry=geometry)
    law = exact_law(method.prepare(linear()).kernel, step)
    np.testing.assert_allclose(law.covariance, exact_posterior(linear())[1], rtol=1e-12, atol=1e-14)


def test_positions_of_the_geometric_langevin_algorithm_have_the_variance_of_its_docstring():
    """1/(λ(1 − ε²λ/16)) in each direction of curvature λ."""
    method, step = composed("geometric-langevin", gradient=Full(), subsample=AllRows())
    law = exact_law(method.prepare(linear()).kernel, step)
    curvatures, directions = np.linalg.eigh(np.linalg.inv(exact_posterior(linear())[1]))
    variances = 1 / (curvatures * (1 - step**2 * curvatures / 16))
    expected = directions * variances @ directions.T
    np.testing.assert_allclose(law.covariance, expected, rtol=1e-10, atol=1e-12)


def test_preferential_weights_bring_the_variance_nearer_to_the_posterior():
    excess = {}
    for name in ("sgld", "sgld_ps", "sgld_cv", "sgld_cv_ps"):
        bound = tallmc.methods.METHODS[name].make(STEP, batch_size=4).prepare(linear()).kernel
        excess[name] = np.trace(exact_law(bound, STEP).covariance)
    exact = np.trace(exact_law(tallmc.methods.ula(STEP).prepare(linear()).kernel, STEP).covariance)
    assert exact < excess["sgld_cv_ps"] < excess["sgld_cv"] < excess["sgld"]
    assert excess["sgld_ps"] < excess["sgld"]


# Named methods that are not made of the parts above.


@pytest.mark.slow
def test_stationary_law_of_cp_sghmc_is_the_lyapunov_solution():
    """Strata are clusters of rows; the noise is Σ_h (N_h²/n_h) C_h."""
    step, settings = 0.2, {"batch_size": 4, "friction": 2.0}
    bound = tallmc.methods.cp_sghmc(step, strata=3, **settings).prepare(linear()).kernel
    law = exact_law(bound, step)
    z = law_z(bound, law)
    assert max(z.values()) < 4.6, z
    # The law is not that of uniform draws.
    uniform = exact_law(tallmc.methods.sghmc(step, **settings).prepare(linear()).kernel, step)
    assert max(law_z(bound, uniform).values()) > 10


CYCLE, KEPT = 8, 3


def test_cyclical_sgld_has_the_law_of_its_periodic_recursion_at_every_step_that_gives_draws():
    """S' = M_t S M_tᵀ + ε_t I + (ε_t²/4) Cov(g | θ), M_t = I − (ε_t/2) H, over one cycle."""
    largest, posterior = 0.3, linear()
    steps = largest / 2 * (1 + np.cos(np.pi * np.arange(CYCLE) / CYCLE))
    method = tallmc.methods.cyclical_sgld(largest, batch_size=4, cycle=CYCLE, sampling=KEPT / CYCLE)
    bound = method.prepare(posterior).kernel
    mean, covariance = exact_posterior(posterior)
    noise = gradient_covariance(bound)
    contractions = [np.eye(2) - step / 2 * np.linalg.inv(covariance) for step in steps]

    def through_cycle(S):
        """The covariance after each step of a cycle that begins with covariance S."""
        after = []
        for step, M in zip(steps, contractions, strict=True):
            S = M @ S @ M.T + step * np.eye(2) + step**2 / 4 * noise(S)
            after.append(S)
        return after

    laws = np.stack(through_cycle(fixed_point(lambda S: through_cycle(S)[-1], 2)))
    chains, cycles = 512, 150
    start = jnp.broadcast_to(jnp.asarray(mean), (chains, 2))
    draws = cycles * KEPT
    run = Run(bound, chain_keys(0, chains), start, burn_in=25 * CYCLE, thin=1, n_draws=draws)
    run.run_to(draws)
    centred = run.positions().reshape(chains, cycles, KEPT, 2) - mean
    assert largest_z(centred.mean(1), np.zeros((KEPT, 2))) < 4.6
    covariances = np.einsum("ctki,ctkj->ckij", centred, centred) / cycles
    assert largest_z(covariances, laws[-KEPT:]) < 4.6
    assert largest_z(covariances, laws[-KEPT - 1 : -1]) > 10  # draws taken a step too early
    within = np.einsum("ctki,ctkj->ckij", centred[:, :, 1:], centred[:, :, :-1]) / cycles
    assert largest_z(within, np.stack(contractions[1 - KEPT :]) @ laws[-KEPT:-1]) < 4.6
    across = np.einsum("cti,ctj->cij", centred[:, 1:, 0], centred[:, :-1, -1]) / (cycles - 1)
    to_next = np.linalg.multi_dot(contractions[CYCLE - KEPT :: -1])
    assert largest_z(across, to_next @ laws[-1]) < 4.6


def one_dimensional():
    """Six rows that differ enough for the choice of rows to matter."""
    x = np.array([0.7, 1.4, 1.0, -0.9, -1.2, 1.1])
    noise = np.array([0.5, -0.4, 0.3, 0.6, -0.2, -0.6])
    return tallmc.models.linear_regression(
        x[:, None], 0.8 * x + noise, prior_variance=4.0, noise_variance=0.5
    )


def ewsg_law(posterior, step: float, size: int, length: int, points: int = 121) -> Law:
    """The law of the overdamped EWSG of li-2021 (appendix E) in one dimension, by quadrature.

    Given θ, the index chain begins at a fresh batch S, proposes fresh batches and accepts them with
    probability min(1, exp(‖aG_j‖²/2 − ‖aG_i‖²/2)), a = √ε/2. The law of its last batch is found by
    enumeration of all batches. The move is then a mixture of Gaussians N(θ − (ε/2) G_S(θ), ε), and
    its density on a grid is the transition matrix of a chain with finitely many states.
    """
    x, y = np.asarray(posterior.data.x)[:, 0], np.asarray(posterior.data.y)
    mean, covariance = exact_posterior(posterior)
    grid = mean[0] + np.sqrt(covariance[0, 0]) * np.linspace(-10, 10, points)
    variance = float(posterior.model.likelihood.noise_variance)
    by_row = x * (np.outer(grid, x) - y) / variance
    batches = list(itertools.product(range(len(x)), repeat=size))
    prior = grid / float(posterior.model.prior.variance)
    G = prior[:, None] + len(x) / size * by_row[:, batches].sum(axis=2)
    weight = step / 8 * G**2

    proposed = 1 / len(batches)
    accept = np.minimum(1, np.exp(weight[:, None, :] - weight[:, :, None]))
    move = proposed * accept
    move += (1 - move.sum(axis=2))[:, :, None] * np.eye(len(batches))
    p = np.full((points, len(batches)), proposed)
    for _ in range(length):
        p = np.einsum("ti,tij->tj", p, move)

    transition = np.zeros((points, points))
    for probability, gradient in zip(p.T, G.T, strict=True):
        squares = (grid - (grid - step / 2 * gradient)[:, None]) ** 2
        transition += probability[:, None] * np.exp(-squares / (2 * step))
    transition /= transition.sum(axis=1, keepdims=True)
    equations = transition.T - np.eye(points)
    equations[0] = 1.0
    law = np.linalg.solve(equations, np.eye(points)[0])
    centre = law @ grid
    centred = grid - centre
    second = lambda values: np.array([[law @ (centred * values)]])
    return Law(np.array([centre]), second(centred), second(transition @ centred))


EWSG_STEP = 0.04


@pytest.mark.parametrize(("size", "length"), slow_after(1, [(1, 1), (2, 2)]))
def test_ewsg_overdamped_has_the_law_of_the_papers_formulas(size, length):
    posterior = one_dimensional()
    bound = (
        tallmc.methods.ewsg_overdamped(EWSG_STEP, batch_size=size, length=length)
        .prepare(posterior)
        .kernel
    )
    settings = {"chains": 512}
    z = law_z(bound, ewsg_law(posterior, EWSG_STEP, size, length), **settings)
    assert max(z.values()) < 4.6, z
    # The law is not that of uniform draws.
    assert max(law_z(bound, ewsg_law(posterior, EWSG_STEP, size, 0), **settings).values()) > 10


def test_ewsg_law_without_an_index_chain_is_the_lyapunov_solution():
    """This checks the quadrature: without Metropolis steps the method is SGLD."""
    posterior = one_dimensional()
    found = ewsg_law(posterior, EWSG_STEP, size=2, length=0)
    bound = tallmc.methods.sgld(EWSG_STEP, batch_size=2).prepare(posterior).kernel
    for value, expected in zip(found, exact_law(bound, EWSG_STEP), strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-9)
    fewer, more = (ewsg_law(posterior, EWSG_STEP, 1, 1, points) for points in (121, 241))
    np.testing.assert_allclose(fewer.covariance, more.covariance, rtol=1e-6)


def test_trajectories_without_friction_gain_energy_from_gradient_noise():
    """The excess grows with the length; friction bounds it. So the friction must be given."""
    excess = {}
    for length, friction in ((5, 0.0), (20, 0.0), (20, 4.0)):
        parts = {"dynamics": Hamiltonian(length, friction), "step_size": 0.1}
        noisy = tallmc.Method(**parts, batch_size=2).prepare(linear()).kernel
        exact = tallmc.Method(**parts, gradient=Full(), subsample=AllRows()).prepare(linear())
        variances = [np.trace(exact_law(of, 0.1).covariance) for of in (noisy, exact.kernel)]
        excess[length, friction] = variances[0] / variances[1] - 1
    assert excess[20, 0.0] > 3 * excess[5, 0.0] > 0, excess
    assert excess[20, 4.0] < excess[20, 0.0] / 2, excess
    with pytest.raises(TypeError, match="friction"):
        Hamiltonian(length=5)


@pytest.mark.slow
def test_default_friction_of_sgrhmc_mixes_and_is_right_where_the_metric_is_large():
    """A metric as on 20,000 rows, where the friction of Table 1 is of order 1/20,000."""
    rng, precision = np.random.default_rng(0), 1000
    x = rng.normal(size=(20, 2)) * [1.0, 0.5]
    posterior = tallmc.models.linear_regression(
        x, x.sum(1), prior_variance=4.0, noise_variance=1 / precision
    )
    step, parts = 0.2, {"gradient": Full(), "subsample": AllRows()}
    method = tallmc.Method(dynamics=RiemannianHamiltonian(), step_size=step, **parts)
    mean, truth = exact_posterior(posterior)
    law = exact_law(method.prepare(posterior).kernel, step / 20)
    np.testing.assert_allclose(law.covariance, truth, rtol=0.01, atol=1e-8)
    settings = {"chains": 4, "n_draws": 1000, "thin": 10, "start": mean}
    draws = tallmc.sample(posterior, method, **settings)
    assert tallmc.diagnose.ess(draws.positions).min() > 400
    # With the friction of Table 1, Euler steps add more energy than friction removes.
    table_1 = dataclasses.replace(method, dynamics=RiemannianHamiltonian(friction=1.0))
    with pytest.warns(tallmc.SamplingWarning):
        undamped = tallmc.sample(posterior, table_1, **settings)
    assert not undamped.ok.any()


def test_sghmc_cv_trajectories_has_five_leapfrog_steps():
    """As in nemeth-2021, section 6."""
    method = tallmc.methods.sghmc_cv_trajectories(0.3, batch_size=4, friction=1.0)
    assert method.dynamics == Hamiltonian(length=5, friction=1.0)
    bound = method.prepare(linear()).kernel
    assert error_against_the_papers(bound, 0.3) < 1e-12


@pytest.mark.slow
def test_sghmc_cv_trajectories_has_the_law_of_its_parts():
    check_law(tallmc.methods.sghmc_cv_trajectories(0.3, batch_size=4, friction=1.0), 0.3)
