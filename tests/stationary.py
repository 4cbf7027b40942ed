"""The exact stationary law of dynamics with subsampled gradients on a Gaussian target.

On a linear regression the residuals are affine, r_i(θ) = B_i(θ − m) + c_i, where m is the posterior
mean. The dynamics are affine in the joint state s = (θ − m, auxiliary variables):
s' = As + Bg + Nξ. With g = H(θ − m) + noise, the covariance S of s solves the linear equation

    S = MSMᵀ + NNᵀ + B E Cov(g | θ) Bᵀ,    M = A + BHP,
    Cov(g | θ) = Σ_i a_i r_i r_iᵀ − Σ_h b_h (Σ_{i∈h} r_i)(Σ_{i∈h} r_i)ᵀ

because E r_i r_iᵀ = B_i PSPᵀ B_iᵀ + c_i c_iᵀ. P maps s to the point at which the gradient is
evaluated. All rows form one stratum h unless the subsample is stratified. With replacement,
a_i = 1/(n p_i) and b = 1/n. Without replacement, a_i = N(N − n)/(n(N − 1)) and b = a_i/N. With n_h
draws from the N_h rows of each stratum, a_i = N_h/n_h and b_h = 1/n_h, so that
Cov(g | θ) = Σ_h (N_h²/n_h) C_h. With all rows, a_i = b = 0. The lag-1 covariance is MS.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from laws import Recursion, recursion
from problems import exact_posterior, residual_matrix
from tallmc._engine.kernel import BoundKernel
from tallmc._engine.run import Run
from tallmc.subsample.stratified import StratifiedSelection
from tallmc.subsample.uniform import AllRowsSelection, WithoutReplacement


class Law(NamedTuple):
    mean: np.ndarray
    covariance: np.ndarray
    lag1: np.ndarray


class NoiseCoefficients(NamedTuple):
    a: np.ndarray
    """a_i, (N,)."""
    b: np.ndarray
    """b_h, (H,)."""
    strata: np.ndarray
    """(H, N): one where row i is in stratum h, else zero."""


def noise_coefficients(selection, n_rows: int) -> NoiseCoefficients:
    if isinstance(selection, StratifiedSelection):
        draws = np.asarray(selection.draws, float)
        strata = np.zeros((len(draws), n_rows))
        rows = np.asarray(selection.rows_by_stratum)
        for h, first, count in zip(
            *map(np.asarray, (selection.stratum, selection.first, selection.count)), strict=True
        ):
            strata[h, rows[first : first + count]] = 1
        return NoiseCoefficients((strata.sum(axis=1) / draws) @ strata, 1 / draws, strata)
    whole = np.ones((1, n_rows))
    if isinstance(selection, AllRowsSelection):
        return NoiseCoefficients(np.zeros(n_rows), np.zeros(1), whole)
    n = selection.size
    if isinstance(selection, WithoutReplacement):
        a = n_rows * (n_rows - n) / (n * (n_rows - 1))
        return NoiseCoefficients(np.full(n_rows, a), np.array([a / n_rows]), whole)
    a = 1 / (n * selection.stream.probabilities())
    return NoiseCoefficients(a, np.array([1 / n]), whole)


def gradient_covariance(bound: BoundKernel) -> Callable[[np.ndarray], np.ndarray]:
    """E Cov(g | θ) as a function of the covariance of θ."""
    gradient, rows = bound.composition.gradient, bound.rows
    mean, _ = exact_posterior(bound.posterior)
    c = residual_matrix(gradient, rows, jnp.asarray(mean))
    moved = [
        residual_matrix(gradient, rows, jnp.asarray(mean + unit)) for unit in np.eye(len(mean))
    ]
    B = np.stack([of_unit - c for of_unit in moved], axis=2)
    a, b, strata = noise_coefficients(bound.composition.selection, rows.n_rows)
    B_sums, c_sums = np.einsum("hi,ijk->hjk", strata, B), strata @ c

    def covariance(of_position: np.ndarray) -> np.ndarray:
        second = np.einsum("i,ijk,kl,iml->jm", a, B, of_position, B) + (c.T * a) @ c
        squares = np.einsum("h,hjk,kl,hml->jm", b, B_sums, of_position, B_sums)
        return second - squares - (c_sums.T * b) @ c_sums

    return covariance


def fixed_point(period: Callable[[np.ndarray], np.ndarray], k: int) -> np.ndarray:
    """S = period(S), for an affine map of k×k matrices that is a contraction."""
    constant = period(np.zeros((k, k)))
    basis = np.eye(k * k).reshape(k * k, k, k)
    operator = np.stack([(period(unit) - constant).ravel() for unit in basis], axis=1)
    spectral_radius = np.abs(np.linalg.eigvals(operator)).max()
    assert spectral_radius < 1, (
        f"the chain has no second moment: spectral radius {spectral_radius:.3f}"
    )
    return np.linalg.solve(np.eye(k * k) - operator, constant.ravel()).reshape(k, k)


def exact_law(bound: BoundKernel, step_size: float, steps: Recursion | None = None) -> Law:
    """The law of the positions; at the ends of trajectories if the momentum is refreshed.

    `steps` is the recursion of dynamics that `recursion` does not know.
    """
    mean, covariance = exact_posterior(bound.posterior)
    d, noise_given = len(mean), gradient_covariance(bound)
    A, B, N, P, refresh = steps or recursion(bound.composition.dynamics, step_size, d)
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

    S = fixed_point(period, k)
    forget = np.diag([1.0] * d + [0.0] * (k - d)) if refresh else np.eye(k)
    propagate = np.linalg.matrix_power(M, max(refresh, 1)) @ forget
    return Law(mean, S[:d, :d], (propagate @ S)[:d, :d])


def run_chains(
    bound: BoundKernel,
    *,
    chains: int,
    steps: int,
    burn_in: int,
    start,
    seed: int = 0,
    thin: int = 1,
) -> np.ndarray:
    """Positions (chains, steps, d), one every `thin` steps after the burn-in."""
    keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(jax.random.key(seed), jnp.arange(chains))
    positions = jnp.broadcast_to(jnp.asarray(start), (chains, bound.posterior.dim))
    run = Run(bound, keys, positions, burn_in, thin, steps)
    run.run_to(steps)
    return run.positions()


def law_z(
    bound: BoundKernel, law: Law, *, chains: int = 1024, steps: int = 600, seed: int = 0
) -> dict[str, float]:
    """Largest |z| of mean, covariance and lag-1 covariance of a long run against a law.

    Standard errors come from the spread between chains.
    """
    thin = int(getattr(bound.composition.dynamics, "length", 1))
    options = {"chains": chains, "steps": steps, "burn_in": 200 * thin, "seed": seed, "thin": thin}
    centred = run_chains(bound, start=law.mean, **options) - law.mean
    estimates = {
        "mean": (centred.mean(1), np.zeros_like(law.mean)),
        "covariance": (np.einsum("cti,ctj->cij", centred, centred) / steps, law.covariance),
        "lag1": (
            np.einsum("cti,ctj->cij", centred[:, 1:], centred[:, :-1]) / (steps - 1),
            law.lag1,
        ),
    }
    return {name: largest_z(per_chain, truth) for name, (per_chain, truth) in estimates.items()}


def largest_z(per_chain: np.ndarray, truth: np.ndarray) -> float:
    error = per_chain.std(0, ddof=1) / np.sqrt(len(per_chain))
    return float(np.max(np.abs(per_chain.mean(0) - truth) / error))


def cast(part, kind, **more):
    """The same fields under a mutant's methods; `more` are the fields that only the mutant has."""
    mutant = object.__new__(kind)
    fields = {field.name: getattr(part, field.name) for field in dataclasses.fields(part)}
    for name, value in (fields | more).items():
        object.__setattr__(mutant, name, value)
    return mutant
