"""Regressions with coefficients that differ between many groups of rows.

    y_i ~ N(η_i, σ²)   or   P(y_i = 1) = 1/(1 + e^{−η_i}),   η_i = x_iᵀβ + w_iᵀz_{g(i)}
    z_g ~ N(μ, diag τ²),   β, μ ~ N(0, v I),   τ, σ ~ half-normal with scale s

w_i is 1 and the columns `slopes`. μ are the means of the coefficients over groups, so X has no
constant column. The posterior is a `LocalPosterior`: a step moves β, μ, τ, σ and the groups of its
rows, and its cost does not grow with the number of groups. τ and σ are positive: the sampler moves
their logarithms.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PyTree

from ..._core.arrays import Scalar, to_floats
from ..._core.errors import InvalidInput, check_number
from ...models.outputs import normal_log_density, positive
from .posterior import Local, LocalPosterior, NormalGroups

_FAMILIES = ("gaussian", "logistic")
_LEAST_SD = 0.1  # of the effects at the start, relative to the noise


class MixedRow(eqx.Module):
    """log p(y_i | β, σ, z_g)."""

    logistic: bool = eqx.field(static=True)

    def __call__(self, shared: PyTree, local: dict[str, Array], row: PyTree) -> Scalar:
        predictor = jnp.dot(row["x"], shared["beta"]) + jnp.dot(row["w"], local["effects"])
        if self.logistic:
            return row["y"] * predictor - jax.nn.softplus(predictor)
        sd = shared["noise_sd"]
        return -0.5 * (((row["y"] - predictor) / sd) ** 2 + jnp.log(2 * np.pi * sd**2))


class MixedPrior(eqx.Module):
    """log p(β, μ, τ, σ)."""

    variance: float = eqx.field(static=True)
    scale: float = eqx.field(static=True)

    def __call__(self, shared: PyTree) -> Scalar:
        scales = [shared[name] for name in ("effect_sd", "noise_sd") if name in shared]
        total = -0.5 * sum((jnp.sum((part / self.scale) ** 2) for part in scales), jnp.zeros(()))
        for name in ("beta", "effect_mean"):
            part = shared[name]
            total = total + normal_log_density(part, 0.0, jnp.full_like(part, 1 / self.variance))
        return total


def _effect_law(shared: PyTree) -> tuple[Array, Array]:
    return shared["effect_mean"], shared["effect_sd"]


def mixed_effects(
    X: ArrayLike,
    y: ArrayLike,
    groups: ArrayLike,
    *,
    slopes: ArrayLike | None = None,
    family: str = "gaussian",
    prior_variance: float = 100.0,
    prior_scale: float = 5.0,
    keep: Any = None,
) -> LocalPosterior:
    """Regression whose intercept, and further coefficients, differ between many groups.

    **Arguments:**

    - `X`: the columns with the same coefficients β in all groups, (n, p), without a constant.
    - `y`: the responses; 0 or 1 for `family="logistic"`.
    - `groups`: the group of each row: numbers or text, of any kind.
    - `slopes`: columns whose coefficients differ between groups, (n, k), beside the intercept.
    - `family`: "gaussian" or "logistic".
    - `prior_variance`: v, the prior variance of β and μ.
    - `prior_scale`: s, the scale of the half-normal priors of τ and σ.
    - `keep`: the groups whose draws are kept, as in `LocalPosterior`: "all" or
      `{"effects": numbers}`, where group k is the k-th of the sorted groups.

    **Returns:** a `LocalPosterior` with the shared parameters `beta`, `effect_mean` (μ),
    `effect_sd` (τ) and `noise_sd` (σ), and the groups `effects` (z).
    """
    if family not in _FAMILIES:
        raise InvalidInput("family", f"be one of {', '.join(_FAMILIES)}", family)
    response = _finite("y", y, 1)
    x, n = _finite("X", X, 2), response.shape[0]
    varying = [jnp.ones((n, 1), response.dtype)]
    if slopes is not None:
        varying.append(_finite("slopes", slopes, 2).astype(response.dtype))
    labels, numbers = np.unique(np.asarray(groups), return_inverse=True)
    numbers = numbers.reshape(-1)
    lengths = {"X": len(x), "slopes": len(varying[-1]), "groups": numbers.size}
    for name, length in lengths.items():
        if length != n:
            raise InvalidInput(name, f"have one row per response ({n})", length)
    logistic = family == "logistic"
    if logistic and not bool(jnp.all((response == 0) | (response == 1))):
        raise InvalidInput("y", "be 0 or 1 for a logistic regression", "other numbers")
    w = jnp.concatenate(varying, axis=1)
    arrays = np.asarray(x), np.asarray(response)
    start, effects_start = _start(*arrays, numbers, w.shape[1], logistic)
    constraints, free = positive(start, [name for name in start if name.endswith("_sd")])
    effects = Local(groups=numbers, init=effects_start, log_prior=NormalGroups(_effect_law))
    variance = check_number("prior_variance", prior_variance, 0, low_open=True)
    return LocalPosterior(
        MixedRow(logistic),
        MixedPrior(variance, check_number("prior_scale", prior_scale, 0, low_open=True)),
        {"x": x.astype(response.dtype), "w": w, "y": response},
        free,
        {"effects": effects},
        transforms=constraints,
        keep=keep,
        description={"family": f"{family} regression with effects of {len(labels):,} groups"},
    )


def _start(
    x: np.ndarray, y: np.ndarray, numbers: np.ndarray, n_effects: int, logistic: bool
) -> tuple[dict[str, Array], Float[Array, "groups k"]]:
    """Where chains start: least squares, and the means of the residuals of each group."""
    counts = np.bincount(numbers)
    design = np.column_stack([np.ones(len(y)), x]).astype(np.float64)
    coefficients = np.linalg.lstsq(design, y.astype(np.float64), rcond=None)[0]
    if logistic:  # least squares of 0 and 1 has about a quarter of the slopes
        coefficients, noise = np.zeros_like(coefficients), 2.0
        deviations = np.bincount(numbers, y - y.mean()) / counts * 4
    else:
        residuals = y - design @ coefficients
        deviations = np.bincount(numbers, residuals) / counts
        noise = max(float(np.std(residuals - deviations[numbers])), 1e-3 * float(np.std(y)), 1e-6)
    between = float(np.mean(deviations**2 - noise**2 / counts))
    sd = np.sqrt(max(between, (_LEAST_SD * noise) ** 2))
    effects = np.zeros((len(counts), n_effects))
    effects[:, 0] = coefficients[0] + deviations * sd**2 / (sd**2 + noise**2 / counts)
    mean = np.zeros(n_effects)
    mean[0] = coefficients[0]
    start = {"beta": coefficients[1:], "effect_mean": mean, "effect_sd": np.full(n_effects, sd)}
    if not logistic:
        start["noise_sd"] = np.asarray(noise)
    shared = {name: jnp.asarray(part, y.dtype) for name, part in start.items()}
    return shared, jnp.asarray(effects, y.dtype)


def _finite(parameter: str, values: ArrayLike, ndim: int) -> Float[Array, "n ..."]:
    found = to_floats(parameter, values)
    if found.ndim != ndim or not found.shape[0] or not bool(jnp.all(jnp.isfinite(found))):
        rule = f"be finite numbers in {'a vector' if ndim == 1 else 'a matrix'}, not empty"
        raise InvalidInput(parameter, rule, f"shape {found.shape}")
    return found
