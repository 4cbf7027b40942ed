"""Priors are minus the log densities of SciPy, up to a constant, and know if they are convex."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats

from kept_programs import run_once
from regressions import stein_z
from tallmc.models.families.ordinal import CutPointPrior
from tallmc.models.priors import (
    AbstractPrior,
    JoinedPrior,
    LaplacePrior,
    LogGammaPrior,
    LogHalfNormalPrior,
    LogHalfStudentTPrior,
    NormalPrior,
    PriorOfEntries,
    ScaleMixturePrior,
    StudentTPrior,
    TemperedPrior,
)

SCALES, MEANS, DEGREES = np.array([0.5, 1.0, 4.0]), np.array([0.3, -1.0, 2.0]), 4.0


def of_logs(law):
    """The log density of s = log σ: that of σ and the Jacobian."""
    return lambda s: np.sum(law.logpdf(np.exp(s)) + s)


def dirichlet_of_cut_points(s):
    """Uniform class probabilities: the log Jacobian of the map from s to them, by differences."""

    def chances(free):
        cuts = np.cumsum(np.append(free[0], np.exp(free[1:])))
        return np.diff(scipy.special.expit(cuts), prepend=0.0)

    step = 1e-6
    columns = [
        (chances(s + step * unit) - chances(s - step * unit)) / (2 * step)
        for unit in np.eye(len(s))
    ]
    return np.linalg.slogdet(np.array(columns))[1]


PRIORS = {
    "normal": (
        NormalPrior(jnp.asarray(SCALES**2), jnp.asarray(MEANS)),
        lambda v: np.sum(scipy.stats.norm(MEANS, SCALES).logpdf(v)),
        True,
    ),
    "normal around zero": (
        NormalPrior(jnp.asarray(2.0)),
        lambda v: np.sum(scipy.stats.norm(0, np.sqrt(2.0)).logpdf(v)),
        True,
    ),
    "student t": (
        StudentTPrior(jnp.asarray(SCALES), jnp.asarray(DEGREES), jnp.asarray(MEANS)),
        lambda v: np.sum(scipy.stats.t(DEGREES, MEANS, SCALES).logpdf(v)),
        False,
    ),
    "laplace": (
        LaplacePrior(jnp.asarray(SCALES), jnp.asarray(MEANS)),
        lambda v: np.sum(scipy.stats.laplace(MEANS, SCALES).logpdf(v)),
        True,
    ),
    "log half t": (
        LogHalfStudentTPrior(jnp.asarray(SCALES), jnp.asarray(DEGREES)),
        of_logs(scipy.stats.t(DEGREES, 0, SCALES)),
        True,
    ),
    "log half normal": (
        LogHalfNormalPrior(jnp.asarray(SCALES)),
        of_logs(scipy.stats.norm(0, SCALES)),
        True,
    ),
    "log gamma": (
        LogGammaPrior(jnp.asarray(2.0), jnp.asarray(0.1)),
        of_logs(scipy.stats.gamma(2.0, scale=10.0)),
        True,
    ),
    "scale mixture": (
        ScaleMixturePrior(jnp.log(jnp.asarray(SCALES)), jnp.log(jnp.asarray([0.2, 0.5, 0.3]))),
        lambda v: np.log(
            [0.2, 0.5, 0.3] @ np.prod(scipy.stats.norm(0, SCALES[:, None]).pdf(v), axis=1)
        ),
        False,
    ),
    "cut points": (CutPointPrior(), dirichlet_of_cut_points, False),
}


def joined():
    parts = [PRIORS[name] for name in ("normal", "log gamma", "laplace")]
    prior = JoinedPrior(tuple(part for part, _, _ in parts), (3, 1, 3))

    def log_density(v):
        return parts[0][1](v[:3]) + parts[1][1](v[3:4]) + parts[2][1](v[4:])

    return prior, log_density, True


PRIORS["joined"] = joined()
POINTS = np.random.default_rng(0).normal(size=(6, 7))


def points_of(name):
    return POINTS if name == "joined" else POINTS[:, :3]


@pytest.mark.parametrize("name", PRIORS)
def test_potentials_are_minus_the_log_densities_of_scipy(name):
    prior, log_density, _ = PRIORS[name]
    points = points_of(name)
    potentials = run_once(jax.vmap(prior.potential))(jnp.asarray(points))
    constants = np.asarray(potentials) + [log_density(at) for at in points]
    tolerance = 1e-8 if name == "cut points" else 1e-12  # differences of 1e-6 in its Jacobian
    np.testing.assert_allclose(constants, constants[0], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", PRIORS)
def test_only_convex_potentials_are_called_log_concave(name):
    prior, _, log_concave = PRIORS[name]
    assert prior.log_concave == log_concave
    hessians = run_once(jax.vmap(jax.hessian(prior.potential)))(jnp.asarray(4 * points_of(name)))
    least = np.linalg.eigvalsh(np.asarray(hessians)).min()
    assert (least >= -1e-12) == log_concave


def test_a_joined_prior_is_log_concave_only_if_its_parts_are():
    parts = PRIORS["normal"][0], PRIORS["student t"][0]
    assert not JoinedPrior(parts, (3, 3)).log_concave


@pytest.mark.parametrize("name", PRIORS)
def test_potentials_and_gradients_are_finite_far_away_in_single_precision(name):
    prior = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), PRIORS[name][0])
    value_and_gradient = run_once(jax.value_and_grad(prior.potential))
    for far in (-40.0, 40.0):
        value, gradient = value_and_gradient(np.full(points_of(name).shape[1], far, np.float32))
        if name != "cut points" or far < 0:  # e^40 is a distance of 10^17 between cut points
            assert np.isfinite(value) and np.isfinite(gradient).all()


DRAWS = 20_000


@pytest.mark.parametrize("name", PRIORS)
def test_draws_have_the_law_of_the_potential(name):
    prior = PRIORS[name][0]
    drawn = prior.sample(np.random.default_rng(1), DRAWS, points_of(name).shape[1])
    gradient = run_once(jax.vmap(jax.grad(prior.potential)))
    assert np.abs(stein_z(drawn, gradient)).max() < 4.6
    assert np.abs(stein_z(1.1 * drawn, gradient)).max() > 4.6  # the test sees a wrong scale


def test_entries_without_a_prior_are_drawn_as_nan_and_an_unknown_law_is_told():
    normal, random = PRIORS["normal around zero"][0], np.random.default_rng(0)
    drawn = PriorOfEntries((normal,), ((0, 2),)).sample(random, 5, 3)
    assert np.isfinite(drawn[:, [0, 2]]).all() and np.isnan(drawn[:, 1]).all()
    tempered = TemperedPrior(normal, 0.5)
    assert tempered.sample(random, 5, 3) is None
    assert JoinedPrior((normal, tempered), (1, 2)).sample(random, 5, 3) is None


def test_every_prior_is_tested_here():
    known = {type(prior) for prior, _, _ in PRIORS.values()}
    everything = {p for p in AbstractPrior.__subclasses__() if p.__module__.startswith("tallmc.")}
    # test_consensus.py has those of shards.
    assert {prior.__name__ for prior in everything - known} <= {
        "AbstractPriorOfParts",
        "TemperedPrior",
    }
