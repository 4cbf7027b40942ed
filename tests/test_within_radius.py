"""Control variates within a radius of the anchor: both sides of the border, by enumeration."""

import jax.numpy as jnp
import numpy as np
import pytest

import tallmc
from problems import logistic, logistic_by_autodiff, slow_after
from tallmc.gradient import ControlVariate, Simple
from tallmc.subsample import Preferential, Uniform
from test_unbiased import moments_by_enumeration

RADIUS = 1.5


def kernel_of(posterior, gradient, subsample=None):
    method = tallmc.Method(
        gradient=gradient, subsample=subsample or Uniform(), batch_size=2, step_size=0.1
    )
    return method.prepare(posterior, tallmc.anchor.find_anchor(posterior)).kernel


def at_distance(posterior, distance, direction=(0.6, -0.8)):
    """A position that is this many posterior standard deviations from the mode."""
    anchor = tallmc.anchor.find_anchor(posterior)
    precision, move = np.asarray(anchor.hessian, float), np.asarray(direction)
    return anchor.position + jnp.asarray(distance * move / np.sqrt(move @ precision @ move))


@pytest.mark.parametrize(
    ("model", "order", "weights"),
    slow_after(
        1,
        [
            (logistic, 2, "curvature"),
            (logistic, 1, None),
            (logistic_by_autodiff, 1, None),
            (logistic, 1, "curvature"),
            (logistic, 2, None),
            (logistic_by_autodiff, 2, None),
            (logistic_by_autodiff, 1, "curvature"),
            (logistic_by_autodiff, 2, "curvature"),
        ],
    ),
)
def test_estimate_is_unbiased_on_both_sides_of_the_border_with_the_noise_of_its_side(
    model, order, weights
):
    posterior, subsample = model(), weights and Preferential(weights)
    bound = kernel_of(posterior, ControlVariate(order, RADIUS), subsample)
    sides = {
        RADIUS * (1 - 1e-6): ControlVariate(order),
        RADIUS * (1 + 1e-6): Simple(),
        4 * RADIUS: Simple(),
        0.1 * RADIUS: ControlVariate(order),
    }
    for distance, choice in sides.items():
        position = at_distance(posterior, distance)
        _, mean, covariance = moments_by_enumeration(bound, position)
        exact = np.asarray(posterior.gradient(position))
        np.testing.assert_allclose(mean, exact, atol=1e-11 * np.abs(exact).max())
        side = kernel_of(posterior, choice, subsample)
        _, _, expected = moments_by_enumeration(side, position)
        np.testing.assert_allclose(covariance, expected, atol=1e-11 * np.abs(expected).max())


@pytest.mark.parametrize("order", [1, 2])
def test_the_two_sides_differ_in_their_noise(order):
    """Otherwise the test above could not tell the sides apart."""
    posterior = logistic()
    bound = kernel_of(posterior, ControlVariate(order, RADIUS))
    inside, outside = (
        moments_by_enumeration(bound, at_distance(posterior, RADIUS * scale))[2]
        for scale in (1 - 1e-6, 1 + 1e-6)
    )
    assert np.trace(outside) > 1.2 * np.trace(inside)


@pytest.mark.parametrize("direction", [(1.0, 0.0), (0.0, 1.0), (1.0, 1.0)])
def test_distance_is_in_posterior_standard_deviations_in_every_direction(direction):
    posterior = logistic()
    gradient = kernel_of(posterior, ControlVariate(radius=RADIUS)).composition.gradient
    for sign in (-1, 1):
        inside, outside = (
            at_distance(posterior, sign * RADIUS * scale, direction) for scale in (0.999, 1.001)
        )
        assert gradient.is_near(inside) and not gradient.is_near(outside)


@pytest.mark.slow
def test_an_infinite_radius_is_no_radius():
    posterior, settings = logistic(), {"chains": 2, "n_draws": 50, "burn_in": 5, "seed": 3}
    draws = [
        tallmc.sample(
            posterior,
            tallmc.Method(gradient=gradient, batch_size=3, step_size=0.05),
            **settings,
        )
        for gradient in (ControlVariate(radius=1e12), ControlVariate())
    ]
    np.testing.assert_allclose(draws[0].positions, draws[1].positions, rtol=1e-9)


@pytest.mark.parametrize("radius", [0.0, -1.0, float("nan"), "2"])
def test_radius_must_be_positive(radius):
    with pytest.raises(tallmc.InvalidInput, match="radius"):
        ControlVariate(radius=radius)
