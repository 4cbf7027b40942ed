"""Plain stochastic gradient descent (Robbins and Monro, 1951).

    θ' = θ − a ∇f̂(θ),   ∇f̂(θ) = ∇f₀(θ) + (N/n) Σ_{i∈S} ∇f_i(θ)

This is SGLD with ε = 2a and without its noise (nemeth-2021, section 2.2). nemeth-2021 (section 6)
and the talk find the mode with it. With a constant a the last iterate does not converge: in a
direction of curvature λ, with gradient noise of variance v, its variance around the mode of a
Gaussian is av/(λ(2 − aλ)). Relative to the posterior's variance 1/λ this is av/(2 − aλ). The
search is stable for a < 2/λ. λ grows with the number of rows N, so a suitable a is of order 1/N;
there is no default. Control variates are unbiased at any anchor, so an anchor that is somewhat off
makes them noisier, not wrong.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from jaxtyping import Array, Float

from .minibatches import AbstractMinibatchSearch


@dataclasses.dataclass(frozen=True)
class SGD(AbstractMinibatchSearch):
    """Plain stochastic gradient descent on uniform minibatches, with a constant step size.

    The last iterate is taken as the mode, converged or not.

    **Arguments:**

    - `step_size`: a in θ' = θ − a∇f̂(θ), which must be below 2/λ for every curvature λ of f.
    - `steps`: how many steps to make.
    - `size`: rows per step.
    - `seed`: the seed of the minibatches.

    **Raises:** `InvalidInput` if an argument is out of range.

    >>> import tallmc
    >>> X, y = [[1.0], [1.0]], [1.0, 2.0]
    >>> posterior = tallmc.models.linear_regression(X, y, prior_variance=1.0, noise_variance=1.0)
    >>> optimiser = SGD(step_size=1e-3, steps=10_000, size=2)
    >>> tallmc.laplace(posterior, optimiser=optimiser).position.round(1)
    Array([1.], dtype=float32)
    """

    step_size: float
    steps: int = 10_000
    size: int = 32
    seed: int = 0

    @staticmethod
    def rule(step_size: Float[Array, ""]) -> Any:
        import optax

        return optax.sgd(step_size)
