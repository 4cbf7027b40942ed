# mypy: disable-error-code="arg-type"
"""Parts with invalid settings and invalid compositions raise an error that gives the reason."""

import jax.numpy as jnp
import numpy as np
import pytest

import table_1
import tallmc
from problems import logistic
from tallmc import InvalidInput, Method, Posterior
from tallmc.contrib.recipe import Recipe
from tallmc.correction import NoiseCorrection
from tallmc.dynamics import (
    BAOAB,
    SGHMC,
    Hamiltonian,
    MatrixFriction,
    NoseHoover,
    PreconditionedLangevin,
    RiemannianLangevin,
)
from tallmc.geometry import Dense, Diagonal
from tallmc.gradient import SAGA, SVRG, ControlVariate, Full
from tallmc.schedule import Cyclical
from tallmc.subsample import AllRows, BoundedNoise, ExponentiallyWeighted, Optimal

GAUSSIAN = lambda p, row: -0.5 * (p - row) ** 2
FLAT = lambda p: 0.0 * p

CASES = {
    # dynamics
    "friction": (lambda: SGHMC(0.0), "friction must be a finite number and > 0"),
    "negative friction": (
        lambda: Hamiltonian(3, -1.0),
        "friction must be a finite number and >= 0",
    ),
    "friction matrix": (
        lambda: Method(dynamics=MatrixFriction(-np.eye(2)), batch_size=2, step_size=0.1).prepare(
            logistic()
        ),
        "friction must be positive definite",
    ),
    "friction of another shape": (
        lambda: Method(dynamics=MatrixFriction(np.eye(3)), batch_size=2, step_size=0.1).prepare(
            logistic()
        ),
        "friction must be a number, 2 numbers or a symmetric 2×2 matrix",
    ),
    "friction of words": (lambda: MatrixFriction("high"), "friction must be real numbers"),
    "trajectory": (lambda: Hamiltonian(0, 1.0), "length must be an int of at least 1"),
    "decay": (
        lambda: PreconditionedLangevin(decay=1.5),
        "decay must be a finite number and >= 0 and <= 1",
    ),
    "gamma term": (lambda: PreconditionedLangevin(gamma=1), "gamma must be True or False"),
    "metric": (lambda: RiemannianLangevin("euclid"), 'metric must be "fisher" or a function'),
    "metric matrix": (
        lambda: tallmc.methods.sgrld(0.1, 2, metric=lambda params: -jnp.eye(2)).prepare(logistic()),
        "metric must return a symmetric positive definite 2×2",
    ),
    "fisher of no glm": (
        lambda: tallmc.methods.sgrld(0.1, 2).prepare(Posterior(GAUSSIAN, FLAT, np.ones(3), 0.0)),
        "metric must be a function of the parameters unless the model is a generalised linear",
    ),
    "diffusion": (
        lambda: Method(
            dynamics=Recipe(lambda z: -jnp.eye(2), lambda z: jnp.zeros((2, 2))),
            batch_size=2,
            step_size=0.1,
        ).prepare(logistic()),
        "diffusion must be symmetric and positive semi-definite",
    ),
    "curl": (
        lambda: Method(
            dynamics=Recipe(lambda z: jnp.eye(2), lambda z: jnp.ones((2, 2))),
            batch_size=2,
            step_size=0.1,
        ).prepare(logistic()),
        "curl must be skew-symmetric",
    ),
    "curl away from the start": (
        lambda: Method(
            dynamics=Recipe(lambda z: jnp.eye(2), lambda z: z[0] * jnp.ones((2, 2))),
            batch_size=2,
            step_size=0.1,
        ).prepare(logistic()),
        "curl must be skew-symmetric",
    ),
    "recipe shape": (
        lambda: Method(
            dynamics=Recipe(lambda z: jnp.eye(3), lambda z: jnp.zeros((2, 2))),
            batch_size=2,
            step_size=0.1,
        ).prepare(logistic()),
        "diffusion must return a finite 2×2 matrix",
    ),
    "auxiliary start": (
        lambda: Method(dynamics=table_1.sghmc_recipe(2, 1.0), batch_size=2, step_size=0.1).prepare(
            logistic(dim=3)
        ),
        "diffusion must return a finite 5×5 matrix",
    ),
    # geometry
    "scale": (
        lambda: Method(batch_size=2, step_size=0.1, geometry=Diagonal([1.0, -1.0])).prepare(
            logistic()
        ),
        "scale must be positive and finite, one per parameter",
    ),
    "dense": (
        lambda: Method(
            batch_size=2, step_size=0.1, geometry=Dense([[1.0, 2.0], [2.0, 1.0]])
        ).prepare(logistic()),
        "covariance must be a symmetric positive definite 2×2",
    ),
    "geometry of a metric": (
        lambda: Method(
            dynamics=RiemannianLangevin(), batch_size=2, step_size=0.1, geometry=Dense()
        ),
        r"geometry must be Identity\(\) with RiemannianLangevin, which has its own metric",
    ),
    "no geometry": (
        lambda: Method(batch_size=2, step_size=0.1, geometry="dense"),
        "geometry must be one of the parts in tallmc.geometry",
    ),
    # estimators
    "every": (lambda: SVRG(0), "every must be an int of at least 1"),
    "memory of all rows": (
        lambda: Method(gradient=SAGA(), subsample=AllRows(), step_size=0.1),
        "gradient must have no memory with AllRows",
    ),
    "adaptive saga": (
        lambda: Method(gradient=SAGA(), batch_size=BoundedNoise(1.0), step_size=0.1),
        r"gradient must be ControlVariate\(order=1\) with an adaptive size: eq. 18 bounds",
    ),
    "adaptive size of order 2": (
        lambda: Method(
            gradient=ControlVariate(order=2), batch_size=BoundedNoise(1.0), step_size=0.1
        ),
        r"gradient must be ControlVariate\(order=1\) with an adaptive size: eq. 18 bounds",
    ),
    # exponential weights
    "guess": (
        lambda: ExponentiallyWeighted(guess="best"),
        "guess must be one of at_rest, to_zero, zero, one",
    ),
    "carry": (lambda: ExponentiallyWeighted(0, carry=True), "length must be an int of at least 1"),
    "base": (
        lambda: Method(
            subsample=ExponentiallyWeighted(base=Optimal()), batch_size=2, step_size=0.1
        ).prepare(logistic()),
        "base must draw a fixed number of rows, chosen independently of the state",
    ),
    "transition": (
        lambda: Method(
            dynamics=NoseHoover(1.0), subsample=ExponentiallyWeighted(), batch_size=2, step_size=0.1
        ),
        "subsample must not be exponentially weighted with NoseHoover",
    ),
    # noise correction
    "correction shape": (lambda: NoiseCorrection("full"), 'shape must be "diagonal" or "dense"'),
    "correction way": (
        lambda: NoiseCorrection(through="step"),
        'through must be "noise" or "friction"',
    ),
    "correction of langevin": (
        lambda: Method(batch_size=2, step_size=0.1, correction=NoiseCorrection(through="friction")),
        'correction must go through "noise" with Langevin',
    ),
    "friction of a splitting": (
        lambda: Method(
            dynamics=BAOAB(1.0),
            batch_size=2,
            step_size=0.1,
            correction=NoiseCorrection(through="friction"),
        ),
        'correction must go through "noise" with BAOAB',
    ),
    "correction of nothing": (
        lambda: Method(
            gradient=Full(), subsample=AllRows(), step_size=0.1, correction=NoiseCorrection()
        ),
        "correction must be left out with AllRows",
    ),
    "correction of one row": (
        lambda: Method(batch_size=1, step_size=0.1, correction=NoiseCorrection()),
        "size must be at least 2 with a correction estimated from the spread of the batch",
    ),
    "correction without friction": (
        lambda: Method(
            dynamics=Hamiltonian(3, 0.0), batch_size=4, step_size=0.1, correction=NoiseCorrection()
        ),
        "correction must be left out with Hamiltonian, which injects no noise",
    ),
    "groups of distinct rows": (
        lambda: Method(
            subsample=tallmc.subsample.Uniform(replace=False),
            batch_size=4,
            step_size=0.1,
            correction=NoiseCorrection(groups=2),
        ),
        "subsample must draw rows independently with a correction from groups",
    ),
    "groups of different sizes": (
        lambda: Method(batch_size=5, step_size=0.1, correction=NoiseCorrection(groups=2)),
        "size must be a multiple of the number of groups, 2",
    ),
    "calibrated groups": (
        lambda: NoiseCorrection(groups=2, calibrate_every=5),
        "groups must be left out with calibrate_every",
    ),
    "correction of an adaptive size": (
        lambda: Method(
            gradient=ControlVariate(),
            batch_size=BoundedNoise(1.0),
            step_size=0.1,
            correction=NoiseCorrection(),
        ),
        "size must be fixed with a noise correction",
    ),
    "calibrated control variate": (
        lambda: Method(
            gradient=ControlVariate(),
            batch_size=2,
            step_size=0.1,
            correction=NoiseCorrection(calibrate_every=5),
        ),
        r"gradient must be Simple\(\) with a calibrated correction",
    ),
    "correction without spread": (
        lambda: Method(
            dynamics=SGHMC(1.0),
            subsample=ExponentiallyWeighted(),
            batch_size=2,
            step_size=0.1,
            correction=NoiseCorrection(),
        ),
        "subsample must know the spread of its batches",
    ),
    # schedules
    "cycle": (lambda: Cyclical(0.1, 1), "cycle must be an int of at least 2"),
    "sampling": (
        lambda: Cyclical(0.1, 4, 0.1),
        "sampling must leave at least one step of a cycle of 4",
    ),
    # methods that are not compositions of parts
    "firefly of counts": (
        lambda: tallmc.methods.flymc(0.1).prepare(
            tallmc.models.poisson_regression(np.ones((3, 1)), [0, 1, 2], 1.0)
        ),
        "posterior must be a logistic regression for FlyMC",
    ),
    "firefly share": (
        lambda: tallmc.methods.flymc(0.1, fraction=0.0),
        "fraction must be a finite number and > 0",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_error_says_why(case):
    call, message = CASES[case]
    with pytest.raises(InvalidInput, match=message):
        call()
