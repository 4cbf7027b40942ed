"""Smooth functions of one or two columns, as columns of a design.

    f(x) = b(x)ᵀT (a, u),   u_j ~ N(0, σ²)

b is a basis of splines with the penalty βᵀSβ = ∫ f''². T rotates it so that the penalty is ‖u‖², as
in smooth2random of mgcv (Wood, 2017, section 5.8). The free columns a, without a penalty, are x
itself, standardised. The others are orthogonal over the rows to 1 and to x and to each other, and
their variances have the sum 1: σ is the typical size of what is not straight in f.

    cr  natural cubic splines, by their values at knots (section 5.3.1); straight beyond the knots
    cc  the same on a circle, whose first knot is the last one (section 5.3.2)
    tp  thin plates of two columns, truncated to the k largest eigenvalues (section 5.5)
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Float

_PLATE_KNOTS = 200
_INVISIBLE = 1e-10
"""Share of the variance below which a column is left out: the rows do not show it."""


class SmoothBasis(NamedTuple):
    """b and T, as numbers that can be compared, hashed and written as JSON."""

    kind: str
    """cr, cc or tp."""
    knots: tuple[tuple[float, ...], ...]
    """Points: one number each, or two for tp."""
    transform: tuple[tuple[float, ...], ...]
    """T."""
    n_free: int

    @property
    def n_columns(self) -> int:
        return len(self.transform[0])

    @classmethod
    def of(
        cls, kind: str, points: Float[np.ndarray, "n v"], k: int, ends: tuple[float, float]
    ) -> SmoothBasis:
        """The basis of dimension k for these points; `ends` are the first and last knot."""
        if kind == "tp":
            chosen = np.unique(points, axis=0)
            order = np.random.default_rng(0).permutation(len(chosen))
            knots = chosen[order[: max(_PLATE_KNOTS, 3 * k)]]
            penalised, null = _plate(knots, k)
            kind_knots = knots
        else:
            inner = np.quantile(np.unique(points), np.linspace(0, 1, k))[1:-1]
            kind_knots = np.array([ends[0], *inner, ends[1]])[:, None]
            _, _, penalty = _spline(kind, tuple(kind_knots[:, 0]))
            null = np.ones((len(penalty), 1))
            if kind == "cr":
                null = np.column_stack([null, kind_knots[:, 0]])
            values, vectors = np.linalg.eigh(penalty)
            kept = slice(null.shape[1], None)
            penalised = vectors[:, kept] / np.sqrt(values[kept])
        as_it_is = _tuples(np.eye(len(null)))
        basis = cls(kind, _tuples(kind_knots), as_it_is, 0).columns(list(points.T))
        free, wiggly = basis @ null, basis @ penalised
        penalised = penalised - null @ np.linalg.lstsq(free, wiggly, rcond=None)[0]
        shares, rotation = np.linalg.eigh(np.cov((basis @ penalised).T, ddof=0))
        shares, rotation = shares[::-1], rotation[:, ::-1]
        kept = slice(0, int((shares > _INVISIBLE * shares.sum()).sum()))
        penalised = penalised @ rotation[:, kept] / np.sqrt(shares[kept].sum())
        means, sds = free[:, 1:].mean(axis=0), free[:, 1:].std(axis=0)
        straight = (null[:, 1:] - null[:, :1] * means) / sds
        transform = np.column_stack([straight, penalised])
        return cls(kind, _tuples(kind_knots), _tuples(transform), straight.shape[1])

    def columns(self, values: Sequence[Any]) -> Any:
        """b(x)ᵀT, (..., columns), from the values of each variable; NumPy or inside a program."""
        xp = jnp if isinstance(values[0], jax.Array) else np
        dtype = jnp.result_type(values[0]) if xp is jnp else np.float64
        transform = np.asarray(self.transform)
        if self.kind == "tp":
            knots = np.asarray(self.knots)
            n = len(knots)
            # One knot after the other: rows × knots would not fit into memory.
            first, second = values
            plane = xp.asarray(transform[n:], dtype)
            total = plane[0] + first[..., None] * plane[1] + second[..., None] * plane[2]

            def add(total: Any, at: Any) -> tuple[Any, None]:
                knot, row = at
                square = (first - knot[0]) ** 2 + (second - knot[1]) ** 2
                return total + _plate_height(square, xp)[..., None] * row, None

            if xp is jnp:
                each = jnp.asarray(knots, dtype), jnp.asarray(transform[:n], dtype)
                return lax.scan(add, total, each)[0]
            for knot_and_row in zip(knots, transform[:n], strict=True):
                total, _ = add(total, knot_and_row)
            return total
        of_values, of_bends, _ = _spline(self.kind, tuple(knot for (knot,) in self.knots))
        heights, bends = (xp.asarray(part @ transform, dtype) for part in (of_values, of_bends))
        knots = xp.asarray([knot for (knot,) in self.knots], dtype)
        (x,) = values
        if self.kind == "cc":
            inside = knots[0] + xp.mod(x - knots[0], knots[-1] - knots[0])
        else:
            inside = xp.clip(x, knots[0], knots[-1])
        j = xp.clip(xp.searchsorted(knots, inside, side="right") - 1, 0, len(knots) - 2)
        h, right, left = knots[j + 1] - knots[j], knots[j + 1] - inside, inside - knots[j]
        weights = (
            (right / h, heights[j]),
            (left / h, heights[j + 1]),
            ((right**3 / h - h * right) / 6, bends[j]),
            ((left**3 / h - h * left) / 6, bends[j + 1]),
        )
        total = sum(weight[..., None] * rows for weight, rows in weights)
        if self.kind == "cr":
            slope = (heights[j + 1] - heights[j]) / h[..., None]
            slope = slope + ((h - 3 * right**2 / h) / 6)[..., None] * bends[j]
            slope = slope + ((3 * left**2 / h - h) / 6)[..., None] * bends[j + 1]
            total = total + (x - inside)[..., None] * slope
        return total


def _tuples(matrix: np.ndarray) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(map(float, row)) for row in matrix)


@functools.lru_cache(maxsize=64)
def _spline(kind: str, knots: tuple[float, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Values and second derivatives at the knots from coefficients, and the penalty S."""
    h, k = np.diff(knots), len(knots)
    if kind == "cr":
        at = np.eye(k)
        inner, d = np.zeros((k - 2, k - 2)), np.zeros((k - 2, k))
        for i in range(k - 2):
            d[i, i : i + 3] = 1 / h[i], -1 / h[i] - 1 / h[i + 1], 1 / h[i + 1]
            inner[i, i] = (h[i] + h[i + 1]) / 3
            if i < k - 3:
                inner[i, i + 1] = inner[i + 1, i] = h[i + 1] / 6
        solved = np.linalg.solve(inner, d)
        return at, np.pad(solved, ((1, 1), (0, 0))), d.T @ solved
    n = k - 1
    inner, d = np.zeros((n, n)), np.zeros((n, n))
    for i in range(n):
        before, after = (i - 1) % n, (i + 1) % n
        inner[i, i] += (h[before] + h[i]) / 3
        inner[i, before] += h[before] / 6
        inner[i, after] += h[i] / 6
        d[i, i] -= 1 / h[before] + 1 / h[i]
        d[i, before] += 1 / h[before]
        d[i, after] += 1 / h[i]
    bends, round_trip = np.linalg.solve(inner, d), np.append(np.arange(n), 0)
    return np.eye(n)[round_trip], bends[round_trip], d.T @ bends


