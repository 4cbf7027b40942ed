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
from typing import Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from .._core.arrays import check_numeric
from .._core.errors import InvalidInput, check_int, check_number
from .._core.random import new_key
from .._core.statistics import evenly_in_weight
from .._rows.access import AbstractRows
from .._rows.law import RowDraws
from ..gradient.estimator import AbstractGradient, Simple, block_gradient_sums
from ..models.posterior import AbstractPosterior, check_in_memory
from ..results.draws import Draws
from ..subsample.selection import AbstractStaticSelection, WithReplacement

# ∇f at many positions: exact, or estimated from rows drawn for each position.
#
# Exact gradients of many positions share a pass over the rows.

_POSITIONS_PER_PASS = 64


def exact_gradients(posterior: AbstractPosterior, positions: ArrayLike) -> Float[np.ndarray, "K d"]:
    """∇f of the posterior, from all rows, at each of `positions` (K, d); in float64."""
    thetas = np.asarray(positions, posterior.dtype)
    gradients = []
    for first in range(0, len(thetas), _POSITIONS_PER_PASS):
        some = thetas[first : first + _POSITIONS_PER_PASS]
        # Each number of positions would compile another program: use powers of two.
        padded_length = 1 << (len(some) - 1).bit_length()
        padded = jnp.asarray(np.resize(some, (padded_length, posterior.dim)))
        total = posterior.rows.reduce(
            block_gradient_sums, posterior.model, padded, width=posterior.width
        )
        gradients.append(total.float64()[: len(some)])
    prior = jax.vmap(posterior.model.prior_gradient)(jnp.asarray(thetas))
    return np.concatenate(gradients) + np.asarray(prior, np.float64)


def stochastic_gradients(
    gradient: AbstractGradient,
    selection: AbstractStaticSelection,
    rows: AbstractRows,
    positions: ArrayLike,
    seed: int = 0,
) -> Float[np.ndarray, "K d"]:
    """Estimates of ∇f at each of `positions` (K, d); each uses its own rows from `selection`."""
    thetas = jnp.asarray(positions, gradient.model.dtype)
    return np.asarray(_stochastic(gradient, selection, rows, thetas, new_key(seed)), np.float64)


@eqx.filter_jit
def _stochastic(
    gradient: AbstractGradient,
    selection: AbstractStaticSelection,
    rows: AbstractRows,
    positions: Float[Array, "K d"],
    key: PRNGKeyArray,
) -> Float[Array, "K d"]:
    def estimate(pair: tuple[Float[Array, " d"], RowDraws]) -> Float[Array, " d"]:
        position, drawn = pair
        return gradient(position, rows.complete(rows.gather(drawn)))

    row_draws = selection.draw(key, positions.shape[0])
    return lax.map(estimate, (positions, row_draws), batch_size=_POSITIONS_PER_PASS)


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
    """
    options = {"form": form, "scale": scale, "exponent": exponent, "flipped_sign": flipped_sign}
    return float(ksd_path(positions, gradients, None, **options)[-1])  # type: ignore[arg-type]


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
    """
    x, gradient = _checked_draws(positions, gradients)
    if form not in _ROOTS:
        raise InvalidInput("form", f"be one of {', '.join(map(repr, _ROOTS))}", form)
    scale = check_number("scale", scale, 0, low_open=True)
    exponent = check_number("exponent", exponent, -1, 0, low_open=True, high_open=True)
    every = range(1, len(x) + 1) if at is None else at
    if not len(every):
        raise InvalidInput("at", "hold the length of at least one prefix", at)
    lengths = np.array([check_int("at", k, 1, len(x), high_name="number of draws") for k in every])
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
        rule = f"have the shape of positions, {x.shape}"
        raise InvalidInput("gradients", rule, f"shape {gradient.shape}")
    for name, values in (("positions", x), ("gradients", gradient)):
        finite = np.isfinite(values).all(axis=1)
        if not finite.all():
            cure = "Leave out chains that failed: draws.positions[draws.ok]."
            found = f"NaN or infinity in draw {np.argmin(finite)}"
            raise InvalidInput(name, "be finite", found, cure)
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
            squares = np.sum(x[block] ** 2, axis=1)[:, None] + np.sum(x[earlier] ** 2, axis=1)
            distances = np.maximum(squares - (2 * x[block]) @ x[earlier].T, 0)
            inverse = 1 / (scale**2 + distances)
            power = inverse**-exponent
            if earlier == block:
                power = np.tril(power, -1)
            for total, factor in zip(sums, factors, strict=True):
                total += power @ factor[earlier]
                power *= inverse
        result[block] = _assembled(x[block], score[block], sums, scale, exponent)
    return result


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


