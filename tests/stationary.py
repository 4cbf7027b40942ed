"""The exact stationary law of dynamics with subsampled gradients on a Gaussian target.

On a linear regression a residual is affine, r_i(θ) = B_i(θ − m) + c_i with m the posterior mean, and so are the dynamics in their
joint state s = (θ − m, the rest): s' = As + Bg + Nξ. With g = H(θ − m) + noise, its covariance S solves the linear equation

    S = MSMᵀ + NNᵀ + B E Cov(g | θ) Bᵀ,    M = A + BHP,    Cov(g | θ) = Σ_i a_i r_i r_iᵀ − b (Σ r_i)(Σ r_i)ᵀ

because E r_i r_iᵀ = B_i PSPᵀ B_iᵀ + c_i c_iᵀ, where P takes out of s the point at which the gradient is asked for.
With replacement a_i = 1/(n p_i), b = 1/n; without,
a_i = N(N − n)/(n(N − 1)), b = a_i/N; with all rows both are zero. The lag-1 covariance is MS.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from problems import exact_posterior, residual_matrix
from tallmc._loop import advance, start_run
from tallmc.dynamics import (
    HamiltonianDynamics,
    LangevinDynamics,
    LeimkuhlerMatthewsDynamics,
    RiemannianHamiltonianDynamics,
    RiemannianLangevinDynamics,
    SplittingDynamics,
    UnderdampedDynamics,
)
from tallmc.subsample.full import AllRowsSelection
from tallmc.subsample.uniform import WithoutReplacement


class Law(NamedTuple):
    mean: np.ndarray
    covariance: np.ndarray
    lag1: np.ndarray


class Recursion(NamedTuple):
    """s' = As + Bg(Ps) + Nξ, and how often the momentum is drawn afresh (0: never)."""

    A: np.ndarray
    B: np.ndarray
    N: np.ndarray
    P: np.ndarray | None = None
    """Where the gradient is taken; None: at θ."""
    refresh: int = 0


def recursion(dynamics, step_size: float, d: int) -> Recursion:
    """The papers' formulas, written out once more."""
    one, zero, h = np.eye(d), np.zeros((d, d)), step_size / 2
    C = np.asarray(dynamics.geometry.push(jnp.eye(d))).T if hasattr(dynamics, "geometry") else one
    match dynamics:
        case RiemannianLangevinDynamics():  # the Fisher metric of a linear regression is constant
            R = np.asarray(dynamics.metric.inverse_root(jnp.zeros(d)))
            return Recursion(one, -h * R @ R.T, np.sqrt(step_size) * R)
        case RiemannianHamiltonianDynamics():
            R, gamma = np.asarray(dynamics.metric.inverse_root(jnp.zeros(d))), float(dynamics.friction)
            A = np.block([[one, h * R], [zero, one - h * gamma * R @ R.T]])
            return Recursion(A, np.vstack([zero, -h * R.T]), np.vstack([zero, np.sqrt(step_size * gamma) * R]))
        case LangevinDynamics():
            return Recursion(one, -h * C @ C.T, np.sqrt(step_size) * C)
        case LeimkuhlerMatthewsDynamics():
            half = np.sqrt(step_size) / 2 * C
            return Recursion(np.block([[one, half], [zero, zero]]), np.vstack([-h * C @ C.T, zero]), np.vstack([half, one]))
        case UnderdampedDynamics():
            gamma = float(dynamics.friction)
            A = np.block([[one, h * C], [zero, (1 - h * gamma) * one]])
            return Recursion(A, np.vstack([zero, -h * C.T]), np.vstack([zero, np.sqrt(2 * gamma * h) * one]))
        case SplittingDynamics():
            c = np.exp(-float(dynamics.friction) * h)
            s, A_half = np.sqrt(1 - c**2), h / 2 * C
            kick = np.vstack([zero, -h * C.T])
            drift_and_damp = np.block([[one, (1 + c) * A_half], [zero, c * one]])
            return Recursion(drift_and_damp, drift_and_damp @ kick, np.vstack([s * A_half, s * one]))
        case HamiltonianDynamics():
            c = np.exp(-float(dynamics.friction) * h)
            half = np.block([[one, h / 2 * C], [zero, one]])
            damp = half @ np.block([[one, zero], [zero, c * one]])
            kick = half @ np.vstack([zero, -h / 2 * (1 + c) * C.T])
            noise = half @ np.vstack([zero, np.sqrt(1 - c**2) * one])
            return Recursion(damp @ half, kick, noise, half[:d], dynamics.length)
    raise TypeError(f"no law for {type(dynamics).__name__}")