def _plate(knots: Float[np.ndarray, "m 2"], k: int) -> tuple[np.ndarray, np.ndarray]:
    """Coefficients of the penalised columns, with penalty I, and of 1, x and y."""
    m = len(knots)
    squares = np.sum((knots[:, None] - knots[None]) ** 2, axis=-1)
    values, vectors = np.linalg.eigh(_plate_height(squares, np))
    order = np.argsort(-np.abs(values))[:k]
    values, vectors = values[order], vectors[:, order]
    plane = np.column_stack([np.ones(m), knots])
    q = np.linalg.qr(vectors.T @ plane, mode="complete")[0][:, 3:]
    penalty = (q.T * values) @ q
    eigenvalues, rotation = np.linalg.eigh((penalty + penalty.T) / 2)
    penalised = np.zeros((m + 3, len(eigenvalues)))
    penalised[:m] = vectors @ q @ rotation / np.sqrt(eigenvalues)
    return penalised, np.eye(m + 3)[:, m:]


def _plate_height(squares: Any, xp: Any) -> Any:
    """r² log r, up to a factor."""
    return 0.5 * squares * xp.log(xp.where(squares > 0, squares, 1))


class SmoothEffect(NamedTuple):
    """A smooth term of a fit: its columns, and where its coefficients are in a position."""

    name: str
    variables: tuple[str, ...]
    basis: SmoothBasis
    places: tuple[int, ...]
    """Of the coefficients of all its columns; the first may be that of a constant."""
    n_wiggly: int
    scale: float
    """What turns values of the model into the units of the response, or of its link."""

    @property
    def wiggly(self) -> tuple[int, ...]:
        """The places of the penalised coefficients, which come last."""
        return self.places[len(self.places) - self.n_wiggly :]

    def grid(self, points: int) -> Float[np.ndarray, "n v"]:
        """Evenly spaced points between the first and the last knot, or on their rectangle."""
        knots = np.asarray(self.basis.knots)
        ranges = zip(knots.min(axis=0), knots.max(axis=0), strict=True)
        axes = [np.linspace(low, high, points) for low, high in ranges]
        return np.stack([axis.ravel() for axis in np.meshgrid(*axes, indexing="ij")], axis=1)

    def columns(self, grid: Float[np.ndarray, "n v"]) -> Float[np.ndarray, "n c"]:
        """Its columns at some points; a term s(x, by=z) is shown for z = 1."""
        found = self.basis.columns(list(grid.T))
        n_constant = len(self.places) - self.basis.n_columns
        return np.column_stack([np.ones((len(grid), n_constant)), found])