# Kernel Stein discrepancy of a run, computed from thinned draws of its chains.
#
# Exact gradients cost one pass over the rows per draw. Gradients from `size` rows are unbiased but
# noisy. Their noise adds E‖noise‖²/K to the squared discrepancy, so such values are comparable only
# for the same `size` and the same number of draws K.
#
# The kernel assumes coordinates of scale 1. In units C, with x = Cu, positions become C⁻¹x and
# gradients become Cᵀ∇f. With C Cᵀ = Σ̂ from the anchor, the posterior is round and the discrepancy
# weights all directions equally. With one standard deviation per coordinate, the directions in
# which correlated parameters are well determined have large gradients and outweigh the others.
class Discrepancy(NamedTuple):
    """Result of `draws_ksd`."""

    ksd: float
    n_draws: int
    """The number of draws used."""
    n_row_evals: int
    """The number of rows touched to compute the gradients."""


def draws_ksd(
    draws: Draws,
    posterior: AbstractPosterior,
    *,
    most: int = 2000,
    size: int | None = None,
    units: ArrayLike | None = None,
    form: Form = "one_root",
    seed: int = 0,
) -> Discrepancy:
    """Kernel Stein discrepancy between `draws` and `posterior`.

    Chains that failed are left out. Draws of decreasing steps count by their weights.

    **Arguments:**

    - `draws`: the result of `tallmc.sample`.
    - `posterior`: the posterior that was sampled.
    - `most`: the largest number of draws to use, over all chains. Longer runs are thinned.
    - `size`: rows per stochastic gradient. None uses exact gradients, one pass per draw.
    - `units`: C, as a matrix, one number per coordinate, or one number for all. The best choice is
      the `factor` of an anchor. Defaults to 1.
    - `form`: `"one_root"` or `"sum_of_roots"`, as in `ksd`.
    - `seed`: seed of the rows of the stochastic gradients.
    """
    if not isinstance(draws, Draws):
        raise InvalidInput("draws", "be the Draws of tallmc.sample", type(draws).__name__)
    if not isinstance(posterior, AbstractPosterior) or posterior.layout != draws.layout:
        raise InvalidInput("posterior", "be the one that was sampled", type(posterior).__name__)
    if size is not None:
        size = check_int("size", size, 1, posterior.n_rows, high_name="n_rows")
    C = _checked_units(1.0 if units is None else units, posterior.dim)
    weights = None if draws.weights is None else draws.weights[draws.ok]
    positions = thinned(draws.positions[draws.ok], check_int("most", most, 1), weights)
    if not len(positions):
        found = f"outcomes {[outcome.name for outcome in draws.outcomes]}"
        raise InvalidInput("draws", "have a chain that completed", found)
    if size is None:
        gradients = exact_gradients(posterior, positions)
    else:
        check_in_memory(posterior, "estimated gradients read rows by number", "Leave size out.")
        selection = WithReplacement(stream=posterior.rows.stream(None, posterior.dtype), size=size)
        gradient = Simple().prepare(posterior)
        gradients = stochastic_gradients(gradient, selection, posterior.rows, positions, seed)
    n_row_evals = len(positions) * (posterior.n_rows if size is None else size)
    value = ksd(*in_units(C, positions, gradients), form=form)
    return Discrepancy(value, len(positions), n_row_evals)


def thinned(
    positions: Float[np.ndarray, "chains draws d"],
    most: int,
    weights: Float[np.ndarray, "chains draws"] | None = None,
) -> Float[np.ndarray, "K d"]:
    """At most `most` draws, evenly spaced along the concatenated chains.

    With `weights`, they are evenly spaced in the sum of the weights, so that they count the same.
    """
    concatenated = positions.reshape(-1, positions.shape[-1])
    count = min(most, len(concatenated))
    if weights is not None:
        return concatenated[evenly_in_weight(weights.ravel(), count)]
    return concatenated[np.arange(1, count + 1) * len(concatenated) // max(count, 1) - 1]


def in_units(
    C: Float[np.ndarray, "d d"] | Float[np.ndarray, " d"] | Float[np.ndarray, ""],
    positions: Float[np.ndarray, "K d"],
    gradients: Float[np.ndarray, "K d"],
) -> tuple[Float[np.ndarray, "K d"], Float[np.ndarray, "K d"]]:
    """C⁻¹x and Cᵀ∇f of each draw. A vector or a number C means a diagonal matrix."""
    if C.ndim < 2:
        return positions / C, gradients * C
    return np.linalg.solve(C, positions.T).T, gradients @ C


def _checked_units(units: ArrayLike, dim: int) -> np.ndarray:
    C = np.asarray(check_numeric("units", units), np.float64)
    if C.shape not in ((), (dim,), (dim, dim)) or not np.isfinite(C).all():
        rule = f"be a finite number, one number per coordinate ({dim}) or a {dim}×{dim} matrix"
        raise InvalidInput("units", rule, units)
    if not (C > 0).all() if C.ndim < 2 else np.linalg.matrix_rank(C) < dim:
        raise InvalidInput("units", "be positive, or an invertible matrix", units)
    return C
