"""Consensus Monte Carlo: sample the posterior of each shard of the rows, and average the draws.

The posterior is a product of S shard posteriors, each with the prior to the power of 1/S. Draws
θ_s of the shards are combined by

    θ = (Σ W_s)⁻¹ Σ W_s θ_s,   W_s = Cov_s⁻¹

with the covariance of the draws of shard s. If all shard posteriors are Gaussian, θ is a draw of
the posterior, up to the Monte-Carlo error of W_s. Otherwise it is not: the means of skewed shards
do not average to the mean of their product. Scott et al. (2016).

Forty rows of a skewed logistic regression in four shards gave means up to 0.5 sd off, and
variances between 0.8 and 3 times those of the posterior, depending on the split of the rows. The
Monte-Carlo error of W_s is common to all draws, so it does not show in their effective number.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from .._api.sample import sample
from .._core.errors import InvalidInput, check_int
from .._rows.resident import ResidentRows
from ..methods.abstract import AbstractMethod, Account
from ..models.model import AbstractModel
from ..models.posterior import AbstractPosterior, Posterior, check_in_memory, check_posterior
from ..results.draws import Draws, Timing


def tempered(model: AbstractModel, power: float) -> AbstractModel:
    """The model with its prior to this power; a Gaussian prior stays Gaussian."""
    found = model.with_tempered_prior(power)
    if found is None:
        rule = "be a regression without group effects, or be given by densities"
        raise InvalidInput("posterior", rule, type(model).__name__, "Use sample(posterior).")
    return found


_FEWEST_DRAWS_PER_PARAMETER = 10
_TAKEN = ("seed", "store", "start", "anchor", "measure_bias", "ess")
_BIAS = (
    "consensus Monte Carlo is exact only if the posterior of every shard is Gaussian; otherwise it "
    "has a bias, which was not measured. Use fewer shards and compare."
)


def consensus(
    posterior: AbstractPosterior,
    shards: int,
    method: AbstractMethod | None = None,
    *,
    chains: int = 4,
    n_draws: int = 1000,
    seed: int = 0,
    **options: Any,
) -> Draws:
    """Draw from a posterior approximately, by averaging draws from shards of its rows.

    **Arguments:**

    - `posterior`: the posterior, with its rows in memory.
    - `shards`: the number of shards. Rows are assigned to shards at random.
    - `method`: the sampling method of every shard; chosen for each shard by default.
    - `chains`: number of chains.
    - `draws`: draws per chain.
    - `seed`: seed of all randomness, the assignment of rows included.
    - `options`: further arguments of `tallmc.sample`, such as `burn_in`, `thin` and `progress`.

    **Returns:** the draws, as `Draws`. Their verdict is never "checked": the bias is not known
    unless the posteriors of the shards are Gaussian.

    >>> import numpy as np, tallmc
    >>> x = np.random.default_rng(0).normal(size=(1000, 2))
    >>> y = x @ [1.0, -1.0]
    >>> posterior = tallmc.models.linear_regression(x, y, prior_variance=10.0, noise_variance=1.0)
    >>> found = consensus(posterior, 4, tallmc.methods.mala(5e-3), n_draws=500, progress=False)
    >>> found.positions.shape, str(found.report.verdict)
    ((4, 500, 2), 'not checked')
    """
    check_posterior(posterior)
    check_in_memory(posterior, "shards are made of single rows", "Use sample(posterior).")
    shards = check_int("shards", shards, 2, posterior.n_rows, high_name="n_rows")
    chains, n_draws = check_int("chains", chains, 1), check_int("draws", n_draws, 1)
    seed = check_int("seed", seed, 0, 2**32 - 1)
    fewest = _FEWEST_DRAWS_PER_PARAMETER * posterior.dim
    if chains * n_draws < fewest:
        rule = f"give chains · draws >= {fewest}, ten per parameter, for the covariances"
        raise InvalidInput("draws", rule, n_draws)
    for name in _TAKEN:
        if name in options:
            raise InvalidInput("options", f"not contain {name!r}", options[name])
    numbers = np.random.default_rng(seed).permutation(posterior.n_rows)
    seeds = np.random.SeedSequence(seed).generate_state(shards)
    options |= {"chains": chains, "n_draws": n_draws}
    of_shards = [
        sample(_shard(posterior, np.sort(rows), shards), method, seed=int(own), **options)
        for rows, own in zip(np.array_split(numbers, shards), seeds, strict=True)
    ]
    return _combined(posterior, of_shards, seed)


def _shard(
    posterior: AbstractPosterior, numbers: Int[np.ndarray, " n"], shards: int
) -> AbstractPosterior:
    """The posterior of some rows, with the prior to the power of 1/S."""
    rows = ResidentRows(posterior.rows.take(jnp.asarray(numbers)))
    replaced = eqx.tree_at(
        lambda of: (of.model, of.rows),
        posterior,
        (tempered(posterior.model, 1 / shards), rows),
        is_leaf=lambda node: node is posterior.model or node is posterior.rows,
    )
    if isinstance(posterior, Posterior) and posterior.lipschitz_constants is not None:
        own = posterior.lipschitz_constants[numbers]
        replaced = eqx.tree_at(lambda of: of.lipschitz_constants, replaced, own)
    return replaced


def _combined(posterior: AbstractPosterior, of_shards: list[Draws], seed: int) -> Draws:
    ok = np.logical_and.reduce([draws.ok for draws in of_shards])
    if not ok.any():
        cure = "Make the step size smaller, or use fewer shards."
        raise InvalidInput("method", "complete a chain in every shard", "failed chains", cure)
    length = min(draws.positions.shape[1] for draws in of_shards)
    positions = [np.asarray(draws.positions[:, :length], np.float64) for draws in of_shards]
    completed = [of_shard[ok].reshape(-1, posterior.dim) for of_shard in positions]
    weights: list[np.ndarray] = [
        np.linalg.inv(np.atleast_2d(np.cov(flat, rowvar=False))) for flat in completed
    ]
    total = sum(of_shard @ weight for of_shard, weight in zip(positions, weights, strict=True))
    mean = np.linalg.solve(sum(weights), np.moveaxis(total, -1, 0).reshape(posterior.dim, -1))
    combined = np.moveaxis(mean.reshape(posterior.dim, *total.shape[:2]), 0, -1)
    first = of_shards[0]
    doubts = tuple(
        f"shard {number}: {doubt}"
        for number, draws in enumerate(of_shards)
        for doubt in draws.report.doubts
    )
    stopped = [draws.stopped_by for draws in of_shards if draws.stopped_by is not None]
    settings = {**first.settings, "seed": seed, "n_rows": posterior.n_rows}
    timings = [dataclasses.astuple(draws.timing) for draws in of_shards]
    return Draws(
        positions=combined.astype(first.positions.dtype),
        sample_stats={},
        outcomes=tuple(map(max, zip(*(draws.outcomes for draws in of_shards), strict=True))),
        n_row_evals_sampling=sum(draws.n_row_evals_sampling for draws in of_shards),
        n_row_evals_preparation=sum(draws.n_row_evals_preparation for draws in of_shards),
        n_row_evals_check=sum(draws.n_row_evals_check for draws in of_shards),
        timing=Timing(*map(sum, zip(*timings, strict=True))),
        layout=posterior.layout,
        settings={**settings, "shards": len(of_shards)},
        account=Account(first.settings["method"], doubts=doubts, unmeasured=_BIAS),
        stopped_by=stopped[0] if stopped else None,
        quantities=posterior.quantities,
        predictive=posterior.predictive,
    )
