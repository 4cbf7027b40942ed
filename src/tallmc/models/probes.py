"""Means of ‖Cᵀr_i‖² by random probes, for models without a closed form.

    ‖Cᵀr‖² = E (ζᵀCᵀr)²,   ζ ~ N(0, I)

With a few ζ per position, no row needs the O(d²) product Cᵀr_i. The probes are fixed, so the
result is reproducible.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from ..core.linear_maps import AbstractLinearMap
from ..core.random import new_key, standard_normal

_N_POSITIONS = 16
_N_DIRECTIONS = 4

Project = Callable[[Float[Array, " d"], Float[Array, "p d"]], Float[Array, "p n"]]
"""(Cζ)ᵀr_i(θ) of every row, from a position θ and directions Cζ."""


def mean_square_projections(
    project: Project, positions: Float[Array, "k d"], metric: AbstractLinearMap, n_rows: int
) -> Float[Array, " n"]:
    """The mean of ((Cζ)ᵀr_i(θ))² over the positions and a few ζ at each."""

    def add_position(
        total: Float[Array, " n"], probe: tuple[Array, Array]
    ) -> tuple[Float[Array, " n"], None]:
        position, key = probe
        shape = _N_DIRECTIONS, metric.n_columns(len(position))
        normal = standard_normal(key, shape, position.dtype)
        return total + jnp.mean(project(position, metric.push(normal)) ** 2, axis=0), None

    keys = jax.random.split(new_key(0), len(positions))
    empty = jnp.zeros(n_rows, positions.dtype)
    total, _ = lax.scan(add_position, empty, (positions, keys))
    return total / len(positions)


def gaussian_positions(
    centre: Float[Array, " d"], spread: AbstractLinearMap, width: Float[Array, ""]
) -> Float[Array, "k d"]:
    """Positions centre + width · Fξ, ξ standard normal, F the `spread`."""
    shape = _N_POSITIONS, spread.n_columns(len(centre))
    normal = standard_normal(new_key(1), shape, centre.dtype)
    return centre + width * spread.push(normal)
