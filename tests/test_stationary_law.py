"""Long runs against the exact stationary law: mean, covariance, and the lag-1 covariance that sees the step size."""

import numpy as np
import pytest

import tallmc
from problems import exact_posterior, linear, slow_after
from stationary import exact_law, law_z
from tallmc.dynamics import (
    Hamiltonian,
    Langevin,
    LeimkuhlerMatthews,
    RiemannianHamiltonian,
    RiemannianLangevin,
    Splitting,
    Underdamped,
)
from tallmc.geometry import Dense, Diagonal, Identity
from tallmc.gradient import ControlVariate, Full, Simple
from tallmc.subsample import AllRows, Preferential, Uniform

STEP = 0.15
# Each with a step at which it is visibly biased, on a posterior with curvatures from 3 to 19.
AFFINE = {
    "langevin": (Langevin(), 0.15),
    "leimkuhler-matthews": (LeimkuhlerMatthews(), 0.15),
    "underdamped": (Underdamped(friction=6.0), 0.2),
    "trajectories": (Hamiltonian(length=4, friction=1.0), 0.3),
    "splitting": (Splitting(friction=3.0), 0.4),
}
METRIC = {
    "riemannian-langevin": (RiemannianLangevin(), 1.0),
    "riemannian-hamiltonian": (RiemannianHamiltonian(friction=20.0), 0.4),
}
GRADIENTS = {"simple": Simple(), "control-variate": ControlVariate()}
SUBSAMPLES = {
    "uniform": Uniform(),
    "without-replacement": Uniform(replace=False),
    "gradient-weights": Preferential("gradient"),
    "curvature-weights": Preferential("curvature"),
}


def composed(dynamics, **parts):
    choice, step = (AFFINE | METRIC)[dynamics]
    return tallmc.Method(dynamics=choice, step_size=step, **parts), step


def check_law(method, step, posterior=None, anchor=None):
    kernel = method.prepare(posterior or linear(), anchor).kernel
    z = law_z(kernel, exact_law(kernel, step))
    assert max(z.values()) < 4.6, z


@pytest.mark.parametrize("dynamics", AFFINE | METRIC)
@pytest.mark.parametrize(
    ("gradient", "subsample"),
    slow_after(
        2,
        [
            ("simple", "uniform"),
            ("control-variate", "curvature-weights"),
            ("simple", "curvature-weights"),
            ("control-variate", "uniform"),
        ],
    ),
)
def test_stationary_law_is_the_lyapunov_solution(dynamics, gradient, subsample):
    check_law(*composed(dynamics, gradient=GRADIENTS[gradient], subsample=SUBSAMPLES[subsample], size=4))


@pytest.mark.parametrize("gradient", GRADIENTS)
@pytest.mark.parametrize("subsample", ["without-replacement", "gradient-weights"])
def test_langevin_law_with_other_subsamples(gradient, subsample):
    check_law(*composed("langevin", gradient=GRADIENTS[gradient], subsample=SUBSAMPLES[subsample], size=4))


@pytest.mark.parametrize("dynamics", AFFINE)
def test_stationary_law_with_exact_gradients(dynamics):
    check_law(*composed(dynamics, gradient=Full(), subsample=AllRows()))


@pytest.mark.parametrize("dynamics", AFFINE)
def test_stationary_law_in_dense_coordinates(dynamics):
    check_law(*composed(dynamics, size=4, geometry=Dense([[0.3, 0.1], [0.1, 0.2]])))


def test_stationary_law_in_diagonal_coordinates():
    check_law(*composed("underdamped", size=4, geometry=Diagonal([0.5, 0.2])))


def test_control_variate_law_holds_with_an_anchor_away_from_the_mode():
    posterior = linear()
    away = tallmc.laplace(posterior, at={"beta": np.array([0.5, 2.5])})
    check_law(*composed("langevin", gradient=ControlVariate(), size=4), posterior, away)


@pytest.mark.parametrize("dynamics", ["leimkuhler-matthews", "splitting"])
@pytest.mark.parametrize("geometry", [Identity(), Dense()], ids=["identity", "dense"])
def test_second_order_positions_have_no_bias_on_a_gaussian(dynamics, geometry):
    method, step = composed(dynamics, gradient=Full(), subsample=AllRows(), geometry=geometry)
    law = exact_law(method.prepare(linear()).kernel, step)
    np.testing.assert_allclose(law.covariance, exact_posterior(linear())[1], rtol=1e-12, atol=1e-14)


def test_preferential_weights_bring_the_variance_nearer_to_the_posterior():
    excess = {}
    for name in ("sgld", "sgld_ps", "sgld_cv", "sgld_cv_ps"):
        kernel = tallmc.METHODS[name].make(STEP, size=4).prepare(linear()).kernel
        excess[name] = np.trace(exact_law(kernel, STEP).covariance)
    exact = np.trace(exact_law(tallmc.ula(STEP).prepare(linear()).kernel, STEP).covariance)
    assert exact < excess["sgld_cv_ps"] < excess["sgld_cv"] < excess["sgld"]
    assert excess["sgld_ps"] < excess["sgld"]
