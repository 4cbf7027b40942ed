"""Chains side by side in one compiled loop, with scores of their predictions for test rows.

`tallmc.sample` keeps positions. With 10⁵ parameters, 10 chains and 200 epochs that is too much, and
only the predictions matter here. The loop takes the steps of all chains between two evaluations in
one compiled call, and draws the randomness of each step inside it. An evaluation predicts all test
rows. Predictions of a pool of chains are averaged over its chains. The averaged prediction is over
the second half of the evaluations so far, at most 100.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int, Key

from tallmc._anchor.anchor import Anchor
from tallmc._core.random import new_key
from tallmc._engine.kernel import BoundKernel, ChainState, Drawn, Gathered, Kernel, NewChain
from tallmc._rows.access import AbstractRows, RowBlock
from tallmc.methods.method import Method
from tallmc.models.posterior import AbstractPosterior
from tallmc.models.predictive import AbstractPredictive

from .chains import Share, kernel_of

MOST_AVERAGED = 100
_ROWS_PER_BLOCK = 500

Score = Callable[[Float[np.ndarray, "chains n ..."]], Float[np.ndarray, " chains"]]
"""Scores predicted means of the test rows."""


class PredictiveRun(NamedTuple):
    """Scores of every pool of chains at every evaluation, by name, and the end of every chain."""

    current: dict[str, Float[np.ndarray, "pools evaluations"]]
    """Of the positions at the evaluation."""
    averaged: dict[str, Float[np.ndarray, "pools evaluations"]]
    """Of the mean prediction over the second half of the evaluations so far, at most 100."""
    positions: Float[Array, "chains d"]
    predictions: Float[np.ndarray, "chains n ..."]
    """Means of the test rows at the last positions."""
    seconds: float
    """Time of all evaluations but the first, which may compile, scaled to all of them."""


def predictive_run(
    posterior: AbstractPosterior,
    method: Method,
    test_rows: RowBlock,
    scores: Mapping[str, Score],
    starts: Float[Any, "chains d"],
    *,
    steps: int,
    evaluations: int,
    seed: int,
    share: Share = lambda done: None,
    anchor: Anchor | None = None,
    with_noise: bool = True,
    pool: int = 1,
) -> PredictiveRun:
    """Run one chain per start, with `steps` steps between evaluations.

    `pool` chains in a row are scored together. Without noise, Langevin dynamics is gradient descent
    with half the step size.
    """
    bound, predictive = kernel_of(method, posterior, anchor), posterior.predictive
    assert predictive is not None, "the models of these experiments predict"
    keys = jax.random.split(new_key(seed), len(starts))
    state = _start(bound, keys, jnp.asarray(starts, posterior.dtype))
    window = _WindowMean()
    found: dict[str, list[np.ndarray]] = {f"{name}/{kind}": [] for name in scores for kind in "ca"}
    began = time.perf_counter()
    for evaluation in range(evaluations):
        first = jnp.int32(evaluation * steps)
        state = _advance(bound.composition, bound.rows, state, keys, first, steps, with_noise)
        of_chains = _predict(predictive, test_rows, state.position)
        means = np.asarray(pooled(of_chains, pool))
        averaged = window.add(means)
        for name, score in scores.items():
            found[f"{name}/c"].append(score(means))
            found[f"{name}/a"].append(score(averaged))
        share((evaluation + 1) / evaluations)
        if evaluation == 0 and evaluations > 1:
            began = time.perf_counter()
    seconds = (time.perf_counter() - began) * evaluations / max(1, evaluations - 1)
    current, of_window = (
        {name: np.stack(found[f"{name}/{kind}"], axis=1) for name in scores} for kind in "ca"
    )
    return PredictiveRun(current, of_window, state.position, np.asarray(of_chains), seconds)


def pooled(means: Float[Any, "chains n ..."], pool: int) -> Float[Any, "pools n ..."]:
    """The mean predictions of each `pool` chains in a row."""
    return means.reshape(-1, pool, *means.shape[1:]).mean(axis=1)


class _WindowMean:
    """The mean over the second half of the values so far, at most `MOST_AVERAGED` of them."""

    def __init__(self) -> None:
        self.kept: dict[int, np.ndarray] = {}
        self.total: np.ndarray | float = 0.0
        self.n_seen = 0

    def add(self, values: np.ndarray) -> np.ndarray:
        self.kept[self.n_seen] = values.astype(np.float32)
        self.total = self.total + values.astype(np.float64)
        self.n_seen += 1
        first = max(self.n_seen // 2, self.n_seen - MOST_AVERAGED)
        for old in [number for number in self.kept if number < first]:
            self.total = self.total - self.kept.pop(old)
        return np.asarray(self.total / len(self.kept))


@eqx.filter_jit
def _start(
    bound: BoundKernel, keys: Key[Array, " chains"], starts: Float[Array, "chains d"]
) -> ChainState:
    kernel, rows = bound.composition, bound.rows
    carried = kernel.start_memory(starts, rows)

    def init(key: Array, position: Array, carried: Any) -> ChainState:
        draw_key, init_key = jax.random.split(jax.random.fold_in(key, 2**31 - 1))
        gathered = kernel.gather(_one_step(kernel.draw(draw_key, 1)), rows)
        return kernel.init(NewChain(init_key, position, carried, gathered), rows)

    return jax.vmap(init)(keys, starts, carried)


@eqx.filter_jit
def _advance(
    kernel: Kernel,
    rows: AbstractRows,
    state: ChainState,
    keys: Key[Array, " chains"],
    first: Int[Array, ""],
    steps: int,
    with_noise: bool,
) -> ChainState:
    def chain_step(chain: ChainState, key: Array, step: Array) -> ChainState:
        gathered = kernel.gather(_one_step(kernel.draw(jax.random.fold_in(key, step), 1)), rows)
        if not with_noise:
            gathered = Gathered(gathered.selection, jax.tree.map(jnp.zeros_like, gathered.noise))
        return kernel.step(chain, gathered, step, rows).state

    def all_chains(chains: ChainState, step: Array) -> tuple[ChainState, None]:
        return jax.vmap(chain_step, in_axes=(0, 0, None))(chains, keys, step), None

    return lax.scan(all_chains, state, first + jnp.arange(steps))[0]


def _one_step(drawn: Drawn) -> Drawn:
    """The randomness of the only step."""
    return jax.tree.map(lambda leaf: leaf[0], drawn)


@eqx.filter_jit
def _predict(
    predictive: AbstractPredictive, rows: RowBlock, positions: Float[Array, "chains d"]
) -> Float[Array, "chains n ..."]:
    """The mean of each test row, computed in blocks of rows."""
    n_rows = jax.tree.leaves(rows)[0].shape[0]
    block = next(size for size in range(min(_ROWS_PER_BLOCK, n_rows), 0, -1) if n_rows % size == 0)
    blocks = jax.tree.map(lambda column: column.reshape(-1, block, *column.shape[1:]), rows)
    of_blocks = lax.map(
        lambda some: jax.vmap(predictive.mean, in_axes=(0, None))(positions, some), blocks
    )
    by_chain = jnp.moveaxis(of_blocks, 0, 1)
    return by_chain.reshape(len(positions), n_rows, *by_chain.shape[3:])


def error_per_cent(y: Int[np.ndarray, " n"]) -> Score:
    """The share of rows in per cent whose most probable class is wrong. NaN is wrong."""
    return lambda means: (
        100 * np.mean((np.argmax(means, axis=2) != y) | ~np.isfinite(means).all(axis=2), axis=1)
    )


def log_loss(y: Int[np.ndarray, " n"]) -> Score:
    """Minus the mean log probability of the class; probabilities are at least 10⁻³⁰."""
    return lambda means: -np.mean(np.log(np.maximum(means[:, np.arange(len(y)), y], 1e-30)), axis=1)


def root_mean_square_error(
    y: Float[np.ndarray, " n"], low: float = -np.inf, high: float = np.inf
) -> Score:
    """The RMSE of predictions that are clipped to [low, high]."""
    return lambda means: np.sqrt(np.mean((np.clip(means, low, high) - y) ** 2, axis=1))
