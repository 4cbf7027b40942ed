"""Long runs against the exact stationary law: mean, covariance, and the lag-1 covariance that sees the step size."""

import numpy as np
import pytest

import tallmc
from problems import linear
from stationary import exact_law, law_z
from tallmc.gradient import ControlVariate, Simple
from tallmc.subsample import Preferential, Uniform

STEP = 0.15
WITH_A_LAW = {
    "ula": tallmc.ula(STEP),
    "sgld": tallmc.sgld(STEP, size=4),
    "sgld-without-replacement": tallmc.sgld(STEP, size=4, replace=False),
    "sgld_cv": tallmc.sgld_cv(STEP, size=4),
    "sgld_cv-without-replacement": tallmc.sgld_cv(STEP, size=4, replace=False),
    "sgld_ps": tallmc.sgld_ps(STEP, size=4),
    "sgld_cv_ps": tallmc.sgld_cv_ps(STEP, size=4),
    "simple-lipschitz": tallmc.Method(gradient=Simple(), subsample=Preferential("lipschitz"), size=4, step_size=STEP),
}


@pytest.mark.parametrize("name", WITH_A_LAW)
def test_stationary_law_is_the_lyapunov_solution(name):
    kernel = WITH_A_LAW[name].prepare(linear()).kernel
    z = law_z(kernel, exact_law(kernel, STEP))
    assert max(z.values()) < 4.6, z


def test_control_variate_law_holds_with_an_anchor_away_from_the_mode():
    posterior = linear()
    away = tallmc.laplace(posterior, at={"beta": np.array([0.5, 2.5])})
    method = tallmc.Method(gradient=ControlVariate(), subsample=Uniform(), size=4, step_size=STEP)
    kernel = method.prepare(posterior, away).kernel
    z = law_z(kernel, exact_law(kernel, STEP))
    assert max(z.values()) < 4.6, z


def test_preferential_weights_bring_the_variance_nearer_to_the_posterior():
    excess = {}
    for name in ("sgld", "sgld_ps", "sgld_cv", "sgld_cv_ps", "ula"):
        kernel = WITH_A_LAW[name].prepare(linear()).kernel
        excess[name] = np.trace(exact_law(kernel, STEP).covariance)
    assert excess["ula"] < excess["sgld_cv_ps"] < excess["sgld_cv"] < excess["sgld"]
    assert excess["sgld_ps"] < excess["sgld"]
