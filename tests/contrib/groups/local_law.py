"""The exact law of local SGLD on a Gaussian model, by enumeration of all batches.

The model has shared parameters φ = (β, μ) and one effect z_g per group, with known variances:

    y_i ~ N(x_i β + z_{g(i)}, σ²),   z_g ~ N(μ, τ²),   β, μ ~ N(0, v)

All potentials are quadratic, so a step with batch S is affine, θ' = A_S θ + b_S + N_S η. With
probabilities P(S), the mean m and the covariance C of the stationary law solve

    m = Σ P(S)(A_S m + b_S),   C + mmᵀ = Σ P(S)[A_S C A_Sᵀ + (A_S m + b_S)(A_S m + b_S)ᵀ + N_S N_Sᵀ]

Everything here is written independently of the package.
"""

import itertools
from typing import NamedTuple

import numpy as np


class MixedModel(NamedTuple):
    """θ = (β, z_1, …, z_G, μ)."""

    x: np.ndarray
    y: np.ndarray
    groups: np.ndarray
    noise_variance: float = 0.5
    effect_variance: float = 0.8
    prior_variance: float = 4.0

    @property
    def n_groups(self):
        return int(self.groups.max()) + 1

    @property
    def dim(self):
        return self.n_groups + 2

    def row(self, i):
        """(H_i, c_i) with ∇f_i(θ) = H_i θ − c_i."""
        a = np.zeros(self.dim)
        a[0], a[1 + self.groups[i]] = self.x[i], 1
        return np.outer(a, a) / self.noise_variance, a * self.y[i] / self.noise_variance

    def group(self, g):
        """∇f_g(θ) = H_g θ."""
        a = np.zeros(self.dim)
        a[1 + g], a[-1] = 1, -1
        return np.outer(a, a) / self.effect_variance

    def shared(self):
        a = np.zeros(self.dim)
        a[0] = a[-1] = 1 / self.prior_variance
        return np.diag(a)

    def posterior(self):
        """The mean and the covariance of the exact posterior."""
        rows = [self.row(i) for i in range(len(self.y))]
        precision = self.shared() + sum(H for H, _ in rows)
        precision = precision + sum(self.group(g) for g in range(self.n_groups))
        return np.linalg.solve(precision, sum(c for _, c in rows)), np.linalg.inv(precision)


class Rules(NamedTuple):
    """What a step does; the defaults are right, and every other choice is a mistake."""

    factor: bool = True
    """Whether the gradients of the rows of a group are multiplied by q_g."""
    prior_scale: float = 1.0
    """Multiplies the prior of a touched group."""
    add_duplicates: bool = True
    """Whether two rows of one group add their gradients; otherwise the last one counts."""
    move_all: bool = False
    """Whether groups that are not touched move by noise, without a gradient."""
    exact_totals: bool = False
    """Whether the prior of all groups moves μ; otherwise the touched groups, with weights 1/q_g."""


RIGHT = Rules()


def batches(model, p, size):
    """All ordered batches with their probabilities."""
    for rows in itertools.product(range(len(model.y)), repeat=size):
        yield rows, float(np.prod(p[list(rows)]))


def affine_step(model, rows, p, step_size, metric, rules=RIGHT):
    """(A_S, b_S, N_S N_Sᵀ) of a step with these rows."""
    n, d = len(rows), model.dim
    touched = {int(model.groups[i]) for i in rows}
    shares = np.bincount(model.groups, p)
    q = 1 - (1 - shares) ** n
    H, c = model.shared(), np.zeros(d)
    moved = np.zeros(d)
    moved[0] = moved[-1] = 1
    weight = {i: 1 / (n * p[i]) for i in rows}
    for at, i in enumerate(rows):
        H_i, c_i = (weight[i] * part for part in model.row(i))
        g = 1 + model.groups[i]
        H[0] += H_i[0]
        c[0] += c_i[0]
        later = any(model.groups[j] == model.groups[i] for j in rows[at + 1 :])
        if rules.add_duplicates or not later:
            factor = q[g - 1] if rules.factor else 1.0
            H[g] += factor * H_i[g]
            c[g] += factor * c_i[g]
    for g in range(model.n_groups):
        H_g = model.group(g)
        if g in touched:
            H[1 + g] += rules.prior_scale * H_g[1 + g]
            moved[1 + g] = 1
        elif rules.move_all:
            moved[1 + g] = 1
        if rules.exact_totals or g in touched:
            H[-1] += H_g[-1] * (1.0 if rules.exact_totals else 1 / q[g])
    step = step_size * metric
    A = np.eye(d) - (moved * step / 2)[:, None] * H
    return A, moved * step / 2 * c, np.diag(moved * step)


def stationary_law(model, p, size, step_size, metric=None, rules=RIGHT):
    """The mean and the covariance of the stationary law."""
    d = model.dim
    metric = np.ones(d) if metric is None else metric
    steps = [
        (probability, *affine_step(model, rows, p, step_size, metric, rules))
        for rows, probability in batches(model, p, size)
    ]
    mean_A = sum(P * A for P, A, _, _ in steps)
    mean = np.linalg.solve(np.eye(d) - mean_A, sum(P * b for P, _, b, _ in steps))
    spread = sum(P * np.kron(A, A) for P, A, _, _ in steps)
    added = sum(
        P * (np.outer(A @ mean + b - mean, A @ mean + b - mean) + noise) for P, A, b, noise in steps
    )
    covariance = np.linalg.solve(np.eye(d * d) - spread, added.ravel()).reshape(d, d)
    return mean, covariance
