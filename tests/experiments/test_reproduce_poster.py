"""The experiments of the poster and the talk: closed forms that a wrong version does not meet."""

import numpy as np

from experiments.data import Split
from experiments.poster import covertype, fig2
from experiments.poster.gaussian_mean import N_ROWS, gaussian_mean, printed_target
from experiments.shapes import ellipses, share_inside
from experiments.talk import fig1
from tallmc import models
from tallmc._anchor import find_anchor


def test_the_printed_gradient_is_that_of_one_row():
    problem = gaussian_mean()
    at = problem.mean + 1.0
    right, printed = problem.target.gradient(at), printed_target(problem).gradient(at)
    prior = at / 100
    np.testing.assert_allclose(N_ROWS * (np.asarray(printed) - prior), right - prior, rtol=1e-9)


def test_the_printed_gradient_makes_a_nearly_free_random_walk():
    problem = gaussian_mean()
    step = 0.2 * problem.smallest_variance
    steps = fig2.PASSES * fig2.STEPS_PER_PASS
    free = 2 * step * (steps + 1) / 2
    assert 0.5 * free < fig2.free_walk_variance(problem, step) < free


def test_ellipses_hold_their_shares():
    rng, covariance = np.random.default_rng(0), np.array([[2.0, 0.6], [0.6, 1.0]])
    draws = rng.multivariate_normal([1.0, 2.0], covariance, 100_000)
    for share in (0.5, 0.95):
        found = share_inside(draws, np.array([1.0, 2.0]), covariance, share)
        assert abs(found - share) < 4.6 * np.sqrt(share * (1 - share) / 100_000)
    ring = ellipses("a", "b", np.array([1.0, 2.0]), covariance, shares=(0.5,))
    points = np.stack([ring.x, ring.y], axis=1)[:-1] - np.array([1.0, 2.0])
    squares = np.sum(points * np.linalg.solve(covariance, points.T).T, axis=1)
    np.testing.assert_allclose(squares, -2 * np.log(0.5), rtol=1e-12)


def test_the_variance_of_the_talk_is_checked_against_its_closed_form():
    draws = np.random.default_rng(0).normal(size=(4, 4000))
    assert fig1._variance_claim("right", draws, 1.0).holds
    assert not fig1._variance_claim("without gradient noise", draws, 1.2).holds


def test_the_printed_gradient_with_control_variates_vanishes_at_the_mode():
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(200, 3)), rng.integers(0, 2, 200)
    target = models.logistic_regression(x, y, covertype.PRIOR_VARIANCE)
    mode = np.asarray(find_anchor(target).position)
    at = mode + 0.5
    printed = covertype.printed_target(Split(x, y, x, y), mode)
    from_rows = np.asarray(target.gradient(at)) - at / covertype.PRIOR_VARIANCE
    expected = from_rows / 200 + (at - mode) / covertype.PRIOR_VARIANCE
    np.testing.assert_allclose(printed.gradient(at), expected, rtol=1e-4)
    np.testing.assert_allclose(printed.gradient(mode), 0, atol=0.01)
