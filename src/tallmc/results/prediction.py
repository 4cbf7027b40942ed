"""Predictions for new rows, averaged over draws.

    E(y | x, data) ≈ Σ_k w_k E(y | θ_k, x) / Σ_k w_k

`predict` summarises, per row, the mean of the response or the response itself over the draws. Rows
are computed in blocks, so memory does not grow with their number. A simulated response depends on
the seed, the draw and the number of the row alone: neither the blocks nor the thinning of draws
change it.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, UInt

from .._core.arrays import check_numeric
from .._core.errors import InvalidInput, check_int, check_number
from .._core.random import new_key
from .._core.statistics import add_by_code, evenly, moments, quantiles
from .._rows.access import RowBlock
from .._rows.resident import ResidentRows
from .._rows.sharded import ShardedRows
from ..models.groups import KnownEffects, RegressionWithEffects
from ..models.predictive import AbstractPredictive

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

Rows = ResidentRows | ShardedRows
MOST_DRAWS = 1000
"""Draws used by default. The Monte-Carlo error of a mean is then 3 % of its sd."""
_MOST_VALUES = 2**29
_MOST_EFFECTS = 2**25
"""Numbers of effects in memory: 128 MiB."""


@dataclasses.dataclass(frozen=True)
class Prediction:
    """Predictions, one per row: arrays of shape (n,), or (n, classes) for classes.

    **Arguments:**

    - `mean`, `sd`: mean and standard deviation over draws.
    - `low`, `high`: the ends of the central interval.
    - `interval`: the probability of the interval.
    - `kind`: "mean", "median", "response" or "survival".
    - `n_draws`: how many draws were used.
    - `response`: the name of the response.
    - `classes`: the names of the classes, or the times of survival curves, one column each.
    - `index`: the index of the rows, if they came as a pandas data frame.
    """

    mean: Float[np.ndarray, "n ..."]
    sd: Float[np.ndarray, "n ..."]
    low: Float[np.ndarray, "n ..."]
    high: Float[np.ndarray, "n ..."]
    interval: float
    kind: str
    n_draws: int
    response: str
    classes: tuple[str, ...] | None = None
    index: Any = None

    def with_missing(self, complete: Bool[np.ndarray, " n"]) -> Prediction:
        """The same with NaN for rows that are not complete; these predictions are of the others."""

        def spread(values: np.ndarray) -> np.ndarray:
            found = np.full((len(complete), *values.shape[1:]), np.nan)
            found[complete] = values
            return found

        mean, sd, low, high = map(spread, (self.mean, self.sd, self.low, self.high))
        return dataclasses.replace(self, mean=mean, sd=sd, low=low, high=high)

    def __len__(self) -> int:
        return len(self.mean)

    def columns(self) -> dict[str, Float[np.ndarray, " n"]]:
        """The columns by name: `mean`, …, or `mean[a]`, … for a class a."""
        statistics = {"mean": self.mean, "sd": self.sd, "low": self.low, "high": self.high}
        if self.classes is None:
            return statistics
        return {
            f"{name}[{label}]": values[:, k]
            for k, label in enumerate(self.classes)
            for name, values in statistics.items()
        }

    def to_frame(self) -> pd.DataFrame:
        """The columns as a pandas data frame."""
        import pandas as pd

        return pd.DataFrame(self.columns(), index=self.index)

    def to_arrow(self) -> pa.Table:
        """The columns as a pyarrow table."""
        import pyarrow as pa

        return pa.table(self.columns())

    def __repr__(self) -> str:
        what = self.response if self.kind == "response" else f"{self.kind} of {self.response}"
        interval = f"{100 * self.interval:.3g} % interval"
        return f"Prediction({len(self):,} rows; {what} with {interval}, {self.n_draws:,} draws)"


class UsedDraws(NamedTuple):
    """Draws of the chains that completed, evenly thinned."""

    positions: Float[np.ndarray, "chains k d"]
    weights: Float[np.ndarray, "chains k"] | None
    kept: Int[np.ndarray, " k"]
    """The numbers of these draws within their chain."""
    numbers: Int[np.ndarray, "chains k"]
    """The numbers of these draws within the run."""

    @property
    def flat(self) -> Float[np.ndarray, "n d"]:
        return self.positions.reshape(-1, self.positions.shape[2])

    @classmethod
    def of(cls, positions: Float[np.ndarray, "k d"]) -> UsedDraws:
        """Draws that are not those of a run, as of one chain."""
        numbers = np.arange(len(positions))
        return cls(positions[None], None, numbers, numbers[None])

    def log_shares(self) -> Float[np.ndarray, " n"]:
        """The logarithms of the weights of draws, which add up to 1."""
        count = len(self.flat)
        weights = np.ones(count) if self.weights is None else self.weights.ravel()
        return np.log(weights / weights.sum())


def used_draws(draws: Any, most: int | None = None) -> UsedDraws:
    """At most `most` draws of all completed chains of a `Draws` together; all of them if None."""
    positions, weights = draws.positions, draws.weights
    chains, n_draws = np.flatnonzero(draws.ok), positions.shape[1]
    if not len(chains):
        raise InvalidInput("draws", "have a chain that completed", "none")
    if most is None:
        most = n_draws * len(chains)
    most = check_int("draws", most, 1)
    kept = evenly(n_draws, max(1, most // len(chains)))
    return UsedDraws(
        np.asarray(positions[np.ix_(chains, kept)]),
        None if weights is None else weights[np.ix_(chains, kept)],
        kept,
        chains[:, None] * n_draws + kept,
    )


@dataclasses.dataclass(frozen=True)
class DrawnLaw:
    """The law of the response of some rows, in each of some draws."""

    predictive: AbstractPredictive
    used: UsedDraws
    rows: Rows

    def predict(self, interval: float, kind: str, seed: int) -> Prediction:
        """Summarise the mean of the response, or the response, per row. See `Draws.predict`."""
        interval = check_number("interval", interval, 0, 1, low_open=True, high_open=True)
        if kind not in ("mean", "response", "median"):
            rule = 'be "mean", "response" or, of survival times, "median"'
            raise InvalidInput("kind", rule, kind)
        if kind in ("mean", "median"):
            found = self._by_block(_block_values, self._n_columns or 1, kind)
        elif self._n_columns is None:
            found = self.simulations(seed)
        else:
            cure = "Use posterior_predictive(...) to simulate classes."
            raise InvalidInput("kind", 'be "mean" for a response with classes', kind, cure)
        classes = None if self._n_columns is None else self.predictive.classes
        return self._summarised(found, interval, kind, classes)

    def survival(self, interval: float, times: Any) -> Prediction:
        """Summarise P(T > t) per row and time. See `Draws.survival`."""
        interval = check_number("interval", interval, 0, 1, low_open=True, high_open=True)
        wanted = np.atleast_1d(np.asarray(check_numeric("times", times), np.float64))
        if wanted.ndim != 1 or not wanted.size or not (np.isfinite(wanted) & (wanted >= 0)).all():
            raise InvalidInput("times", "be finite numbers that are not negative", times)
        given = jnp.asarray(wanted, self.used.positions.dtype)
        found = self._by_block(_block_values, len(wanted), "survival", given)
        labels = tuple(f"{time:.9g}" for time in wanted)
        return self._summarised(found, interval, "survival", labels)

    def means(self) -> Float[np.ndarray, "n ..."]:
        """The mean of the response per row, averaged over draws that count the same."""
        blocks = self._by_block(_block_values, self._n_columns or 1, "mean")
        return np.concatenate([block.mean(axis=1, dtype=np.float64) for block in blocks])

    def sums(
        self, codes: Int[np.ndarray, " n"] | None = None, n_codes: int = 1
    ) -> Float[np.ndarray, "G k ..."]:
        """The mean of the response in each draw, summed over the rows of each code, or over all."""
        blocks = self._by_block(_block_values, self._n_columns or 1, "mean")
        shape = () if self._n_columns is None else (self._n_columns,)
        totals, first = np.zeros((n_codes, len(self.used.flat), *shape)), 0
        for block in blocks:
            of_block = np.zeros(len(block), int) if codes is None else codes[first:][: len(block)]
            add_by_code(totals, of_block, block)
            first += len(block)
        return totals

    def simulations(self, seed: int) -> Iterator[Float[np.ndarray, "n k"]]:
        """A response per row and draw, in blocks of rows."""
        key = new_key(check_int("seed", seed, 0, 2**32 - 1))
        numbers = self.used.numbers.ravel().astype(np.uint32)
        return self._by_block(_block_simulations, 1, key, numbers)

    def log_likelihoods(self) -> Iterator[Float[np.ndarray, "n k"]]:
        """Log p(y | θ, x) per row and draw, in blocks of rows."""
        return self._by_block(_block_values, 1, "log_likelihood")

    def log_densities(self) -> Float[np.ndarray, " n"]:
        """log p(y | data of the draws) per row."""
        shares = self.used.log_shares()
        return np.concatenate([log_sum(block + shares) for block in self.log_likelihoods()])

    def gathered(
        self, blocks: Iterator[Float[np.ndarray, "n k"]], ok: np.ndarray
    ) -> Float[np.ndarray, "chains k n"]:
        """Values per row and draw in one array. Those of failed chains are NaN."""
        shape = (len(ok), self.used.positions.shape[1], self.rows.n_rows)
        if math.prod(shape) > _MOST_VALUES:
            cure = "Use fewer rows, or fewer draws: n_draws=..."
            rule = f"have at most {_MOST_VALUES:,} values (rows × draws)"
            raise InvalidInput("new rows", rule, math.prod(shape), cure)
        first, whole = 0, np.full(shape, np.nan, self.used.positions.dtype)
        for block in blocks:
            values = block.T.reshape(*self.used.positions.shape[:2], len(block))
            whole[ok, :, first : first + len(block)] = values
            first += len(block)
        return whole

    def _summarised(
        self,
        blocks: Iterator[np.ndarray],
        interval: float,
        kind: str,
        classes: tuple[str, ...] | None,
    ) -> Prediction:
        levels = 0.5 - interval / 2, 0.5 + interval / 2
        weights = None if self.used.weights is None else self.used.weights.reshape(1, -1)
        whole, first = np.zeros((4, 0)), 0
        for block in blocks:
            if first == 0:
                whole = np.empty((4, self.rows.n_rows, *block.shape[2:]))
            whole[:, first : first + len(block)] = _summary(block, levels, weights)
            first += len(block)
        mean, sd, low, high = whole
        n_used, response = len(self.used.flat), self.predictive.response_name
        return Prediction(mean, sd, low, high, interval, kind, n_used, response, classes)

    @functools.cached_property
    def _n_columns(self) -> int | None:
        """The number of classes with a probability each; None for one number per row."""
        one = jax.tree.map(
            lambda of: jax.ShapeDtypeStruct((1, *of.shape), of.dtype), self.rows.row_shapes
        )
        position = self.used.positions[0, 0]
        shape = jax.eval_shape(lambda at, row: self.predictive.mean(at, row), position, one).shape
        return shape[1] if len(shape) == 2 else None

    def _by_block(
        self, per_row: Callable[..., Array], n_columns: int, *args: Any
    ) -> Iterator[np.ndarray]:
        """`per_row(rows, row numbers, predictive, draws, *args)`, (n, k, ...), in blocks."""
        positions, rows = jnp.asarray(self.used.flat), self.rows
        width = max(len(positions) * n_columns, rows.floats_per_row, positions.shape[1])
        for part, numbers, effects in self._with_effects():
            draws = DrawOfLaw(positions, effects)
            yield from part.by_block(
                per_row, self.predictive, draws, *args, width=width, beside=numbers
            )

    def _with_effects(self) -> Iterator[tuple[Rows, range, KnownEffects | None]]:
        """Parts of the rows with their numbers and, if these are integrated out, group effects.

        A group's effects are drawn once for all of its rows, if there is room for those of all
        groups.
        """
        model, rows = getattr(self.predictive, "model", None), self.rows
        if not isinstance(model, RegressionWithEffects):
            yield rows, range(rows.n_rows), None
            return
        assert isinstance(rows, ResidentRows)
        codes, positions = np.asarray(rows.columns.terms[0].codes), self.used.flat
        most = max(_MOST_EFFECTS // (len(positions) * model.law.model.n_effects), 1)
        n_known = model.law.n_levels
        size = rows.n_rows if len(np.unique(codes[codes < n_known])) <= most else most
        for first in range(0, rows.n_rows, size):
            numbers = range(first, min(first + size, rows.n_rows))
            levels = np.unique(codes[first : numbers.stop])
            effects = model.knowing(positions, levels[levels < n_known])
            is_whole = size == rows.n_rows
            part = rows if is_whole else ResidentRows(rows.neighbours(first, len(numbers)))
            yield part, numbers, effects


class DrawOfLaw(NamedTuple):
    """A draw, or some; with the effects of groups that are integrated out."""

    position: Float[Array, "*k d"]
    effects: KnownEffects | None = None

    def of(self, predictive: AbstractPredictive) -> AbstractPredictive:
        """The law of rows that knows the effects."""
        if self.effects is None:
            return predictive
        return eqx.tree_at(
            lambda law: law.model.known, predictive, self.effects, is_leaf=lambda leaf: leaf is None
        )


def _each_draw(function: Callable[..., Array], draws: DrawOfLaw, *args: Array) -> Array:
    """`function(draw, …)` for every draw, (n, k, …); further arguments have one entry per draw."""
    effects = None if draws.effects is None else KnownEffects(None, 0)  # type: ignore[arg-type]
    axes = DrawOfLaw(0, effects), *(0 for _ in args)  # type: ignore[arg-type]
    return jax.vmap(function, in_axes=axes, out_axes=1)(draws, *args)


def _block_values(
    block: RowBlock,
    _: Array,
    predictive: AbstractPredictive,
    draws: DrawOfLaw,
    of_law: str,
    *args: Array,
) -> Float[Array, "n k ..."]:
    """What the method `of_law` of the law says of every row and draw."""

    def of_draw(draw: DrawOfLaw) -> Array:
        return getattr(draw.of(predictive), of_law)(draw.position, block, *args)

    return _each_draw(of_draw, draws)


def _block_simulations(
    block: RowBlock,
    row_numbers: UInt[Array, " n"],
    predictive: AbstractPredictive,
    draws: DrawOfLaw,
    key: PRNGKeyArray,
    draw_numbers: UInt[Array, " k"],
) -> Float[Array, "n k"]:
    def of_row(row: RowBlock, row_key: PRNGKeyArray, draw: DrawOfLaw) -> Array:
        only = jax.tree.map(lambda values: values[None], row)
        return draw.of(predictive).simulate(row_key, draw.position, only)[0]

    def of_draw(draw: DrawOfLaw, number: Array) -> Float[Array, " n"]:
        draw_key = jax.random.fold_in(key, number)
        keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(draw_key, row_numbers)
        return jax.vmap(of_row, in_axes=(0, 0, None))(block, keys, draw)

    return _each_draw(of_draw, draws, draw_numbers)


def _summary(
    block: Float[np.ndarray, "n k ..."],
    levels: tuple[float, float],
    weights: Float[np.ndarray, "1 k"] | None,
) -> Float[np.ndarray, "4 n ..."]:
    """Mean, sd and the ends of the interval over the draws."""
    per_row = np.moveaxis(block, 1, -1)
    if weights is None:
        ordered = np.sort(per_row, axis=-1)  # four times as fast as `np.quantile` in float32
        mean, sd = (of(ordered, axis=-1, dtype=np.float64) for of in (np.mean, np.std))
        return np.stack([mean, sd, *(_at_level(ordered, level) for level in levels)])
    flat = per_row.reshape(-1, block.shape[1]).T[None]
    found = moments(flat, weights)
    stacked = np.stack([found.mean, found.sd, *quantiles(flat, levels, weights)])
    return stacked.reshape(4, *per_row.shape[:-1])


def _at_level(ordered: Float[np.ndarray, "... k"], level: float) -> Float[np.ndarray, ...]:
    """The quantile of sorted values, interpolated as `np.quantile` does."""
    place = level * (ordered.shape[-1] - 1)
    below = int(place)
    low, high = (
        ordered[..., min(k, ordered.shape[-1] - 1)].astype(np.float64) for k in (below, below + 1)
    )
    return low + (place - below) * (high - low)


def log_sum(values: Float[np.ndarray, "n k"]) -> Float[np.ndarray, " n"]:
    """Log Σ_k exp."""
    highest = values.max(axis=1)
    return highest + np.log(np.exp(values - highest[:, None]).sum(axis=1))
