"""Proximal Langevin dynamics (MYULA): a prior with kinks is replaced by its Moreau envelope.

    f₀^λ(θ) = min_y f₀(y) + ‖θ − y‖²/2λ,   ∇f₀^λ(θ) = (θ − prox(θ))/λ,   prox(θ) = argmin
    θ' = θ − (ε/2) CCᵀ[Σ∇f̂_i(θ) + ∇f₀^λ(θ)] + √ε Cη,   η ~ N(0, I)

The envelope is smooth, has the minimisers of f₀, and ∇f₀^λ changes by at most 1/λ per unit. Of a
Laplace prior |θ|/b it is the Huber function: prox moves θ by λ/b towards 0, and the slope is 1/b
beyond λ/b. Durmus, Moulines and Pereyra (2018), eqs. 6 and 10.

With λ = s ε the smoothing vanishes with the step size: the bias stays of order ε. Without the
envelope, a step from within (ε/2)/b of the kink overshoots it. s = 1 keeps the steps stable for
ε < 2/L, with the largest curvature L of the rows.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .._core.arrays import Scalar, Vector
from .._core.errors import InvalidInput, check_number
from ..dynamics.dynamics import DynamicsStep, Evaluate, PositionState
from ..dynamics.langevin import Langevin
from ..methods.method import Method, Size, StepSize
from ..methods.named import sgld, ula
from ..methods.registry import named
from ..models.generalised_linear import AbstractRegression
from ..models.posterior import AbstractPosterior
from ..models.priors import (
    AbstractPrior,
    JoinedPrior,
    LaplacePrior,
    NormalPrior,
    PriorOfEntries,
    TemperedPrior,
)
from ..subsample.selection import Estimate, Transition


def proximal_point(prior: AbstractPrior, values: Vector, smoothing: Scalar) -> Vector:
    """argmin_y f₀(y) + ‖θ − y‖²/2λ, of a prior that `has_proximal_point`."""
    match prior:
        case NormalPrior(variance=variance, mean=mean):
            centre = 0 if mean is None else mean
            return centre + (values - centre) / (1 + smoothing / variance)
        case LaplacePrior(scale=scale, mean=mean):
            away = values - mean
            return mean + jnp.sign(away) * jnp.maximum(jnp.abs(away) - smoothing / scale, 0)
        case TemperedPrior(prior=inner, power=power):
            return proximal_point(inner, values, power * smoothing)
        case JoinedPrior() | PriorOfEntries():
            for part, entries in zip(prior.parts, prior.entries, strict=True):
                at = np.asarray(entries)
                values = values.at[at].set(proximal_point(part, values[at], smoothing))
            return values
    raise TypeError(type(prior).__name__)


def has_proximal_point(prior: AbstractPrior) -> bool:
    """Whether the proximal point has a closed form here."""
    match prior:
        case TemperedPrior(prior=inner):
            return has_proximal_point(inner)
        case JoinedPrior() | PriorOfEntries():
            return all(map(has_proximal_point, prior.parts))
    return isinstance(prior, NormalPrior | LaplacePrior)


class Proximal(Langevin):
    """Langevin dynamics with the Moreau envelope of the prior.

    `smoothing` is s, at least 1/2; the envelope has λ = s ε.
    """

    paper = "Durmus, Moulines and Pereyra (2018)"
    bias = (
        "The bias at fixed ε is of order ε: that of Langevin dynamics, and that of a prior which "
        "is rounded within λ/b of its kinks."
    )
    cost = "A proximal point costs O(d) per step."
    has_transition = False

    smoothing: float = 1.0
    prior: Any = eqx.field(default=None, repr=False, kw_only=True)

    def __post_init__(self) -> None:
        check_number("smoothing", self.smoothing, 0.5)

    def filled(self, posterior: AbstractPosterior) -> dict[str, Any]:
        model = posterior.model
        cure = "Use Langevin(), or a prior of these kinds."
        if not isinstance(model, AbstractRegression):
            rule = "be a regression of tallmc.models, whose prior is known term by term"
            raise InvalidInput("posterior", rule, type(model).__name__, cure)
        if not has_proximal_point(model.prior):
            rule = "have a Laplace or Gaussian prior, whose proximal point has a closed form"
            raise InvalidInput("posterior", rule, type(model.prior).__name__, cure)
        return {"prior": model.prior}

    def step(
        self, state: PositionState, evaluate: Evaluate, step_size: Scalar, noise: Vector
    ) -> DynamicsStep:
        smoothing = self.smoothing * step_size

        def smoothed(position: Vector, transition: Transition | None) -> Estimate:
            found = evaluate(position, None)
            slope = (position - proximal_point(self.prior, position, smoothing)) / smoothing
            kinked = jax.grad(self.prior.potential)(position)
            return dataclasses.replace(found, gradient=found.gradient - kinked + slope)

        return super().step(state, smoothed, step_size, noise)


@named("Durmus, Moulines and Pereyra (2018)", example={"batch_size": 2})
def myula(step_size: StepSize, batch_size: Size | None = None, smoothing: float = 1.0) -> Method:
    """SGLD or ULA with the Moreau envelope of a Laplace prior (MYULA).

    - `batch_size`: rows per step; None for all rows, as in the paper.
    - `smoothing`: s, at least 1/2; the envelope has λ = s ε.
    """
    plain = ula(step_size) if batch_size is None else sgld(step_size, batch_size)
    return dataclasses.replace(plain, dynamics=Proximal(smoothing))
