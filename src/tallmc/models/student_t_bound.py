"""Third derivatives of Student's t likelihood, in location z, s = log σ and λ = log ν.

    f = s + ½(ν + 1) L(v) + g(λ),   L(v) = log(1 + v²),   v = (y − z) e^{−s−λ/2}

Along the direction (a, b, c), with α = a e^{−s−λ/2} and β = b + c/2: v' = −(α + βv), α' = −βα. So

    L'   = −(α C₁₀ + β C₀₁)
    L''  = α² B₂₀ + αβ B₁₁ + β² B₀₂
    L''' = −(α³ A₃₀ + α²β A₂₁ + αβ² A₁₂ + β³ A₀₃)

    C₁₀ = 2v/(1+x)            C₀₁ = 2x/(1+x)
    B₂₀ = 2(1−x)/(1+x)²       B₁₁ = 8v/(1+x)²             B₀₂ = 4x/(1+x)²
    A₃₀ = 4v(x−3)/(1+x)³      A₂₁ = 12(1−3x)/(1+x)³
    A₁₂ = 24v(1−x)/(1+x)³     A₀₃ = 8x(1−x)/(1+x)³        x = v²

With (ν + 1)''' = c³ν and so on, the third derivative of f is

    ½(ν + 1) L''' + ½ν (3c L'' + 3c² L' + c³ L) + c³ g'''(λ).

Each term is bounded by its largest value for |z|, |s| and |λ| within their reaches. The functions
of v are monotone between known turning points. ν^{1−k/2} + ν^{−k/2} is convex in λ, so it is
largest at an end. |g'''| < 0.0592 for all ν. Beyond all reaches σ tends to 0, and there is no
bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Float

from .cubic_bound import AbstractCubicBound, largest_between, size_along

_LARGEST_NORMALISATION = 0.0592
"""sup |g'''|."""


_Term = tuple[Callable[[Array], Array], tuple[float, ...]]
"""A function of |v|, and the |v| at which it turns."""

_FIRST: dict[tuple[int, int], _Term] = {
    (1, 0): (lambda v: 2 * v / (1 + v**2), (1.0,)),
    (0, 1): (lambda v: 2 * v**2 / (1 + v**2), ()),
}
_SECOND: dict[tuple[int, int], _Term] = {
    (2, 0): (lambda v: 2 * (1 - v**2) / (1 + v**2) ** 2, (math.sqrt(3),)),
    (1, 1): (lambda v: 8 * v / (1 + v**2) ** 2, (math.sqrt(1 / 3),)),
    (0, 2): (lambda v: 4 * v**2 / (1 + v**2) ** 2, (1.0,)),
}
_THIRD: dict[tuple[int, int], _Term] = {
    (3, 0): (
        lambda v: 4 * v * (v**2 - 3) / (1 + v**2) ** 3,
        (math.sqrt(2) - 1, math.sqrt(2) + 1),
    ),
    (2, 1): (lambda v: 12 * (1 - 3 * v**2) / (1 + v**2) ** 3, (1.0,)),
    (1, 2): (
        lambda v: 24 * v * (1 - v**2) / (1 + v**2) ** 3,
        (math.sqrt((4 - math.sqrt(13)) / 3), math.sqrt((4 + math.sqrt(13)) / 3)),
    ),
    (0, 3): (
        lambda v: 8 * v**2 * (1 - v**2) / (1 + v**2) ** 3,
        (math.sqrt(2 - math.sqrt(3)), math.sqrt(2 + math.sqrt(3))),
    ),
}


class StudentTCubicBound(AbstractCubicBound):
    """The sum of the largest values of all terms."""

    @property
    def is_global(self) -> bool:
        return False

    def largest_cubic(
        self,
        z: Float[Array, " 3"],
        reach: Float[Array, " 3"],
        gram: Float[Array, "3 3"],
        y: Float[Array, ""],
    ) -> Float[Array, ""]:
        location, log_scale, log_degrees = z
        shrink = jnp.exp(-log_scale - log_degrees / 2)
        slack = jnp.exp(reach[1] + reach[2] / 2)
        miss = jnp.abs(y - location)
        low = jnp.maximum(miss - reach[0], 0) * shrink / slack
        high = (miss + reach[0]) * shrink * slack
        a, b, c = jnp.eye(3, dtype=z.dtype)
        of_location = size_along(gram, a) * jnp.exp(-log_scale + reach[1])
        of_scale, of_degrees = size_along(gram, b + c / 2), size_along(gram, c)
        ends = jnp.exp(jnp.stack([log_degrees - reach[2], log_degrees + reach[2]]))

        def total(terms: dict[tuple[int, int], _Term], extra: float) -> Float[Array, ""]:
            """Σ of the largest (ν + extra) ν^{−j/2} |term| |a/σ|ʲ |β|ᵏ."""
            found = jnp.zeros_like(y)
            for (j, k), (function, turns) in terms.items():
                degrees = jnp.max((ends + extra) * ends ** (-j / 2))
                size = of_location**j * of_scale**k
                found += degrees * size * largest_between(function, low, high, turns)
            return found

        within = total(_THIRD, 1) + of_degrees * (
            3 * total(_SECOND, 0) + of_degrees * 3 * total(_FIRST, 0)
        )
        logarithm = jnp.max(ends) * jnp.log1p(high**2) + 2 * _LARGEST_NORMALISATION
        found = (within + of_degrees**3 * logarithm) / 2
        return jnp.where(jnp.all(jnp.isfinite(reach)), found, jnp.inf)

    def distance(self, z: Float[Array, " 3"], move: Float[Array, " 3"]) -> Float[Array, ""]:
        units = jnp.stack([jnp.exp(-z[1] - jnp.minimum(z[2], 0) / 2), 1.0, 1.0])
        return jnp.max(jnp.abs(units * move))
