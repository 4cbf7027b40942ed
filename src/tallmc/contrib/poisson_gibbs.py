"""Poisson-minibatch Gibbs: exact Gibbs sampling of a Potts model that reads a few neighbours.

    π(x) ∝ exp(Σ_{i<j} φ_ij(x)),   φ_ij = A_ij 1[x_i = x_j],   A_ij ≥ 0,   x_i ∈ {0, …, D − 1}

To update x_i, Zhang and De Sa (2019, algorithm 2) draw auxiliary counts given x,

    s_j ~ Poisson(λ A_ij/L + φ_ij(x)),   L = max_i Σ_j A_ij.

In the joint law of x and s the factors exp(φ_ij) cancel, so that

    p(x_i = v | s, others) ∝ Π_j (1 + (L/λ) 1[x_j = v])^{s_j},

and only neighbours with s_j > 0 enter. The marginal law of x is π for every λ: the update is exact.
The counts are thinned from Poisson((1 + λ/L) Σ_j A_ij) candidates, which are j in proportion to
A_ij; j is kept with probability (λ/L + 1[x_i = x_j])/(λ/L + 1). An update reads at most λ + L
neighbours on average, however many there are. The larger λ, the closer a step is to plain Gibbs.

Candidates beyond a number that is exceeded once in 10¹² updates are left out.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, ArrayLike, Float, Int, PRNGKeyArray

from .._core.arrays import Scalar, check_numeric
from .._core.errors import InvalidInput, check_int, check_number
from .._core.random import new_key

_EXCEEDED = 1e-12


class PoissonGibbs(eqx.Module):
    """The update of single sites of a Potts model."""

    cumulative: Float[Array, "n n"]  # Σ_{k ≤ j} A_ik
    largest: Scalar  # L
    expected: Scalar  # λ
    n_states: int = eqx.field(static=True)
    most: int = eqx.field(static=True)  # Candidates that are drawn

    @classmethod
    def of(
        cls, interactions: Float[np.ndarray, "n n"], n_states: int, expected: float
    ) -> PoissonGibbs:
        from scipy.stats import poisson  # a slow import

        cumulative = np.cumsum(interactions, axis=1)
        largest = cumulative[:, -1].max()
        most = max(1, int(poisson.isf(_EXCEEDED, largest + expected)))
        return cls(
            cumulative=jnp.asarray(cumulative),
            largest=jnp.asarray(largest),
            expected=jnp.asarray(expected),
            n_states=n_states,
            most=most,
        )

    def candidates(
        self, site: Int[Array, ""], count: Int[Array, ""], uniforms: Float[Array, " k"]
    ) -> Int[Array, " k"]:
        """Neighbours in proportion to A_ij; those from number `count` on are −1."""
        row = self.cumulative[site]
        found = jnp.searchsorted(row, uniforms * row[-1], side="right")
        return jnp.where(jnp.arange(self.most) < count, jnp.minimum(found, len(row) - 1), -1)

    def keeping(self, equal: Array) -> Array:
        """The probability to keep a candidate with an equal or with another state."""
        share = self.expected / self.largest
        return (share + equal) / (share + 1)

    def log_weights(
        self, states: Int[Array, " n"], neighbours: Int[Array, " k"], kept: Array
    ) -> Float[Array, " D"]:
        """Log p(x_i = v | s, others), up to a constant."""
        gain = jnp.log1p(self.largest / self.expected)
        votes = jax.nn.one_hot(states[neighbours], self.n_states) * kept[:, None]
        return gain * jnp.sum(votes, axis=0)

    def update(
        self, states: Int[Array, " n"], key: PRNGKeyArray
    ) -> tuple[Int[Array, " n"], Int[Array, ""]]:
        """The states after an update of a random site, and the neighbours that it read."""
        keys = jax.random.split(key, 5)
        site = jax.random.randint(keys[0], (), 0, len(states))
        rate = (1 + self.expected / self.largest) * self.cumulative[site, -1]
        count = jnp.minimum(jax.random.poisson(keys[1], rate), self.most)
        uniforms = jax.random.uniform(keys[2], (2, self.most), self.cumulative.dtype)
        neighbours = self.candidates(site, count, uniforms[0])
        equal = (states[neighbours] == states[site]).astype(rate.dtype)
        kept = (neighbours >= 0) & (uniforms[1] < self.keeping(equal))
        drawn = jax.random.categorical(keys[3], self.log_weights(states, neighbours, kept))
        return states.at[site].set(drawn.astype(states.dtype)), count


@eqx.filter_jit
def _run(
    kernel: PoissonGibbs, start: Int[Array, "c n"], keys: Array, n_draws: int, thin: int
) -> tuple[Int[Array, "c t n"], Float[Array, ""]]:
    def of_chain(states: Array, key: PRNGKeyArray) -> tuple[Array, Array]:
        def draw(states: Array, key: PRNGKeyArray) -> tuple[Array, tuple[Array, Array]]:
            keys = jax.random.split(key, thin)
            states, counts = lax.scan(lambda at, key: kernel.update(at, key), states, keys)
            return states, (states, jnp.mean(counts))

        return lax.scan(draw, states, jax.random.split(key, n_draws))[1]

    draws, counts = jax.vmap(of_chain)(start, keys)
    return draws, jnp.mean(counts)


def potts_gibbs(
    interactions: ArrayLike,
    n_states: int,
    *,
    expected: float | None = None,
    chains: int = 4,
    n_draws: int = 1000,
    thin: int | None = None,
    seed: int = 0,
) -> tuple[Int[np.ndarray, "chains draws n"], float]:
    """Draw from a Potts model by updates that read a few neighbours. Exact.

    **Arguments:**

    - `interactions`: A, symmetric with entries ≥ 0; its diagonal is not used.
    - `n_states`: D.
    - `expected`: λ; by default L². An update reads at most λ + L neighbours on average.
    - `chains`, `n_draws`, `seed`: as in `tallmc.sample`. Chains start at random states.
    - `thin`: updates per draw; by default one per site.

    **Returns:** the states, and the mean number of neighbours read per update.

    >>> states, read = potts_gibbs(0.1 * np.ones((20, 20)), 3, n_draws=5)
    >>> states.shape
    (4, 5, 20)
    """
    a = np.array(check_numeric("interactions", interactions), np.float64)
    if a.ndim != 2 or len(a) < 2 or a.shape != a.shape[::-1] or not np.allclose(a, a.T):
        raise InvalidInput("interactions", "be a symmetric matrix", f"shape {a.shape}")
    np.fill_diagonal(a, 0)
    if not np.isfinite(a).all() or (a < 0).any() or not a.any():
        cure = "Add a constant to the log factors: the law stays the same."
        raise InvalidInput("interactions", "be finite, >= 0 and not all zero", a.min(), cure)
    n_states, chains = check_int("n_states", n_states, 2), check_int("chains", chains, 1)
    n_draws, seed = check_int("n_draws", n_draws, 1), check_int("seed", seed, 0, 2**32 - 1)
    largest = float(a.sum(axis=1).max())
    expected = largest**2 if expected is None else expected
    check_number("expected", expected, 0, low_open=True)
    thin = len(a) if thin is None else check_int("thin", thin, 1)
    kernel = PoissonGibbs.of(a, n_states, expected)
    start_key, key = jax.random.split(new_key(seed))
    start = jax.random.randint(start_key, (chains, len(a)), 0, n_states)
    draws, read = _run(kernel, start, jax.random.split(key, chains), n_draws, thin)
    return np.asarray(draws), float(read)
