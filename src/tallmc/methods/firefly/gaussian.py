"""Taylor bounds for x_i ~ N(μ, σ²) with the parameters μ and λ = log σ.

With s = (x − μ̂)/σ̂, a = (μ − μ̂)/σ̂ and b = λ − λ̂, log L = −λ − ½ (s − a)² e^−2b. The remainder of
its expansion of order 2 in (a, b) is

    −½ s² (e^−2b − 1 + 2b − 2b²) + s a (e^−2b − 1 + 2b) − ½ a² (e^−2b − 1).

The absolute values of the three terms bound it at all parameters: c = (½s², |s|, ½). Bardenet,
Doucet and Holmes (2017) use one number for all rows instead: with x_i in [least, largest],

    M ‖(μ − μ̂, λ − λ̂)‖₁³/6,   M ≥ |third derivatives|,

with M for the most extreme row, which makes all rows about equally likely to be bright. Their code
expands in σ; this bound expands in λ.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from .taylor import Taylor


def gaussian_bound() -> Taylor:
    """The Taylor bound of Gaussian rows, with constants per row.

    **Returns:** a `Taylor` for a posterior whose rows are numbers and whose parameters are the
    pair (μ, log σ), a tuple.

    >>> import jax.numpy as jnp
    >>> constants = gaussian_bound().constants((0.0, 0.0), jnp.asarray(2.0))
    >>> [float(number) for number in constants]
    [2.0, 2.0, 0.5]
    """
    return Taylor(_row_constants, _growth, is_proved=True)


def uniform_gaussian_bound(least: float, largest: float) -> Taylor:
    """The Taylor bound of Gaussian rows, with the constant of the most extreme row for all rows.

    **Arguments:**

    - `least`, `largest`: the range of the rows.

    **Returns:** a `Taylor` for a posterior whose rows are numbers and whose parameters are the
    pair (μ, log σ), a tuple.

    >>> bound = uniform_gaussian_bound(-1.0, 3.0)
    >>> float(bound.growth((0.0, 0.0), (1.0, 0.0))[0])  # 4 · 3²/6
    6.0
    """

    def growth(anchor: Any, params: Any) -> Float[Array, " 1"]:
        means = jnp.stack([anchor[0], params[0]])
        reach = jnp.max(jnp.abs(jnp.stack([largest - means, least - means])))
        precision = jnp.exp(-2 * jnp.minimum(anchor[1], params[1]))
        third_derivative = precision * jnp.maximum(jnp.maximum(4 * reach**2, 4 * reach), 2)
        distance = jnp.abs(params[0] - anchor[0]) + jnp.abs(params[1] - anchor[1])
        return (third_derivative * distance**3 / 6)[None]

    return Taylor(lambda anchor, x: jnp.ones(1), growth, is_proved=True)


def _row_constants(anchor: Any, x: Float[Array, ""]) -> Float[Array, " 3"]:
    s = (x - anchor[0]) * jnp.exp(-anchor[1])
    return jnp.stack([s**2 / 2, jnp.abs(s), jnp.full_like(s, 0.5)])


def _growth(anchor: Any, params: Any) -> Float[Array, " 3"]:
    a, b = (params[0] - anchor[0]) * jnp.exp(-anchor[1]), params[1] - anchor[1]
    first = jnp.expm1(-2 * b)
    second = first + 2 * b
    third = second - 2 * b**2
    return jnp.stack([jnp.abs(third), jnp.abs(a * second), a**2 * jnp.abs(first)])