def noise_coefficients(selection, n_rows: int) -> tuple[np.ndarray, float]:
    if isinstance(selection, AllRowsSelection):
        return np.zeros(n_rows), 0.0
    n = selection.size
    if isinstance(selection, WithoutReplacement):
        a = n_rows * (n_rows - n) / (n * (n_rows - 1))
        return np.full(n_rows, a), a / n_rows
    return 1 / (n * selection.law.probabilities()), 1 / n


def gradient_covariance(kernel) -> Callable[[np.ndarray], np.ndarray]:
    """E Cov(g | θ) as a function of the covariance of θ."""
    gradient = kernel.gradient
    mean, _ = exact_posterior(gradient.posterior)
    c = residual_matrix(gradient, jnp.asarray(mean))
    B = np.stack([residual_matrix(gradient, jnp.asarray(mean + unit)) - c for unit in np.eye(len(mean))], axis=2)
    a, b = noise_coefficients(kernel.selection, gradient.posterior.n_rows)

    def covariance(of_position: np.ndarray) -> np.ndarray:
        second = np.einsum("i,ijk,kl,iml->jm", a, B, of_position, B) + (c.T * a) @ c
        return second - b * (B.sum(0) @ of_position @ B.sum(0).T + np.outer(c.sum(0), c.sum(0)))

    return covariance


def exact_law(kernel, step_size: float) -> Law:
    """The law of the positions; with a refreshed momentum, at the ends of trajectories."""
    mean, covariance = exact_posterior(kernel.gradient.posterior)
    d, noise_given = len(mean), gradient_covariance(kernel)
    A, B, N, P, refresh = recursion(kernel.dynamics, step_size, d)
    k = len(A)
    P = np.eye(d, k) if P is None else P
    M = A + B @ np.linalg.inv(covariance) @ P

    def one_step(S: np.ndarray) -> np.ndarray:
        return M @ S @ M.T + N @ N.T + B @ noise_given(P @ S @ P.T) @ B.T

    def period(S: np.ndarray) -> np.ndarray:
        if not refresh:
            return one_step(S)
        S = np.block([[S[:d, :d], np.zeros((d, d))], [np.zeros((d, d)), np.eye(d)]])
        for _ in range(refresh):
            S = one_step(S)
        return S

    constant = period(np.zeros((k, k)))
    basis = np.eye(k * k).reshape(k * k, k, k)
    operator = np.stack([(period(unit) - constant).ravel() for unit in basis], axis=1)
    spectral_radius = np.abs(np.linalg.eigvals(operator)).max()
    assert spectral_radius < 1, f"the chain has no second moment: spectral radius {spectral_radius:.3f}"
    S = np.linalg.solve(np.eye(k * k) - operator, constant.ravel()).reshape(k, k)
    forget = np.diag([1.0] * d + [0.0] * (k - d)) if refresh else np.eye(k)
    propagate = np.linalg.matrix_power(M, max(refresh, 1)) @ forget
    return Law(mean, S[:d, :d], (propagate @ S)[:d, :d])


def run_chains(kernel, *, chains: int, steps: int, burn_in: int, start, seed: int = 0, thin: int = 1) -> np.ndarray:
    """Positions (chains, steps, d), one every `thin` steps after the burn-in."""
    root = jax.random.key(seed)
    keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(root, jnp.arange(chains))
    positions = jnp.broadcast_to(jnp.asarray(start), (chains, kernel.posterior.dim))
    state = start_run(kernel, keys, positions)
    first, stop, burn_in, thin = (jnp.int32(v) for v in (0, burn_in + steps * thin, burn_in, thin))
    _, recorded = advance(kernel, keys, state, first, stop, burn_in, thin, steps)
    return np.asarray(recorded.positions).transpose(1, 0, 2)


def law_z(kernel, law: Law, *, chains: int = 1024, steps: int = 600, seed: int = 0) -> dict[str, float]:
    """Largest |z| of mean, covariance and lag-1 covariance of a long run against a law; errors from the spread between chains."""
    thin = getattr(kernel.dynamics, "length", 1)
    centred = run_chains(kernel, chains=chains, steps=steps, burn_in=200 * thin, start=law.mean, seed=seed, thin=thin) - law.mean
    estimates = {
        "mean": (centred.mean(1), np.zeros_like(law.mean)),
        "covariance": (np.einsum("cti,ctj->cij", centred, centred) / steps, law.covariance),
        "lag1": (np.einsum("cti,ctj->cij", centred[:, 1:], centred[:, :-1]) / (steps - 1), law.lag1),
    }
    return {name: largest_z(per_chain, truth) for name, (per_chain, truth) in estimates.items()}


def largest_z(per_chain: np.ndarray, truth: np.ndarray) -> float:
    error = per_chain.std(0, ddof=1) / np.sqrt(len(per_chain))
    return float(np.max(np.abs(per_chain.mean(0) - truth) / error))
