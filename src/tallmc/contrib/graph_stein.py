"""The graph Stein discrepancy: how far draws are from a target, by linear programs.

For draws x_i with weights q_i and the score s = −∇f (Gorham and Mackey, 2015, eq. 10),

    max_g Σ_i q_i Σ_j [s_j(x_i) g_j(x_i) + ∂_j g_j(x_i)]

over functions g that are bounded by 1 with their derivatives and the Lipschitz constants of these,
in the dual of the ℓ₁ norm. Of exact draws the mean of the bracket is 0 for every such g. Only the
values γ_ij = g_j(x_i) and Γ_ijk = ∂_k g_j(x_i) enter, so a linear program finds them. Smoothness is
demanded along the edges (x, z) of a graph, with r = ‖x − z‖₁:

    |γ| ≤ 1,   |Γ_k| ≤ 1,   |γ_x − γ_z| ≤ r,   |Γ_xk − Γ_zk| ≤ r
    |γ_x − γ_z − Γ_zᵀ(x − z)| ≤ r²/2,   |γ_z − γ_x − Γ_xᵀ(z − x)| ≤ r²/2

Values along a 2-spanner, in which no way is longer than twice the distance, have the strength of
all pairs up to a constant that depends on d, with O(n) instead of n² edges. The programs of the
coordinates are separate. The kernel Stein discrepancy (`tallmc.diagnose`) needs no program and
takes more draws; this one bounds Wasserstein distances without the choice of a kernel.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import ArrayLike, Float, Int

from .._core.arrays import check_numeric
from .._core.errors import InvalidInput

_STRETCH = 2.0
_MOST_DRAWS = 1000


def graph_stein_discrepancy(
    positions: ArrayLike, gradients: ArrayLike, weights: ArrayLike | None = None
) -> float:
    """Return the graph Stein discrepancy of draws from the target exp(−f).

    **Arguments:**

    - `positions`: the draws, of shape (n, d), in coordinates of scale 1; at most 1,000.
    - `gradients`: ∇f at the draws, such as `tallmc.diagnose.exact_gradients` returns. Where
      positions are divided by a standard deviation, multiply gradients by it.
    - `weights`: one per draw; by default equal.

    >>> import numpy as np
    >>> x = np.random.default_rng(0).normal(size=(100, 1))
    >>> graph_stein_discrepancy(x, x) < 0.3 < graph_stein_discrepancy(2 * x, 2 * x)
    True
    """
    x, slopes = (
        np.asarray(check_numeric(name, given), np.float64)
        for name, given in (("positions", positions), ("gradients", gradients))
    )
    if x.ndim != 2 or not 1 <= len(x) <= _MOST_DRAWS or not np.isfinite(x).all():
        rule = f"be a finite matrix of 1 to {_MOST_DRAWS} draws"
        raise InvalidInput("positions", rule, f"shape {x.shape}", "Thin the draws.")
    if slopes.shape != x.shape or not np.isfinite(slopes).all():
        rule = f"be finite and have the shape of the positions, {x.shape}"
        raise InvalidInput("gradients", rule, f"shape {slopes.shape}")
    q = np.ones(len(x)) if weights is None else np.asarray(check_numeric("weights", weights))
    if q.shape != (len(x),) or not np.isfinite(q).all() or (q < 0).any() or not q.sum() > 0:
        rule = "be one number per draw, not negative and not all zero"
        raise InvalidInput("weights", rule, f"shape {q.shape}")
    # Draws at the same place share their values; a rejected proposal repeats a draw.
    places, first, inverse = np.unique(x, axis=0, return_index=True, return_inverse=True)
    mass = np.bincount(inverse.ravel(), weights=q / q.sum())
    return linear_programs(places, -slopes[first], mass, spanner(places))


def spanner(points: Float[np.ndarray, "n d"]) -> Int[np.ndarray, "e 2"]:
    """The edges of a greedy 2-spanner in the ℓ₁ norm (Chew, 1986; Althöfer et al., 1993)."""
    lengths = np.abs(points[:, None] - points).sum(axis=2)
    ways = np.where(np.eye(len(points), dtype=bool), 0.0, np.inf)
    pairs = np.column_stack(np.triu_indices(len(points), 1))
    edges = []
    for a, b in pairs[np.argsort(lengths[pairs[:, 0], pairs[:, 1]], kind="stable")]:
        if ways[a, b] > _STRETCH * lengths[a, b]:
            edges.append((a, b))
            through = ways[:, a, None] + lengths[a, b] + ways[b]
            ways = np.minimum(ways, np.minimum(through, through.T))
    return np.array(edges, int).reshape(-1, 2)


def linear_programs(
    points: Float[np.ndarray, "n d"],
    scores: Float[np.ndarray, "n d"],
    mass: Float[np.ndarray, " n"],
    edges: Int[np.ndarray, "e 2"],
) -> float:
    """The sum over coordinates of the largest mean of the bracket, with constraints on edges."""
    from scipy.optimize import linprog  # slow imports
    from scipy.sparse import csr_array, hstack, vstack

    (n, dim), count = points.shape, len(edges)
    apart = points[edges[:, 0]] - points[edges[:, 1]]
    r = np.abs(apart).sum(axis=1)

    def at(end: int, values: Float[np.ndarray, " e"]) -> csr_array:
        """One line per edge with a value in the column of one of its ends."""
        return csr_array((values, (np.arange(count), edges[:, end])), shape=(count, n))

    ones, empty = np.ones(count), csr_array((count, n))
    difference = at(0, ones) - at(1, ones)
    # The unknowns are γ and then Γ_1 … Γ_d, n numbers each.
    lines = [hstack([difference, *dim * [empty]])]
    for k in range(dim):
        lines.append(hstack([empty, *(difference if k == j else empty for j in range(dim))]))
    limits = (1 + dim) * [r]
    for end in (0, 1):
        lines.append(hstack([difference, *(at(end, -apart[:, j]) for j in range(dim))]))
        limits.append(r**2 / 2)
    one_sided = vstack(lines)
    total = 0.0
    for j in range(dim):
        goal = np.concatenate([mass * scores[:, j], np.zeros(n * dim)])
        goal[n * (1 + j) : n * (2 + j)] = mass
        matrix, limit = vstack([one_sided, -one_sided]), np.concatenate(2 * limits)
        found = linprog(-goal, matrix, limit, bounds=(-1, 1), method="highs")
        assert found.status == 0, found.message  # 0 is feasible, and the unknowns are bounded
        total -= found.fun
    return float(total)
