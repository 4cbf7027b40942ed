"""Kernel Stein discrepancy: how far draws are from a target of which only the gradient is known.

With the score s = −∇f and the inverse multiquadric k(x, y) = (c² + ‖x − y‖²)^β, the Stein kernel of coordinate j

    k₀ⱼ(x, y) = sⱼ(x) sⱼ(y) k + sⱼ(x) ∂k/∂yⱼ + sⱼ(y) ∂k/∂xⱼ + ∂²k/∂xⱼ∂yⱼ

has mean zero under the target in either argument. Two roots of its mean over all pairs of K draws are in use:

    one_root        √( Σⱼ Σ_{a,b} k₀ⱼ(x_a, x_b) ) / K       Gorham and Mackey (2017); the code of putcha-2023
    sum_of_roots    Σⱼ √( Σ_{a,b} k₀ⱼ(x_a, x_b) ) / K       as printed: nemeth-2021, eq. 13; putcha-2023, eq. 20

For exact draws both fall to zero, as K^(−1/2) if these are independent; for c > 0 and −1 < β < 0 they do so for no others.
Unbiased estimates may stand for the gradients: their noise adds c^(2β) E‖noise‖²/K to the square of the first. The kernel
presumes coordinates of scale c: divide positions by a standard deviation, and multiply gradients by it, beforehand. The first
does not depend on the choice of axes, the second does.

nemeth-2021 prints the two middle terms with +∇f in place of the score, and the code of putcha-2023 computes that: the discrepancy
from exp(+f), which exact draws of exp(−f) do not bring to zero. `flipped_sign=True` gives it, to reproduce figures and for
nothing else.

Draw a adds r_a = k₀(x_a, x_a) + 2 Σ_{b<a} k₀(x_a, x_b) to the sum over pairs of the draws up to it, so that one computation, of
O(K²d), gives the discrepancy of every prefix. It is matrix products on blocks of pairs, in float64 on the host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
from jaxtyping import ArrayLike, Float

from .._arrays import check_numeric
from .._errors import InvalidInput, check_int, check_number

Form = Literal["one_root", "sum_of_roots"]

_ROOTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "one_root": lambda mean: np.sqrt(np.maximum(mean.sum(axis=-1), 0)),
    "sum_of_roots": lambda mean: np.sqrt(np.maximum(mean, 0)).sum(axis=-1),
}
_BLOCK = 1024


def ksd(
    positions: ArrayLike,
    gradients: ArrayLike,
    *,
    form: Form = "one_root",
    scale: float = 1.0,
    exponent: float = -0.5,
    flipped_sign: bool = False,
) -> float:
    """The kernel Stein discrepancy of draws (K, d) with the gradients ∇f (K, d) at each of them, exact or unbiased.

    `scale` is c and `exponent` β of the kernel. `flipped_sign` is a published mistake; see above.

    >>> import numpy as np
    >>> draws = np.random.default_rng(0).normal(size=(1000, 3))
    >>> round(ksd(draws, draws), 2)                     # ∇f(x) = x for a standard normal
    0.1
    >>> round(ksd(1.2 * draws, 1.2 * draws), 2)         # draws that are too wide
    0.18
    """
    return float(ksd_path(positions, gradients, None, form=form, scale=scale, exponent=exponent, flipped_sign=flipped_sign)[-1])


def ksd_path(
    positions: ArrayLike,
    gradients: ArrayLike,
    at: Sequence[int] | None = None,
    *,
    form: Form = "one_root",
    scale: float = 1.0,
    exponent: float = -0.5,
    flipped_sign: bool = False,
) -> Float[np.ndarray, " prefixes"]:
    """`ksd` of the first `at[0]` draws, the first `at[1]`, and so on, at the cost of the longest; of every prefix unless given.

    >>> import numpy as np
    >>> draws = np.random.default_rng(0).normal(size=(1000, 3))
    >>> ksd_path(draws, draws, at=[10, 100, 1000]).round(2)
    array([0.7 , 0.23, 0.1 ])
    """
    x, gradient = _checked_draws(positions, gradients)
    if form not in _ROOTS:
        raise InvalidInput("form", f"be one of {', '.join(map(repr, _ROOTS))}", form)
    scale = check_number("scale", scale, 0, low_open=True)
    exponent = check_number("exponent", exponent, -1, 0, low_open=True, high_open=True)
    if at is None:
        lengths = np.arange(1, len(x) + 1)
    else:
        lengths = np.array([check_int("at", length, 1, len(x), high_name="number of draws") for length in at], int)
        if not len(lengths):
            raise InvalidInput("at", "hold the length of at least one prefix", at)
    longest = lengths.max()
    score = gradient[:longest] if flipped_sign else -gradient[:longest]
    sums = np.cumsum(_contributions(x[:longest], score, scale, exponent), axis=0)
    return _ROOTS[form](sums[lengths - 1] / lengths[:, None] ** 2)


def _checked_draws(positions: ArrayLike, gradients: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    x = np.asarray(check_numeric("positions", positions), np.float64)
    gradient = np.asarray(check_numeric("gradients", gradients), np.float64)
    if x.ndim != 2 or 0 in x.shape:
        raise InvalidInput("positions", "be a matrix, one draw a row", f"shape {x.shape}")
    if gradient.shape != x.shape:
        raise InvalidInput("gradients", f"have the shape of positions, {x.shape}", f"shape {gradient.shape}")
    for name, values in (("positions", x), ("gradients", gradient)):
        finite = np.isfinite(values).all(axis=1)
        if not finite.all():
            cure = "Leave out chains that failed: draws.positions[draws.ok]."
            raise InvalidInput(name, "be finite", f"NaN or infinity in draw {np.argmin(finite)}", cure)
    return x, gradient


def _contributions(
    positions: Float[np.ndarray, "K d"], score: Float[np.ndarray, "K d"], scale: float, exponent: float
) -> Float[np.ndarray, "K d"]:
    """r_a of every draw, by coordinate.

    With b = c² + ‖x − y‖² and t = x − y, k₀ⱼ = b^β sⱼ(x) sⱼ(y) − 2β b^(β−1) [1 + tⱼ (sⱼ(x) − sⱼ(y))] − 4β(β − 1) b^(β−2) tⱼ².
    Multiplied out, each term is a factor of the first draw times one of the second, and a sum over the second a matrix product.
    """
    x = positions - positions.mean(axis=0)  # distances come from products of positions, whose common part would cost digits
    ones = np.ones((len(x), 1))
    factors = score, np.hstack([score, x, score * x, ones]), np.hstack([x, x**2, ones])
    result = np.empty_like(x)
    for start in range(0, len(x), _BLOCK):
        block = slice(start, start + _BLOCK)
        sums = [np.zeros((len(x[block]), factor.shape[1])) for factor in factors]
        for earlier_start in range(0, start + 1, _BLOCK):
            earlier = slice(earlier_start, earlier_start + _BLOCK)
            inverse = 1 / (scale**2 + _squared_distances(x[block], x[earlier]))
            power = inverse**-exponent
            if earlier == block:
                power = np.tril(power, -1)
            for total, factor in zip(sums, factors, strict=True):
                total += power @ factor[earlier]
                power *= inverse
        result[block] = _assembled(x[block], score[block], sums, scale, exponent)
    return result


def _squared_distances(x: Float[np.ndarray, "n d"], y: Float[np.ndarray, "m d"]) -> Float[np.ndarray, "n m"]:
    return np.maximum(np.sum(x**2, axis=1)[:, None] + np.sum(y**2, axis=1) - (2 * x) @ y.T, 0)


def _assembled(
    x: Float[np.ndarray, "n d"], score: Float[np.ndarray, "n d"], sums: list[np.ndarray], scale: float, exponent: float
) -> Float[np.ndarray, "n d"]:
    """r_a from sums over earlier draws: of b^β with their s, of b^(β−1) with s, x, sx and 1, of b^(β−2) with x, x² and 1."""
    d = x.shape[1]
    along_s = sums[0]
    slope_s, slope_x, slope_sx, slope_1 = np.split(sums[1], [d, 2 * d, 3 * d], axis=1)
    curve_x, curve_xx, curve_1 = np.split(sums[2], [d, 2 * d], axis=1)
    slope = (1 + score * x) * slope_1 - score * slope_x - x * slope_s + slope_sx
    curve = x**2 * curve_1 - 2 * x * curve_x + curve_xx
    with_earlier = score * along_s - 2 * exponent * slope - 4 * exponent * (exponent - 1) * curve
    with_itself = scale ** (2 * exponent) * score**2 - 2 * exponent * scale ** (2 * exponent - 2)
    return with_itself + 2 * with_earlier
