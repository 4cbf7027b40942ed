"""New rows for a fit: the series of the old rows moves to the new mode, that of new rows is added.

A fit keeps of its rows the hard ones and a polynomial P of all others, about its centre θ̂. The
polynomial is the same one about any other point: with u = δ + Au',

    P(u) = const + (g + Hδ + ½T[δ, δ])ᵀAu' + ½(Au')ᵀ(H + T[δ])Au' + T[Au', Au', Au']/6

so the old rows need not be read again. θ̂' is the mode of the prior, P, the hard rows and the new
rows, by Newton's method, and C' = CA the root of the inverse curvature there. The new rows are
sorted into hard and easy ones at θ̂', and both parts are added.

What P leaves out was small within five sds of the old posterior. Whether it is small at the new one
is known if the old rows are there to be read: the check reads all rows. Otherwise it reads the new
ones, the account says so, and a mode that has moved far is a doubt.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..._anchor.anchor import Anchor
from ..._anchor.optimisers import prior_derivatives
from ..._core.arrays import DenseMap, Matrix, Vector, named_leaves, on_device, with_leaves
from ..._core.errors import InvalidInput, PreparationError, counted
from ..._core.programs import quickly_compiled
from ..._core.supervision import checkpoint, in_background, stage
from ..._rows.access import RowAccess, RowBlock
from ..._rows.law import Batch
from ..._rows.resident import ResidentRows
from ...models.model import AbstractModel
from ...models.posterior import AbstractPosterior
from ..abstract import AbstractMethod, ErrorBudget, PreparedMethod, RunDefaults
from ..surrogate import (
    FEW_CHECKED,
    Expansion,
    RowSizes,
    SeriesSurrogate,
    check_on_all_rows,
    make_surrogate,
    rehearse_check,
    rehearse_sizes,
    rehearsed,
)
from ..trajectories import account_with
from .hard_rows import HARD_ROWS, SurrogatePlanner, enough_hard_rows, is_in_range
from .method import Automatic

_NEAR_ENOUGH, _MOST_STEPS = 0.03, 30
"""Distance to the mode in posterior sds at which Newton's method ends, and its steps at most."""
_MOST_TRIES = 3
_NEAR, _FARTHEST = 1.0, 3.0
"""How far modes may have moved in all, in sds, for a check at few draws, since that of the old fit
has looked there, and without a look at the old rows, since their series was made for five sds."""


@dataclasses.dataclass(frozen=True)
class FittedSeries:
    """What a fit keeps of its rows: a surrogate as arrays, which need no code to be read back."""

    n_rows: int
    accurate: bool
    arrays: Mapping[str, np.ndarray]
    """The arrays of a `SeriesSurrogate`, by the names of its fields, without those of its model."""
    model: Mapping[str, np.ndarray]
    """The arrays of the model, by path: its prior may depend on the first rows."""
    shards: str = ""
    """Identifies the shards of a row store that were fitted; empty for rows in memory."""
    view: Any = None
    """How the model sees lines of these shards; None if they are not known in this process."""
    moved: float = 0.0
    """How far modes have moved since the first fit, in sds per parameter."""

    @classmethod
    def of(
        cls, surrogate: SeriesSurrogate, n_rows: int, shards: str = "", view: Any = None
    ) -> FittedSeries:
        arrays: dict[str, Any] = {
            "centre": surrogate.centre,
            "metric.factor": surrogate.metric.factor,
            "linear": surrogate.linear,
            "quadratic": surrogate.quadratic,
            "size": surrogate.size,
        }
        if surrogate.cubic is not None:
            arrays["cubic"] = surrogate.cubic
        if surrogate.hard is not None:
            leaves = jax.tree.leaves(surrogate.hard.rows)
            arrays |= {f"hard.rows.{k}": leaf for k, leaf in enumerate(leaves)}
            arrays["hard.weights"] = surrogate.hard.weights
        on_host = {name: np.asarray(values) for name, values in arrays.items()}
        of_model = {path: np.asarray(leaf) for path, leaf in named_leaves(surrogate.model).items()}
        return cls(n_rows, surrogate.accurate, on_host, of_model, shards, view)

    def after(self, update: FittedSeries, n_new: int, shards: str) -> FittedSeries:
        """The series of an update by `n_new` rows, with what is counted from the first fit on."""
        step = update.arrays["centre"].astype(np.float64) - self.arrays["centre"]
        moves = np.linalg.solve(self.arrays["metric.factor"].astype(np.float64), step)
        moved = self.moved + float(np.linalg.norm(moves)) / math.sqrt(len(moves))
        return dataclasses.replace(
            update, n_rows=self.n_rows + n_new, moved=moved, shards=shards or self.shards
        )

    def surrogate(self, model: AbstractModel, block: RowBlock) -> SeriesSurrogate:
        """The surrogate of a model whose rows are like those of `block`."""
        arrays, like = self.arrays, jax.tree.leaves(block)
        hard = [values for name, values in arrays.items() if name.startswith("hard.rows.")]
        if hard and [leaf.shape[1:] for leaf in hard] != [leaf.shape[1:] for leaf in like]:
            rule = "have the columns of the fit, and an offset and weights if those had them"
            raise InvalidInput("new rows", rule, f"shapes {[leaf.shape for leaf in like]}")
        batch = None
        if hard:
            leaves = [jnp.asarray(a, b.dtype) for a, b in zip(hard, like, strict=True)]
            rows = jax.tree.unflatten(jax.tree.structure(block), leaves)
            batch = Batch(rows, jnp.asarray(arrays["hard.weights"], model.dtype))
        names = ("centre", "linear", "quadratic", "size", "cubic")
        return SeriesSurrogate(
            model=with_leaves(model, self.model),
            metric=DenseMap(on_device(arrays["metric.factor"], model.dtype)),
            hard=batch,
            accurate=self.accurate,
            **{n: on_device(arrays[n], model.dtype) if n in arrays else None for n in names},  # type: ignore[arg-type]
        )


