"""The exact stationary law of Langevin dynamics with subsampled gradients on a Gaussian target.

On a linear regression a residual is affine, r_i(θ) = B_i(θ − m) + c_i with m the posterior mean, so the chain is a random affine
recursion. With A = I − (ε/2)H its stationary covariance solves

    Σ = AΣAᵀ + εI + (ε²/4) E Cov(∇f̂ | θ),    Cov(∇f̂ | θ) = Σ_i a_i r_i r_iᵀ − b (Σ r_i)(Σ r_i)ᵀ

which is linear in Σ because E r_i r_iᵀ = B_i Σ B_iᵀ + c_i c_iᵀ. With replacement a_i = 1/(n p_i), b = 1/n; without,
a_i = N(N − n)/(n(N − 1)), b = a_i/N; with all rows both are zero. The lag-1 covariance is AΣ.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from problems import exact_posterior, residual_matrix
from tallmc._loop import advance, start_run
from tallmc.subsample.full import AllRowsSelection
from tallmc.subsample.uniform import WithoutReplacement


class Law(NamedTuple):
    mean: np.ndarray
    covariance: np.ndarray
    lag1: np.ndarray


def noise_coefficients(selection, n_rows: int) -> tuple[np.ndarray, float]:
    if isinstance(selection, AllRowsSelection):
        return np.zeros(n_rows), 0.0
    n = selection.size
    if isinstance(selection, WithoutReplacement):
        a = n_rows * (n_rows - n) / (n * (n_rows - 1))
        return np.full(n_rows, a), a / n_rows
    return 1 / (n * selection.law.probabilities()), 1 / n


def exact_law(kernel, step_size: float) -> Law:
    gradient = kernel.gradient
    mean, covariance = exact_posterior(gradient.posterior)
    n_rows, d = gradient.posterior.n_rows, len(mean)
    c = residual_matrix(gradient, jnp.asarray(mean))
    shifted = [residual_matrix(gradient, jnp.asarray(mean + unit)) - c for unit in np.eye(d)]
    B = np.stack(shifted, axis=2)  # (N, d, d)
    a, b = noise_coefficients(kernel.selection, n_rows)
    A = np.eye(d) - step_size / 2 * np.linalg.inv(covariance)
    quadratic = np.einsum("i,ijk,ilm->jlkm", a, B, B) - b * np.einsum("jk,lm->jlkm", B.sum(0), B.sum(0))
    operator = np.kron(A, A) + step_size**2 / 4 * quadratic.reshape(d * d, d * d)
    spectral_radius = np.abs(np.linalg.eigvals(operator)).max()
    assert spectral_radius < 1, f"the chain has no second moment: spectral radius {spectral_radius:.3f}"
    constant = step_size * np.eye(d) + step_size**2 / 4 * ((c.T * a) @ c - b * np.outer(c.sum(0), c.sum(0)))
    stationary = np.linalg.solve(np.eye(d * d) - operator, constant.ravel()).reshape(d, d)
    return Law(mean, stationary, A @ stationary)


def run_chains(kernel, *, chains: int, steps: int, burn_in: int, start, seed: int = 0) -> np.ndarray:
    """Positions (chains, steps, d) after the burn-in."""
    root = jax.random.key(seed)
    keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(root, jnp.arange(chains))
    positions = jnp.broadcast_to(jnp.asarray(start), (chains, kernel.gradient.posterior.dim))
    state = start_run(kernel, keys, positions)
    stop, burn_in, one = jnp.int32(burn_in + steps), jnp.int32(burn_in), jnp.int32(1)
    _, recorded = advance(kernel, keys, state, jnp.int32(0), stop, burn_in, one, steps)
    return np.asarray(recorded.positions).transpose(1, 0, 2)


def law_z(kernel, law: Law, *, chains: int = 1024, steps: int = 1000, seed: int = 0) -> dict[str, float]:
    """Largest |z| of mean, covariance and lag-1 covariance of a long run against a law; errors from the spread between chains."""
    centred = run_chains(kernel, chains=chains, steps=steps, burn_in=200, start=law.mean, seed=seed) - law.mean
    estimates = {
        "mean": (centred.mean(1), np.zeros_like(law.mean)),
        "covariance": (np.einsum("cti,ctj->cij", centred, centred) / steps, law.covariance),
        "lag1": (np.einsum("cti,ctj->cij", centred[:, 1:], centred[:, :-1]) / (steps - 1), law.lag1),
    }
    return {name: _largest_z(per_chain, truth) for name, (per_chain, truth) in estimates.items()}


def _largest_z(per_chain: np.ndarray, truth: np.ndarray) -> float:
    error = per_chain.std(0, ddof=1) / np.sqrt(len(per_chain))
    return float(np.max(np.abs(per_chain.mean(0) - truth) / error))
