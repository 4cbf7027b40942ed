"""Bayesian probabilistic matrix factorisation (Salakhutdinov and Mnih, 2008; nemeth-2021, 6.3).

    R_ij ~ N(c + U_iᵀV_j, α⁻¹)                for the ratings that are known
    U_i ~ N(μ_U, Λ_U⁻¹),   V_j ~ N(μ_V, Λ_V⁻¹)
    μ_W ~ N(μ₀, Λ_W⁻¹),   Λ_W diagonal with entries ~ Gamma(a₀, b₀),   W = U, V

A row is one rating; its user and its item select a row of U and of V. The prior is counted once.
The code of nemeth-2021 scales the priors of the users and items of a minibatch by N/n, together
with the likelihood. That is biased: the prior of a user with many ratings counts up to N/n times.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int, PyTree

from ..._core.arrays import Scalar, check_numeric, to_floats
from ..._core.errors import InvalidInput, check_int, check_number
from ...models.design import Observations
from ...models.outputs import (
    GammaLaw,
    GaussianOutput,
    OutputLikelihood,
    normal_log_density,
    output_posterior,
)
from ...models.posterior import ModelPosterior
from .posterior import Local, LocalPosterior, NormalGroups

_START_SD = 0.1
_SIDES = ("user", "item")


class FactorProducts(eqx.Module):
    """c + U_iᵀV_j of a block of ratings."""

    centre: Scalar

    def __call__(self, params: PyTree, x: Int[Array, "n 2"]) -> Float[Array, "n 1"]:
        users, items = params["user_factors"][x[:, 0]], params["item_factors"][x[:, 1]]
        return self.centre + jnp.sum(users * items, axis=1, keepdims=True)


class FactorsPrior(eqx.Module):
    """log p(μ_U, μ_V, Λ_U, Λ_V), plus log p(U, V | μ, Λ) if U and V are among the parameters."""

    mean: Scalar
    law: GammaLaw = eqx.field(static=True)

    def __call__(self, params: PyTree) -> Scalar:
        total = jnp.zeros_like(self.mean)
        for side in _SIDES:
            mean, precision = params[f"{side}_mean"], params[f"{side}_precision"]
            of_mean = normal_log_density(mean, self.mean, precision)
            total += of_mean + self.law.log_density(precision)
        for side in (side for side in _SIDES if f"{side}_factors" in params):
            mean, precision = params[f"{side}_mean"], params[f"{side}_precision"]
            total += normal_log_density(params[f"{side}_factors"], mean, precision)
        return total


class FactorProduct(eqx.Module):
    """log p(R_ij | U_i, V_j) of one rating, as a function of its user and its item."""

    likelihood: OutputLikelihood

    def __call__(self, shared: PyTree, local: dict[str, Array], row: Observations) -> Scalar:
        tables = {kind: values[None] for kind, values in local.items()}
        first = jnp.zeros((1, 2), jnp.int32)
        return self.likelihood(tables, Observations(first, row.y[None]))[0]


@dataclasses.dataclass(frozen=True)
class FactorLaw:
    """Mean and standard deviation of the factors of one side."""

    side: str

    def __call__(self, shared: PyTree) -> tuple[Array, Array]:
        return shared[f"{self.side}_mean"], shared[f"{self.side}_precision"] ** -0.5


def matrix_factorisation(
    users: ArrayLike,
    items: ArrayLike,
    ratings: ArrayLike,
    n_users: int | None = None,
    n_items: int | None = None,
    rank: int = 20,
    *,
    noise_precision: float = 3.0,
    prior_mean: float = 0.0,
    precisions: tuple[float, float] = (1.0, 5.0),
    centre: float | None = None,
    seed: int = 0,
    local: bool = False,
    keep: str | Mapping[str, ArrayLike] | None = None,
) -> ModelPosterior | LocalPosterior:
    """Bayesian probabilistic matrix factorisation of ratings of items by users.

    **Arguments:**

    - `users`, `items`: the user and the item of each rating, numbered from 0.
    - `ratings`: the ratings.
    - `n_users`, `n_items`: their numbers; by default one more than the largest in the ratings.
    - `rank`: the number of factors per user and item.
    - `noise_precision`: α, the precision of a rating around U_iᵀV_j.
    - `prior_mean`: μ₀.
    - `precisions`: (a₀, b₀), shape and rate of the Gamma prior of the precisions of factors.
    - `centre`: c; by default the mean of the ratings.
    - `seed`: seed of the factors at which chains start.
    - `local`: whether to return a `LocalPosterior`, for `local_sgld`: a step then moves the
      users and items of its ratings only. Every user and item needs a rating.
    - `keep`: with `local`, the users and items whose draws are kept, by `user_factors` and
      `item_factors` (see `LocalPosterior`).

    **Returns:** a posterior with the parameters `user_factors`, `user_mean`, `user_precision` and
    the same for `item`. `draws.predict(pairs)` predicts ratings of pairs (user, item), an (n, 2)
    array.
    """
    y = to_floats("ratings", ratings)
    if y.ndim != 1 or not y.size or not bool(jnp.all(jnp.isfinite(y))):
        raise InvalidInput("ratings", "be finite numbers, one per rating", f"shape {y.shape}")
    of_users, n_users = _numbers("users", users, n_users)
    of_items, n_items = _numbers("items", items, n_items)
    columns, counts = (of_users, of_items), (n_users, n_items)
    if any(column.shape != y.shape for column in columns):
        shapes = f"shapes {[column.shape for column in columns]}"
        raise InvalidInput("users and items", f"have one entry per rating ({y.size})", shapes)
    rows = Observations(jnp.asarray(np.stack(columns, axis=1)), y)
    law = GammaLaw.of("precisions", precisions)
    alpha = check_number("noise_precision", noise_precision, 0, low_open=True)
    middle = float(jnp.mean(y)) if centre is None else check_number("centre", centre)
    start = _start(counts, check_int("rank", rank, 1), check_int("seed", seed, 0), y.dtype)
    likelihood = OutputLikelihood(
        FactorProducts(jnp.asarray(middle, y.dtype)),
        GaussianOutput(jnp.asarray(1 / alpha, y.dtype)),
    )
    prior = FactorsPrior(jnp.asarray(check_number("prior_mean", prior_mean), y.dtype), law)
    positive_names = [f"{side}_precision" for side in _SIDES]
    description = {"family": "matrix factorisation", "rank": str(rank)}
    if local:
        kinds = [f"{side}_factors" for side in _SIDES]
        shared = {name: part for name, part in start.items() if name not in kinds}
        return LocalPosterior(
            FactorProduct(likelihood),
            prior,
            rows,
            shared,
            {
                kind: Local(numbers, start[kind], NormalGroups(FactorLaw(side)))
                for kind, side, numbers in zip(kinds, _SIDES, columns, strict=True)
            },
            transforms=dict.fromkeys(positive_names, "positive"),
            keep=keep,
            description=description,
        )
    if keep is not None:
        raise InvalidInput("keep", "be left out without local=True", keep)
    return output_posterior(
        likelihood,
        prior,
        rows,
        start,
        positive_names=positive_names,
        encode_x=lambda new: _pairs(new, counts),
        encode_y=lambda new: to_floats("ratings", new, y.dtype),
        classes=None,
        description=description,
    )


def _start(counts: tuple[int, ...], rank: int, seed: int, dtype: Any) -> dict[str, Array]:
    rng, found = np.random.default_rng(seed), {}
    for side, count in zip(_SIDES, counts, strict=True):
        factors = _START_SD * rng.standard_normal((count, rank))
        found[f"{side}_factors"] = jnp.asarray(factors, dtype)
        found[f"{side}_mean"] = jnp.zeros(rank, dtype)
        found[f"{side}_precision"] = jnp.ones(rank, dtype)
    return found


def _numbers(parameter: str, values: ArrayLike, count: int | None) -> tuple[np.ndarray, int]:
    """Numbers from 0 to count − 1, and their count."""
    found = np.asarray(check_numeric(parameter, values))
    if found.ndim != 1 or not found.size or (found % 1 != 0).any() or found.min() < 0:
        rule = "be integers from 0 on, one per rating"
        raise InvalidInput(parameter, rule, f"an array of shape {found.shape}, {found.dtype}")
    largest = int(found.max())
    known = largest + 1 if count is None else check_int(f"n_{parameter}", count, 1)
    if largest >= known:
        raise InvalidInput(parameter, f"be below n_{parameter} = {known}", largest)
    return found.astype(np.int32), known


def _pairs(new: Any, counts: tuple[int, ...]) -> Int[Array, "n 2"]:
    found = np.asarray(check_numeric("new rows", new))
    if found.ndim != 2 or found.shape[1] != 2:
        raise InvalidInput("new rows", "be an (n, 2) array of users and items", found.shape)
    (users, _), (items, _) = map(_numbers, ("users", "items"), found.T, counts)
    return jnp.asarray(np.stack([users, items], axis=1))