class _EasyRows(NamedTuple):
    """P(u), in float64."""

    linear: Float[np.ndarray, " d"]
    quadratic: Float[np.ndarray, "d d"]
    cubic: Float[np.ndarray, "d d d"] | None

    @classmethod
    def of(cls, surrogate: SeriesSurrogate) -> _EasyRows:
        factor, dim = np.asarray(surrogate.metric.factor, np.float64), len(surrogate.centre)
        gradient, hessian = _of_hard_rows(surrogate, surrogate.centre)
        cubic = surrogate.cubic
        return cls(
            np.asarray(surrogate.linear, np.float64) - factor.T @ gradient,
            np.asarray(surrogate.quadratic, np.float64) - factor.T @ hessian @ factor,
            None if cubic is None else np.asarray(cubic, np.float64).reshape(dim, dim, dim),
        )

    def about(self, u: Float[np.ndarray, " d"]) -> _EasyRows:
        """The same polynomial about another point."""
        bent = np.zeros_like(self.quadratic) if self.cubic is None else self.cubic @ u
        gradient = self.linear + (self.quadratic + bent / 2) @ u
        return _EasyRows(gradient, self.quadratic + bent, self.cubic)

    def along(self, root: Float[np.ndarray, "d d"]) -> _EasyRows:
        """The same polynomial of u' with u = Au'."""
        cubic = self.cubic
        if cubic is not None:  # one index after the other: the first goes to the end each time
            for _ in range(3):
                cubic = np.tensordot(cubic, root, (0, 0))
        return _EasyRows(root.T @ self.linear, root.T @ self.quadratic @ root, cubic)


def _of_hard_rows(
    surrogate: SeriesSurrogate, position: Vector
) -> tuple[Float[np.ndarray, " d"], Float[np.ndarray, "d d"]]:
    """The sums of w_i ∇f_i and w_i ∇²f_i over the hard rows, in float64."""
    dim = len(surrogate.centre)
    if surrogate.hard is None:
        return np.zeros(dim), np.zeros((dim, dim))
    found = _derivatives_of_batch(surrogate.model, position, surrogate.hard)
    gradient, hessian = (np.asarray(each, np.float64) for each in found)
    return gradient, hessian


@quickly_compiled
def _derivatives_of_batch(
    model: AbstractModel, position: Vector, batch: Batch
) -> tuple[Vector, Matrix]:
    gradient = model.sum_remainders(0, position, position, batch)
    return gradient, model.block_hessian(position, batch.rows, batch.weights)


class _Moved(NamedTuple):
    """The old rows about the new mode, and the expansion of the new rows there."""

    old: SeriesSurrogate
    expansion: Expansion
    distance: float
    """Between the modes, in sds of the old posterior per parameter."""
    decrement: float
    n_row_evals: int


