"""Build the posterior of a regression from its rows, its likelihood and its priors."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike, Float

from .._core.arrays import Layout, layout_of
from .._core.errors import InvalidInput, check_int
from .._rows.resident import ResidentRows
from .._rows.sharded import ShardedRows
from .design import (
    GroupedObservations,
    Observations,
    RegressionData,
    matrix_of,
    normal_prior,
    regression_data,
)
from .generalised_linear import GeneralisedLinear, LinearPredictor, pack
from .groups import (
    AbstractGroups,
    EffectLaw,
    NormalGroups,
    QuadratureGroups,
    group_sums,
    grouped_table,
    turns,
)
from .hierarchy import AbstractHyperprior, GroupEffects, Hierarchical, SeveralHyperpriors
from .likelihood import START_MAX_DIM, WHOLE, AbstractLikelihood, ResponseKind, chosen_rows
from .model import AbstractModel
from .posterior import ModelPosterior
from .predictive import response_rule
from .priors import AbstractPrior, JoinedPrior

# Where the search for the mode starts with group effects: at estimated effects and spreads.
#
#     −log p(u, σ) = Σ_g u_g²/2σ² + G log σ
#
# The density of effects and spreads has no bound where both go to zero. With u = 0, every search
# goes there. Its useful mode is a local one, where the effects are those that the rows support. The
# start is therefore close to it: Newton steps for the coefficients and for the effects of each
# group in turn, and σ² = mean of u_g² + Var u_g, an EM step, on some of the rows.

_ROUNDS = 15
_HALVINGS = 10
SD_DEGREES = 4.0
"""Degrees of freedom of the half-t priors of sds of effects."""
_LEAST_CURVATURE = 1e-6
"""Least curvature of a row, relative to the mean; some potentials are not convex."""


def start_of_effects(
    block: GroupedObservations,
    x: Float[np.ndarray, "n c"],
    likelihood: AbstractLikelihood,
    beta: Float[np.ndarray, " c"],
    shared: Float[np.ndarray, " e"],
    log_sds: list[Float[np.ndarray, " _"]],
) -> tuple[Float[np.ndarray, " c"], list[np.ndarray], list[np.ndarray]]:
    """Common coefficients, effects (groups, columns) and log sds of each term, from some rows."""
    potential, derivatives = _row_terms(block, likelihood, shared)
    z = x @ beta + (0.0 if block.offset is None else np.asarray(block.offset, np.float64))
    terms = [
        (np.asarray(term.codes), np.asarray(term.columns, np.float64), term.n_groups)
        for term in block.terms
    ]
    effects = [np.zeros((n_groups, columns.shape[1])) for _, columns, n_groups in terms]
    log_sds = [np.array(each, np.float64) for each in log_sds]
    for _ in range(_ROUNDS):
        slopes, curvatures = derivatives(z)
        gram = (x * curvatures[:, None]).T @ x
        step = -np.linalg.lstsq(gram, x.T @ slopes, rcond=None)[0]
        size = _step_size(potential, z, x @ step, lambda size: 0.0)
        beta, z = beta + size * step, z + size * (x @ step)
        for k, (codes, columns, n_groups) in enumerate(terms):
            slopes, curvatures = derivatives(z)
            precision = np.exp(-2 * log_sds[k])
            products = columns[:, :, None] * columns[:, None, :] * curvatures[:, None, None]
            hessians = _sums(products, codes, n_groups) + np.diag(precision)
            gradients = _sums(columns * slopes[:, None], codes, n_groups) + effects[k] * precision
            steps = -np.linalg.solve(hessians, gradients[:, :, None])[:, :, 0]
            along = np.sum(columns * steps[codes], axis=1)

            def penalty(
                size: float, at: Any = effects[k], steps: Any = steps, precision: Any = precision
            ) -> float:
                return 0.5 * float(np.sum((at + size * steps) ** 2 * precision))

            size = _step_size(potential, z, along, penalty)
            effects[k], z = effects[k] + size * steps, z + size * along
            spread = np.diagonal(np.linalg.inv(hessians), axis1=1, axis2=2)
            log_sds[k] = 0.5 * np.log(np.mean(effects[k] ** 2 + spread, axis=0))
    return beta, effects, log_sds


def _step_size(
    potential: Callable[[np.ndarray], float],
    z: np.ndarray,
    along: np.ndarray,
    penalty: Callable[[float], float],
) -> float:
    """The first of 1, ½, ¼, … that lowers the potential; 0 if none does."""
    size, now = 1.0, potential(z) + penalty(0.0)
    for _ in range(_HALVINGS):
        if potential(z + size * along) + penalty(size) <= now:
            return size
        size /= 2
    return 0.0


def _sums(values: np.ndarray, codes: np.ndarray, n_groups: int) -> np.ndarray:
    """Sums over the rows of each group."""
    flat = values.reshape(len(codes), -1)
    sums = [np.bincount(codes, column, n_groups) for column in flat.T]
    return np.stack(sums, axis=1).reshape(n_groups, *values.shape[1:])


def _row_terms(
    block: GroupedObservations, likelihood: AbstractLikelihood, shared: np.ndarray
) -> tuple[Callable[[np.ndarray], float], Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]]:
    """Σ w_i f(z_i), and its slopes and curvatures per row, as functions of z on the host."""
    dtype = block.fixed.dtype
    fixed = jnp.asarray(shared, dtype)
    weights = 1.0 if block.weight is None else np.asarray(block.weight, np.float64)

    def potentials(z: Any) -> Any:
        if likelihood.elementwise:
            return likelihood.potential(z, block.y)
        return jax.vmap(lambda at, y: likelihood.potential(jnp.concatenate([at[None], fixed]), y))(
            z, block.y
        )

    @jax.jit
    def values(z: Any) -> tuple[Any, Any, Any]:
        # Rows are independent: derivatives with respect to all z at once are those of each row.
        slope = jax.grad(lambda at: jnp.sum(potentials(at)))
        slopes, curvatures = jax.jvp(slope, (z,), (jnp.ones_like(z),))
        return potentials(z), slopes, curvatures

    def at(z: np.ndarray) -> tuple[np.ndarray, ...]:
        found = values(jnp.asarray(z, dtype))
        return tuple(weights * np.asarray(each, np.float64) for each in found)

    def derivatives(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        _, slopes, curvatures = at(z)
        least = _LEAST_CURVATURE * np.mean(np.abs(curvatures)) + np.finfo(np.float64).tiny
        return slopes, np.maximum(curvatures, least)

    return lambda z: float(np.sum(at(z)[0])), derivatives


class Shared(NamedTuple):
    """A parameter that all rows share, such as the log of a noise scale."""

    name: str
    start: Any
    """Its value where the search for the mode starts: a number or a vector."""
    prior: AbstractPrior


class Hyper(NamedTuple):
    """Hyper-parameters, and the prior of the coefficients given them."""

    names: tuple[str, ...]
    starts: tuple[np.ndarray, ...]
    hyperprior: AbstractHyperprior


class Effects(NamedTuple):
    """The name of a group term, and its numbers of groups and columns."""

    name: str
    shape: tuple[int, int]


def regression_posterior(
    data: RegressionData,
    likelihood: AbstractLikelihood,
    prior: AbstractPrior,
    *,
    start: ArrayLike | None = None,
    shared: Sequence[Shared] = (),
    effects: Sequence[Effects] = (),
    hyper: Sequence[Hyper] = (),
) -> ModelPosterior:
    """The posterior of a regression.

    `prior` is the prior of all coefficients, those of group terms included. `start` holds the
    common coefficients where the search for the mode starts; by default those of the likelihood's
    starting point, else zero. `shared` are the parameters that all rows share, in the order of the
    likelihood, and `effects` the group terms, in the order of the columns.
    """
    dtype = data.dtype
    n_effects = sum(groups * columns for _, (groups, columns) in effects)
    shape: tuple[int, ...] = (data.n_columns - n_effects,)
    if likelihood.n_predictors > 1:
        if effects:
            raise InvalidInput("group terms", "be left out with several predictors", len(effects))
        shape = (*shape, likelihood.n_predictors)
    if start is None:
        start, shared = _start_of(likelihood, data, shared)
    beta = np.zeros(shape) if start is None else np.asarray(start, float)
    of_effects = [np.zeros(shape) for _, shape in effects]
    if effects and hyper and not data.has_pairs:
        beta, of_effects, hyper = _start_with_effects(
            likelihood, data, beta, shared, effects, hyper
        )
    parts = [("beta", beta)]
    parts += [(each.name, values) for each, values in zip(effects, of_effects, strict=True)]
    parts += [(each.name, np.asarray(each.start, float)) for each in shared]
    n_coefficients = sum(values.size for _, values in parts[: 1 + len(effects)])
    priors = [prior, *(each.prior for each in shared)]
    lengths = [n_coefficients, *(np.size(each.start) for each in shared)]
    joined = JoinedPrior(tuple(priors), tuple(lengths)) if shared else prior
    layout, init = _layout(parts, dtype, data.names)
    kind = GeneralisedLinear if likelihood.elementwise else LinearPredictor
    model: AbstractModel = kind(
        init=init,
        layout=layout,
        likelihood=likelihood,
        prior=joined,
        level_values=data.level_values,
    )
    if hyper:
        for each in hyper:
            parts += zip(each.names, each.starts, strict=True)
        layout, init = _layout(parts, dtype, data.names)
        hyperprior = SeveralHyperpriors(tuple(each.hyperprior for each in hyper))
        model = Hierarchical(init=init, layout=layout, inner=model, hyperprior=hyperprior)
    rows = data.rows
    if isinstance(rows, ResidentRows) and likelihood.fused:
        columns = rows.columns
        is_matrix = isinstance(columns, Observations) and isinstance(columns.x, jax.Array)
        if is_matrix and columns.offset is None is columns.weight:
            rows = ResidentRows(columns, pack(columns.x, columns.y))  # for the fused sum of a GPU
    return ModelPosterior(model, rows)


_START_SD = 0.2
MOST_EFFECTS = 5
"""Effects per group that quadrature integrates out."""
_NODES = {1: 9, 2: 7, 3: 5, 4: 4, 5: 3}
"""Nodes per effect, by the number of effects."""


def group_posterior(
    data: RegressionData,
    groups: GroupedObservations,
    likelihood: AbstractLikelihood,
    prior: AbstractPrior,
    *,
    name: str,
    sd_scale: float,
    sd_prior: AbstractPrior,
    start: ArrayLike | None = None,
    shared: Sequence[Shared] = (),
) -> tuple[ModelPosterior, EffectLaw]:
    """The posterior of a regression with one group term, and the law of its effects.

    The effects are integrated out, so the rows of the posterior are groups. `data` are the rows
    without the term, which `groups` has. `sd_prior` is the prior of the logs of their sds, which
    start at a share of `sd_scale`.
    """
    dtype, n_effects = data.dtype, groups.terms[0].columns.shape[1]
    if start is None:
        start, shared = _start_of(likelihood, data, shared)
    beta = np.zeros(data.n_columns) if start is None else np.asarray(start, float)
    parts = [("beta", beta), *((each.name, np.asarray(each.start, float)) for each in shared)]
    lengths = [values.size for _, values in parts]
    joined = JoinedPrior((prior, *(each.prior for each in shared)), tuple(lengths))
    parts += [(f"log sd of {name}", np.full(n_effects, np.log(_START_SD * sd_scale)))]
    if n_effects > 1:
        n_pairs = n_effects * (n_effects - 1) // 2
        parts += [(f"correlations of {name}", np.zeros(n_pairs))]
    layout, init = _layout(parts, dtype, data.names)
    found = grouped_table(groups)
    common: dict[str, Any] = {
        "init": init,
        "layout": layout,
        "likelihood": likelihood,
        "prior": joined if shared else prior,
        "sd_prior": sd_prior,
        "n_columns": data.n_columns,
        "n_effects": n_effects,
    }
    rows = found.rows
    model: AbstractGroups
    if likelihood.is_normal:
        rows, xx = group_sums(found, beta)
        model = NormalGroups(**common, centre=jnp.asarray(beta, dtype), xx=xx)
    else:
        nodes = _NODES[n_effects]
        of_turn = turns(np.asarray(rows.columns.size), nodes**n_effects)
        model = QuadratureGroups(**common, table=found.table, n_nodes=nodes, **of_turn._asdict())
    law = EffectLaw(model, rows, jnp.asarray(found.places))
    return ModelPosterior(model, rows), law


def _start_of(
    likelihood: AbstractLikelihood, data: RegressionData, shared: Sequence[Shared]
) -> tuple[np.ndarray | None, Sequence[Shared]]:
    """The start of the likelihood, if it has one, and the shared parameters there.

    Without shared parameters, zero is a good start, and no row has to be read.
    """
    if not shared or data.n_columns > START_MAX_DIM:
        return None, shared
    found = likelihood.starting_point(data.some(chosen_rows(data)))
    if found is None:
        return None, shared
    return found.beta, [
        each._replace(start=value) for each, value in zip(shared, found.shared, strict=True)
    ]


def _start_with_effects(
    likelihood: AbstractLikelihood,
    data: RegressionData,
    beta: np.ndarray,
    shared: Sequence[Shared],
    effects: Sequence[Effects],
    hyper: Sequence[Hyper],
) -> tuple[np.ndarray, list[np.ndarray], Sequence[Hyper]]:
    """Coefficients, effects and spreads near those that the rows support."""
    rows = data.rows.take(jnp.asarray(chosen_rows(data)))
    # One for each term, in their order.
    spreads = [k for k, each in enumerate(hyper) if isinstance(each.hyperprior, GroupEffects)]
    found_beta, found_effects, log_sds = start_of_effects(
        rows,
        np.asarray(matrix_of(rows.fixed, data.level_values), np.float64),
        likelihood,
        beta,
        np.concatenate([np.zeros(0), *(np.ravel(each.start) for each in shared)]),
        [hyper[k].starts[0] for k in spreads],
    )
    if not np.isfinite(np.concatenate([*log_sds, *map(np.ravel, found_effects)])).all():
        return beta, [np.zeros(shape) for _, shape in effects], hyper
    moved = list(hyper)
    for k, sds in zip(spreads, log_sds, strict=True):
        moved[k] = hyper[k]._replace(starts=(sds, *hyper[k].starts[1:]))
    return found_beta, found_effects, moved


def _layout(
    parts: Sequence[tuple[str, np.ndarray]], dtype: Any, names: Sequence[str] | None
) -> tuple[Layout, Any]:
    """The layout of the parts in their order, with the columns as names of the coefficients."""
    found = collections.OrderedDict((name, np.asarray(values, dtype)) for name, values in parts)
    # Plain dicts are ordered by name: keep them where that is the order of the parts.
    in_order = list(found) == sorted(found)
    layout, init = layout_of(dict(found) if in_order else found)
    n_common = len(parts[0][1])
    named = names is not None and parts[0][1].ndim == 1
    return (layout.labelled({"beta": names[:n_common]}) if named and names else layout), init


@dataclasses.dataclass(frozen=True)
class Family:
    """A family of responses: its name, and how it becomes a model.

    The regressions of `tallmc.models`, the families of `tallmc.fit`, the tables of the docs and the
    tests derive from these records.
    """

    name: str
    links: tuple[str, ...]
    """The link functions that it may have; the first is the default."""
    likelihood: Callable[[str, int, Any], AbstractLikelihood]
    """The likelihood, from the link, the number of classes (or of intervals of piecewise hazards),
    and what is known: the noise variance, the breaks between intervals or the level of a quantile;
    None if nothing."""
    shared: Callable[[RegressionData, int], Sequence[Shared]] = lambda data, classes: ()
    """The parameters that all rows share, with their priors, from the rows and the classes."""
    shared_prior: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """The priors of shared parameters, in words."""
    has_intercept: bool = True
    """Whether a column of ones is a covariate. Cut points take its place."""
    other_names: tuple[str, ...] = ()

    @property
    def response(self) -> ResponseKind:
        """What its response must be."""
        return self.likelihood(self.links[0], 2, None).response

    def link(self, chosen: str | None) -> str:
        """The link function; raises if the family does not have it."""
        if chosen is None:
            return self.links[0]
        if chosen not in self.links:
            rule = f"be {' or '.join(self.links)} for {self.name}"
            raise InvalidInput("--link (link)", rule, chosen)
        return chosen

    def regression(
        self,
        X: ArrayLike | ShardedRows,
        y: ArrayLike | None,
        prior_variance: ArrayLike | None,
        response: str | None = None,
        weights: ArrayLike | str | None = None,
        offset: ArrayLike | str | None = None,
        *,
        link: str | None = None,
        classes: int | None = None,
    ) -> ModelPosterior:
        """The posterior of a regression with independent normal priors of the coefficients."""
        kind, n_classes = self.response, 0
        data = regression_data(X, y, response, weights, offset, times=kind == "times")
        if kind in ("classes", "ordered"):
            classes = int(data.y_high) + 1 if classes is None else classes
            n_classes = check_int("classes", classes, 2)
        # `shared` of other families checks their responses.
        if kind in WHOLE:
            data.check_response(*response_rule(kind, n_classes))
        likelihood = self.likelihood(self.link(link), n_classes, None)
        prior = normal_prior(prior_variance, data, likelihood.n_predictors)
        return regression_posterior(data, likelihood, prior, shared=self.shared(data, n_classes))
