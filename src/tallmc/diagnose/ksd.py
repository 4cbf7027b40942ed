"""Kernel Stein discrepancy: how far draws are from a target known only through its gradient.

With the score s = −∇f and the inverse multiquadric k(x, y) = (c² + ‖x − y‖²)^β, the Stein kernel of
coordinate j

    k₀ⱼ(x, y) = sⱼ(x) sⱼ(y) k + sⱼ(x) ∂k/∂yⱼ + sⱼ(y) ∂k/∂xⱼ + ∂²k/∂xⱼ∂yⱼ

has mean zero under the target in either argument. Two forms of the discrepancy are in use, both
roots of the mean of k₀ⱼ over all pairs of K draws:

    one_root        √( Σⱼ Σ_{a,b} k₀ⱼ(x_a, x_b) ) / K       Gorham and Mackey (2017);
                                                            the code of putcha-2023
    sum_of_roots    Σⱼ √( Σ_{a,b} k₀ⱼ(x_a, x_b) ) / K       as printed: nemeth-2021, eq. 13;
                                                            putcha-2023, eq. 20

Both converge to zero for exact draws, at rate K^(−1/2) if the draws are independent. For c > 0 and
−1 < β < 0 they converge to zero for no other draws. Unbiased estimates may replace the gradients;
their noise adds c^(2β) E‖noise‖²/K to the square of `one_root`. The kernel assumes coordinates of
scale c: divide positions by a standard deviation and multiply gradients by it beforehand.
`one_root` does not depend on the choice of axes; `sum_of_roots` does.

nemeth-2021 prints the two middle terms with +∇f in place of the score, and the code of putcha-2023
computes this version. It is the discrepancy from exp(+f), which does not converge to zero for exact
draws of exp(−f). `flipped_sign=True` computes it, only to reproduce published figures.

Draw a adds r_a = k₀(x_a, x_a) + 2 Σ_{b<a} k₀(x_a, x_b) to the sum over all pairs of draws up to a.
One computation of cost O(K²d) therefore gives the discrepancy of every prefix. It consists of
matrix products on blocks of pairs, in float64 on the host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
from jaxtyping import ArrayLike, Float

from ..core.arrays import check_numeric
from ..core.errors import InvalidInput, check_int, check_number

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
    """Kernel Stein discrepancy of draws from the target with potential f.

    **Arguments:**

    - `positions`: the draws, of shape (K, d).
    - `gradients`: ∇f at each draw, exact or unbiased, of shape (K, d).
    - `form`: `"one_root"` or `"sum_of_roots"`.
    - `scale`: c of the kernel.
    - `exponent`: β of the kernel.
    - `flipped_sign`: reproduce a published sign error; see the module docstring.

    **Returns:** the discrepancy.

    **Raises:** `InvalidInput` if an argument has a wrong shape or range, or is not finite.

    >>> import numpy as np
    >>> draws = np.random.default_rng(0).normal(size=(1000, 3))
    >>> round(ksd(draws, draws), 2)                     # ∇f(x) = x for a standard normal
    0.1
    >>> round(ksd(1.2 * draws, 1.2 * draws), 2)         # the draws are too wide
    0.18
    """
    return float(
        ksd_path(
            positions,
            gradients,
            None,
            form=form,
            scale=scale,
            exponent=exponent,
            flipped_sign=flipped_sign,
        )[-1]
    )


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
    """`ksd` of several prefixes of the draws, at the cost of the longest prefix.

    **Arguments:**

    - `positions`, `gradients`, `form`, `scale`, `exponent`, `flipped_sign`: as in `ksd`.
    - `at`: the lengths of the prefixes. None means every prefix.

    **Returns:** one discrepancy per prefix.

    **Raises:** `InvalidInput` as `ksd`, or if a length is not between 1 and the number of draws.

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
        lengths = np.array(
            [check_int("at", length, 1, len(x), high_name="number of draws") for length in at], int
        )
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
        raise InvalidInput("positions", "be a matrix with one draw per row", f"shape {x.shape}")
    if gradient.shape != x.shape:
        raise InvalidInput(
            "gradients", f"have the shape of positions, {x.shape}", f"shape {gradient.shape}"
        )
    for name, values in (("positions", x), ("gradients", gradient)):
        finite = np.isfinite(values).all(axis=1)
        if not finite.all():
            cure = "Leave out chains that failed: draws.positions[draws.ok]."
            raise InvalidInput(
                name, "be finite", f"NaN or infinity in draw {np.argmin(finite)}", cure
            )
    return x, gradient


def _contributions(
    positions: Float[np.ndarray, "K d"],
    score: Float[np.ndarray, "K d"],
    scale: float,
    exponent: float,
) -> Float[np.ndarray, "K d"]:
    """r_a of every draw, by coordinate.

    With b = c² + ‖x − y‖² and t = x − y,

        k₀ⱼ = b^β sⱼ(x) sⱼ(y) − 2β b^(β−1) [1 + tⱼ (sⱼ(x) − sⱼ(y))] − 4β(β − 1) b^(β−2) tⱼ².

    Expanded, each term is b^(…) times a factor of x times a factor of y, so the sum over y is a
    matrix product.
    """
    # Distances are computed from inner products; a common offset would lose digits.
    x = positions - positions.mean(axis=0)
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


def _squared_distances(
    x: Float[np.ndarray, "n d"], y: Float[np.ndarray, "m d"]
) -> Float[np.ndarray, "n m"]:
    return np.maximum(np.sum(x**2, axis=1)[:, None] + np.sum(y**2, axis=1) - (2 * x) @ y.T, 0)


def _assembled(
    x: Float[np.ndarray, "n d"],
    score: Float[np.ndarray, "n d"],
    sums: list[np.ndarray],
    scale: float,
    exponent: float,
) -> Float[np.ndarray, "n d"]:
    """r_a from the sums over earlier draws.

    The sums are of b^β times s, of b^(β−1) times (s, x, sx, 1) and of b^(β−2) times (x, x², 1).
    """
    d = x.shape[1]
    along_s = sums[0]
    slope_s, slope_x, slope_sx, slope_1 = np.split(sums[1], [d, 2 * d, 3 * d], axis=1)
    curve_x, curve_xx, curve_1 = np.split(sums[2], [d, 2 * d], axis=1)
    slope = (1 + score * x) * slope_1 - score * slope_x - x * slope_s + slope_sx
    curve = x**2 * curve_1 - 2 * x * curve_x + curve_xx
    with_earlier = score * along_s - 2 * exponent * slope - 4 * exponent * (exponent - 1) * curve
    with_itself = scale ** (2 * exponent) * score**2 - 2 * exponent * scale ** (2 * exponent - 2)
    return with_itself + 2 * with_earlier