def move_to_mode(old: SeriesSurrogate, new: AbstractPosterior) -> _Moved:
    """Find the mode of the old rows, as the surrogate has them, and the new ones by Newton."""
    stage("finding the mode with the new rows")
    model, dtype = old.model, new.dtype
    centre, factor = (np.asarray(of, np.float64) for of in (old.centre, old.metric.factor))
    easy = _EasyRows.of(old)
    u: np.ndarray = np.zeros(len(centre))
    before, last = u, np.inf
    for count in range(1, _MOST_STEPS + 1):
        checkpoint()
        position = on_device(centre + factor @ u, dtype)
        at = np.asarray(position, np.float64)
        u = np.linalg.solve(factor, at - centre)
        expansion = Expansion.at(new, at, factor)
        of_hard = _of_hard_rows(old, position)
        _, *of_prior = (np.asarray(each, np.float64) for each in prior_derivatives(model, position))
        here = easy.about(u)
        gradient = here.linear + factor.T @ (expansion.gradient + of_hard[0] + of_prior[0])
        hessian = expansion.hessian + of_hard[1] + of_prior[1]
        hessian = here.quadratic + factor.T @ hessian @ factor
        try:
            inverse_root = np.linalg.inv(np.linalg.cholesky((hessian + hessian.T) / 2))
        except np.linalg.LinAlgError:
            break
        decrement = float(np.linalg.norm(inverse_root @ gradient))
        if decrement <= _NEAR_ENOUGH:
            root = np.linalg.cholesky(inverse_root.T @ inverse_root)
            metric = factor @ root
            moved = _about(old, position, metric, here.along(root), of_hard)
            distance = float(np.linalg.norm(u) / math.sqrt(len(u)))
            expansion = expansion._replace(factor=metric)
            return _Moved(moved, expansion, distance, decrement, count * new.n_rows)
        if decrement < last:
            before, last = u, decrement
            u = u - inverse_root.T @ (inverse_root @ gradient)
        else:
            u = (before + u) / 2
    raise PreparationError(
        "the old rows, as a series, and the new ones have no common mode nearby. "
        "Fit all rows together."
    )


def _about(
    old: SeriesSurrogate,
    position: Vector,
    factor: Float[np.ndarray, "d d"],
    easy: _EasyRows,
    of_hard: tuple[np.ndarray, np.ndarray],
) -> SeriesSurrogate:
    """The surrogate of the old rows at another centre and in another metric."""
    dtype, dim = old.centre.dtype, len(old.centre)
    values, vectors = np.linalg.eigh((easy.quadratic + easy.quadratic.T) / 2)
    quadratic = easy.quadratic + factor.T @ of_hard[1] @ factor
    cubic = easy.cubic
    return SeriesSurrogate(
        model=old.model,
        centre=position,
        metric=DenseMap(on_device(factor, dtype)),
        linear=on_device(easy.linear + factor.T @ of_hard[0], dtype),
        quadratic=on_device((quadratic + quadratic.T) / 2, dtype),
        size=on_device((vectors * np.abs(values)) @ vectors.T, dtype),
        cubic=None if cubic is None else on_device(cubic.reshape(dim, dim * dim), dtype),
        hard=old.hard,
        accurate=old.accurate,
    )


def joined(one: SeriesSurrogate, other: SeriesSurrogate) -> SeriesSurrogate:
    """The surrogate of the rows of two, which have the same centre and metric."""
    dtype = one.centre.dtype

    def total(*parts: Array) -> Array:
        """By NumPy, since each sum would be a program."""
        return on_device(sum(map(np.asarray, parts)), dtype)

    cubics = [each.cubic for each in (one, other) if each.cubic is not None]
    batches = [each.hard for each in (one, other) if each.hard is not None]
    return SeriesSurrogate(
        model=one.model,
        centre=one.centre,
        metric=one.metric,
        linear=total(one.linear, other.linear),
        quadratic=total(one.quadratic, other.quadratic),
        size=total(one.size, other.size),
        cubic=total(*cubics) if cubics else None,
        hard=_one_batch(batches) if batches else None,
        accurate=one.accurate or other.accurate,
    )


def _one_batch(batches: list[Batch]) -> Batch:
    if len(batches) == 1:
        return batches[0]
    weights = np.concatenate([np.asarray(batch.weights) for batch in batches])
    rows = joined_rows(*(batch.rows for batch in batches))
    used = np.flatnonzero(weights)  # the others fill up to a power of two
    return rows.batch_of(used, weights[used], weights.dtype)


def joined_rows(*blocks: RowBlock) -> ResidentRows:
    """Some blocks of rows, one after the other."""

    def column(*parts: Any) -> Array:
        return jax.device_put(np.concatenate([np.asarray(part) for part in parts]))

    return ResidentRows(jax.tree.map(column, *blocks))


@dataclasses.dataclass(frozen=True)
class Update(AbstractMethod):
    """The default for a fit with new rows. The posterior has all rows, or the new ones only.

    **Arguments:**

    - `series`: what the fit kept of the old rows.
    - `new`: the posterior with the new rows.
    """

    row_access = RowAccess.STREAM

    series: FittedSeries
    new: AbstractPosterior

    def defaults(self, dim: int) -> RunDefaults:
        return Automatic().defaults(dim)

    @property
    def axes(self) -> dict[str, str]:
        return Automatic().axes

    def prepare(
        self, posterior: AbstractPosterior, anchor: Anchor | None = None, *, seed: int = 0
    ) -> PreparedMethod:
        assert anchor is None, "an update finds its own"
        series, new = self.series, self.new
        reads_old = posterior.n_rows > new.n_rows
        if new.rows.access >= RowAccess.TAKE:
            in_background(lambda: rehearse_sizes(new))
        old = series.surrogate(new.model, new.rows.read(np.arange(1)))
        moved = move_to_mode(old, new)
        far = series.moved + moved.distance
        is_near = far <= _NEAR
        planner = SurrogatePlanner(
            posterior,
            _anchor(moved),
            ErrorBudget(),
            exact=False,
            seed=seed,
            n_row_evals=moved.n_row_evals + new.n_rows,
            n_unread=0 if reads_old else series.n_rows,
        )
        stage("looking for hard rows")
        sizes = RowSizes.of(new, moved.expansion)
        for number in range(_MOST_TRIES):
            place = min(enough_hard_rows(sizes) + number, len(HARD_ROWS) - 1)
            n_hard = min(HARD_ROWS[place], new.n_rows)
            if number == 0 and not reads_old:
                like = rehearsed(new, sizes, n_hard)
                in_background(functools.partial(rehearse_check, like, new.rows))
            added = make_surrogate(new, moved.expansion, sizes, n_hard, number)
            whole = joined(moved.old, added)
            chains = planner.tuned(whole, whole.n_hard)
            if not reads_old:
                check = check_on_all_rows(added, new.rows, chains.draws)
            else:
                check = planner.checked(whole, chains, few=is_near)
            planner.n_row_evals += check.n_row_evals
            small = planner.is_small(check)
            if small or n_hard == new.n_rows:
                break
        if not is_in_range(whole.whitened(chains.draws)) or not (small or reads_old):
            raise PreparationError(
                f"the log density of the new rows is off by {check.sd:.2g}. Fit all rows together."
            )
        if reads_old and not planner.is_correctable(check):
            raise PreparationError(
                f"with the new rows, the series of the old ones is off by {check.sd:.2g} in the "
                "log density. Fit all rows together."
            )
        prepared = planner.finished(chains, check, delayed=not small)
        account = prepared.account
        assert account is not None
        why = (
            f"{counted(new.n_rows, 'new row')} beside {series.n_rows:,} old ones, whose series "
            f"moved by {moved.distance:.2g} sd to the new mode"
        )
        account = dataclasses.replace(account, reasons=(why, *account.reasons))
        if reads_old and is_near and check.n_draws == FEW_CHECKED:
            account = account_with(check, account)
        if not reads_old:
            account = dataclasses.replace(account, bias=check.bias, n_unread=series.n_rows)
            if far > _FARTHEST:
                account = account.doubting(
                    f"the mode has moved by {far:.2g} sd since the old rows were fitted, and "
                    f"their series holds within {_FARTHEST:g}. Pass old_rows, or fit all rows "
                    "together."
                )
        return prepared._replace(account=account)


def _anchor(moved: _Moved) -> Anchor:
    """The new mode as an anchor; its potential is not known."""
    factor, dtype = moved.expansion.factor, moved.old.centre.dtype
    return Anchor(
        moved.old.centre,
        math.nan,
        on_device(np.zeros(len(factor)), dtype),
        None,
        on_device(factor @ factor.T, dtype),
        on_device(factor, dtype),
        moved.decrement,
        0,
        True,
    )
