"""Posteriors with parameters of groups, of which a step moves those of its rows only.

A position of the posterior holds the shared parameters and the *kept* groups. Chains hold the
parameters of all groups, and their draws hold the kept ones. If all groups are kept, the posterior
is an ordinary one: every method of the library, `find_anchor` and NUTS run on it.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, ArrayLike, Bool, Float, Int, PRNGKeyArray, PyTree

from .._anchor.anchor import Anchor
from .._core.arrays import (
    AbstractQuantities,
    Layout,
    Parameters,
    Scalar,
    Vector,
    check_numeric,
    layout_of,
    to_floats,
)
from .._core.errors import InvalidInput, check_int, check_number, outcome_of
from .._core.random import derived_keys, key_of, random_words, standard_normal
from .._core.statistics import GroupMoments, extended
from .._core.supervision import stage
from .._engine.kernel import AbstractKernel, BoundKernel, ChainState, Drawn, Gathered, KernelStep
from .._rows.access import AbstractRows, PerRow, RowValues
from .._rows.law import AbstractStream, Batch, RowDraws
from .._rows.passes import Sum
from .._rows.probabilities import probabilities
from .._rows.resident import ResidentRows, resident
from ..dynamics import Langevin
from ..dynamics.dynamics import Curvature, PositionState, Suggestion
from ..methods.abstract import AbstractMethod, PreparedMethod, labels
from ..methods.method import StepSize
from ..methods.registry import named
from ..models.design import Observations
from ..models.model import AbstractModel, DensityModel, check_scalar
from ..models.outputs import (
    GammaLaw,
    GaussianOutput,
    OutputLikelihood,
    normal_log_density,
    output_posterior,
)
from ..models.posterior import AbstractPosterior, ModelPosterior, check_posterior
from ..models.predictive import AbstractPredictive
from ..models.transforms import Constraints, constrained, constrained_parameters
from ..schedule import AbstractSchedule, as_schedule, in_precision

__all__ = ["Local", "LocalPosterior", "NormalGroups", "local_sgld", "matrix_factorisation"]

# Priors of the parameters of groups, given the shared parameters.
#
#     log p(z_1, …, z_G | φ) = Σ_g log p(z_g | φ)
#
# A step that knows only some groups has two ways to the gradient of this sum with respect to φ. In
# general it is estimated from the touched groups, each with the weight 1/q_g, where q_g is the
# probability that a step touches the group. The estimate is unbiased. With s_g = ∇_φ log p(z_g |
# φ), its covariance is Σ_g (1/q_g − 1) s_g s_gᵀ, up to the small dependence between groups. If the
# sum depends on the groups through a sum of statistics, this sum is kept up to date, and the
# gradient has no noise. For independent Gaussian entries
#
#     Σ_g log p(z_g | φ) = −½ Σ_j [(B_j − 2 m_j A_j + G m_j²)/s_j² + G log 2πs_j²],
#     A = Σ_g z_g,   B = Σ_g z_g²,   with mean m(φ) and standard deviation s(φ)
#
# A and B change by the touched groups only.


GroupVectors = Float[Array, "n ..."]


class AbstractGroupPrior(eqx.Module):
    """log p(z | φ) of one kind of groups.

    By default the gradient with respect to φ comes from touched groups.
    """

    @abc.abstractmethod
    def log_density(self, shared: PyTree, values: Float[Array, "*k"]) -> Array:
        """Log p(z_g | φ) of one group, a scalar."""

    def statistics(self, values: GroupVectors) -> PyTree[Array]:
        """Statistics of each group whose sum is kept; None if there are none."""
        return None

    def log_density_of_all(
        self, shared: PyTree, values: GroupVectors, weights: PerRow, totals: PyTree, count: int
    ) -> Scalar:
        """Σ log p(z_g | φ) over all groups, as a function of φ.

        `values` are those of some groups, with `weights` such that they stand for all `count`
        groups; `totals` is the sum of the statistics of all groups.
        """
        densities = jax.vmap(self.log_density, in_axes=(None, 0))(shared, values)
        # A slot without a group has weight 0, and its density may be infinite.
        return jnp.sum(jnp.where(weights > 0, weights * densities, 0))


class GroupDensity(AbstractGroupPrior):
    """A prior given as a function."""

    function: Callable[[PyTree, Array], Any]

    def log_density(self, shared: PyTree, values: Float[Array, "*k"]) -> Array:
        return jnp.asarray(self.function(shared, values))


class NormalGroups(AbstractGroupPrior):
    """Independent normal entries: the gradient with respect to φ has no noise.

    `law(shared)` is a pair (mean, sd). Each is a number or has the shape of the parameters of a
    group.
    """

    law: Callable[[PyTree], tuple[Any, Any]]

    def log_density(self, shared: PyTree, values: Float[Array, "*k"]) -> Scalar:
        mean, sd = (jnp.asarray(part) for part in self.law(shared))
        return -0.5 * jnp.sum(((values - mean) / sd) ** 2 + jnp.log(2 * np.pi * sd**2))

    def statistics(self, values: GroupVectors) -> tuple[Array, Array]:
        return values, values**2

    def log_density_of_all(
        self, shared: PyTree, values: GroupVectors, weights: PerRow, totals: PyTree, count: int
    ) -> Scalar:
        mean, sd = (jnp.asarray(part) for part in self.law(shared))
        first, second = totals
        squares = second - 2 * mean * first + count * mean**2
        return -0.5 * jnp.sum(squares / sd**2 + count * jnp.log(2 * np.pi * sd**2))


def group_prior(parameter: str, given: Any) -> AbstractGroupPrior:
    """The prior from a function or a prior; raises for anything else."""
    if isinstance(given, AbstractGroupPrior):
        return given
    if not callable(given):
        rule = "be a function (shared, values) or NormalGroups(...)"
        raise InvalidInput(parameter, rule, given)
    return GroupDensity(given)


# Densities of a model with shared parameters φ and parameters z_g of groups of rows.
#
#     f(φ, z) = −log p(φ) − Σ_k Σ_g log p(z_{k,g} | φ) − Σ_i log p(x_i | φ, z_{1,g₁(i)}, …)
#
# k is a kind of groups, such as users and items, and g_k(i) is the group of row i. A row depends on
# φ and on one group of each kind.


class LocalRows(NamedTuple):
    """Rows with the numbers of their groups."""

    data: PyTree[Array]
    groups: dict[str, Int[Array, " n"]]  # The group of each row, by kind


class LocalDensities(eqx.Module):
    """The log densities of a model with parameters of groups."""

    # log p(x_i | φ, z), of constrained shared parameters and the groups of the row.
    log_likelihood: Callable[[PyTree, dict[str, Array], PyTree], Any]
    log_prior: Callable[[PyTree], Any]  # log p(φ), of constrained shared parameters
    group_priors: dict[str, AbstractGroupPrior]
    constraints: Constraints | None  # of the shared parameters
    layout: Layout = eqx.field(static=True)  # The layout of the unconstrained shared parameters

    def constrained(self, shared: PyTree) -> PyTree:
        return shared if self.constraints is None else self.constraints(shared)

    def shared_log_prior(self, shared: PyTree) -> Scalar:
        """Log p(φ), with the Jacobian of the constraints."""
        log_prior = jnp.asarray(self.log_prior(self.constrained(shared)))
        if self.constraints is None:
            return log_prior
        return log_prior + self.constraints.log_determinant(shared)

    def of_rows(self, shared: PyTree, local: Mapping[str, Array], data: PyTree[Array]) -> PerRow:
        """Log p(x_i | φ, z) per row; `local` has the parameters of the groups of each row."""
        constrained = self.constrained(shared)
        return jax.vmap(self.log_likelihood, in_axes=(None, 0, 0))(constrained, dict(local), data)

    def of_groups(self, kind: str, shared: PyTree, values: GroupVectors) -> Array:
        """Log p(z_g | φ) of each of these groups."""
        density = self.group_priors[kind].log_density
        return jax.vmap(density, in_axes=(None, 0))(self.constrained(shared), values)

    def split(self, params: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Array]]:
        """The shared parameters, and those of the groups by kind."""
        shared = {name: part for name, part in params.items() if name not in self.group_priors}
        return shared, {kind: params[kind] for kind in params if kind in self.group_priors}


class DenseLikelihood(eqx.Module):
    """The log-likelihood of rows as a function of all parameters."""

    densities: LocalDensities

    def __call__(self, params: Mapping[str, Any], block: LocalRows) -> PerRow:
        shared, groups = self.densities.split(params)
        local = {kind: values[block.groups[kind]] for kind, values in groups.items()}
        return self.densities.of_rows(shared, local, block.data)


class DensePrior(eqx.Module):
    """The log prior of all parameters."""

    densities: LocalDensities

    def __call__(self, params: Mapping[str, Any]) -> Scalar:
        shared, groups = self.densities.split(params)
        total = self.densities.shared_log_prior(shared)
        for kind, values in groups.items():
            total = total + jnp.sum(self.densities.of_groups(kind, shared, values))
        return total


class HiddenGroups(eqx.Module):
    """Stands for a density of a position that holds some groups only."""

    def __call__(self, *_: Any) -> Array:
        raise InvalidInput(
            "posterior",
            "keep all groups for this: its positions are the shared parameters and the kept groups",
            "some groups",
            'Sample with tallmc.contrib.groups.local_sgld(...), or use posterior.keeping("all").',
        )


_MOST_KEPT_ENTRIES = 2000
_KEPT_BY_DEFAULT = 100


@dataclasses.dataclass(frozen=True, eq=False)
class Local:
    """One kind of groups: the group of each row, where the parameters start, and their prior.

    **Arguments:**

    - `groups`: the group of each row, numbered from 0. Every group has a row.
    - `init`: the parameters of all groups at the start, an array (groups, ...).
    - `log_prior`: `log_prior(shared, values)`, a scalar for the parameters of one group. With
      `NormalGroups(law)`, the gradient of the shared parameters has less noise.
    """

    groups: ArrayLike
    init: ArrayLike
    log_prior: Callable[[PyTree, Array], Any] | AbstractGroupPrior

    @property
    def count(self) -> int:
        """The number of groups."""
        return np.shape(self.init)[0]


class LocalPosterior(AbstractPosterior):
    """A posterior with shared parameters and parameters of groups of rows.

    `local_sgld` samples it: a step moves the shared parameters and the groups of its rows,
    so its cost does not grow with the number of groups.

    **Arguments:**

    - `log_likelihood`: `log_likelihood(shared, local, row)`, a scalar. `shared` has the structure
      of `init`. `local` is a dict with the parameters of the row's own group of each kind. `row`
      has the structure of `data`, without the leading axis of the arrays.
    - `log_prior`: `log_prior(shared)`, a scalar: the prior of the shared parameters.
    - `data`: a pytree of arrays with one common leading axis.
    - `init`: a dict of floats or arrays, the shared parameters at the start.
    - `groups`: a `Local` for each kind of groups, by name.
    - `transforms`: constraints of shared parameters, as in `tallmc.Posterior`.
    - `keep`: the groups whose draws are kept: "all", or their numbers by kind. Kinds that are left
      out keep none. By default all groups are kept if positions then have at most 2,000 entries,
      and otherwise the first 100 groups of each kind. Means and standard deviations of all groups
      are in `Draws.group_moments` in any case.
    - `description`: the model in words.
    """

    model: DensityModel
    rows: ResidentRows
    quantities: AbstractQuantities = eqx.field(static=True)
    description: Mapping[str, str] = eqx.field(static=True)
    predictive: AbstractPredictive | None
    densities: LocalDensities
    shared_init: PyTree[Array]
    """The unconstrained shared parameters at the start."""
    group_init: dict[str, Float[Array, "groups ..."]]
    """The parameters of all groups at the start, by kind."""
    kept: dict[str, Int[np.ndarray, " kept"]]
    """The numbers of the kept groups, by kind."""

    def __init__(
        self,
        log_likelihood: Callable[[PyTree, dict[str, Array], PyTree], Any],
        log_prior: Callable[[PyTree], Any],
        data: PyTree[ArrayLike],
        init: Mapping[str, PyTree[ArrayLike]],
        groups: Mapping[str, Local],
        *,
        transforms: Mapping[str, Any] | None = None,
        keep: str | Mapping[str, ArrayLike] | None = None,
        description: Mapping[str, str] | None = None,
    ):
        for name, density in (("log_likelihood", log_likelihood), ("log_prior", log_prior)):
            if not callable(density):
                raise InvalidInput(name, "be a function", density)
        _check_names(init, groups)
        columns = resident(data).columns
        n_rows = jax.tree.leaves(columns)[0].shape[0]
        shared, constraints = dict(init), None
        if transforms:
            constraints, shared = constrained(shared, transforms, {})
        layout, flat = layout_of(shared)
        self.shared_init = layout.unravel(flat)
        self.densities = LocalDensities(
            log_likelihood=log_likelihood,
            log_prior=log_prior,
            group_priors={
                kind: group_prior(f"groups[{kind!r}].log_prior", local.log_prior)
                for kind, local in groups.items()
            },
            constraints=constraints,
            layout=layout,
        )
        numbers = {kind: _numbers(kind, local, n_rows) for kind, local in groups.items()}
        self.rows = ResidentRows(LocalRows(columns, jax.tree.map(jnp.asarray, numbers)))
        self.group_init = {
            kind: to_floats(f"groups[{kind!r}].init", local.init, flat.dtype)
            for kind, local in groups.items()
        }
        self.description, self.predictive = dict(description or {}), None
        self._check_densities()
        self.kept = self._numbers_of(keep)
        self.model, self.quantities = self._visible(self.kept)

    def keeping(self, keep: str | Mapping[str, ArrayLike]) -> LocalPosterior:
        """The same posterior with other groups kept: "all", or their numbers by kind."""
        kept = self._numbers_of(keep)
        model, quantities = self._visible(kept)
        changed = {"kept": kept, "model": model, "quantities": quantities}
        # Without the constructor, which would check all rows again.
        found = object.__new__(LocalPosterior)
        for name in (field.name for field in dataclasses.fields(self)):
            object.__setattr__(found, name, changed.get(name, getattr(self, name)))
        return found

    def _check_densities(self) -> None:
        densities = self.densities
        seen = jax.eval_shape(densities.constrained, self.shared_init)
        local = {
            kind: jax.ShapeDtypeStruct(values.shape[1:], values.dtype)
            for kind, values in self.group_init.items()
        }
        data = self.rows.row_shapes.data
        cure = "It gets one row and its groups; sum over their axes."
        name = "log_likelihood(shared, local, row)"
        check_scalar(name, cure, densities.log_likelihood, seen, local, data)
        check_scalar("log_prior(shared)", "For a flat prior return 0.0.", densities.log_prior, seen)
        for kind, prior in densities.group_priors.items():
            name = f"groups[{kind!r}].log_prior(shared, values)"
            check_scalar(name, "It gets one group.", prior.log_density, seen, local[kind])

    def _numbers_of(
        self, keep: str | Mapping[str, ArrayLike] | None
    ) -> dict[str, Int[np.ndarray, " kept"]]:
        """The numbers of the groups to keep."""
        everything = {kind: np.arange(len(values)) for kind, values in self.group_init.items()}
        if keep is None:
            sizes = (values.size for values in self.group_init.values())
            if self.densities.layout.dim + sum(sizes) <= _MOST_KEPT_ENTRIES:
                return everything
            return {kind: numbers[:_KEPT_BY_DEFAULT] for kind, numbers in everything.items()}
        if isinstance(keep, str) and keep == "all":
            return everything
        if not isinstance(keep, Mapping):
            raise InvalidInput("keep", 'be "all" or a dict of group numbers by kind', keep)
        unknown = sorted(set(keep) - set(everything))
        if unknown:
            raise InvalidInput("keep", f"name kinds among {', '.join(everything)}", unknown[0])
        found = {kind: np.zeros(0, int) for kind in everything}
        for kind, given in keep.items():
            numbers, count = np.asarray(given), len(everything[kind])
            good = numbers.ndim == 1 and (numbers.dtype.kind in "iu" or not numbers.size)
            if not good or (numbers.size and not 0 <= numbers.min() <= numbers.max() < count):
                rule = f"be group numbers from 0 to {count - 1}"
                raise InvalidInput(f"keep[{kind!r}]", rule, given)
            found[kind] = np.unique(numbers.astype(int))
        return found

    def _visible(self, kept: Mapping[str, np.ndarray]) -> tuple[DensityModel, AbstractQuantities]:
        """The model of the shared parameters and the kept groups, and what users see of it."""
        densities, group_init = self.densities, self.group_init
        shown = {kind: values[kept[kind]] for kind, values in group_init.items() if len(kept[kind])}
        layout, flat = layout_of({**self.shared_init, **shown})
        whole = all(len(kept[kind]) == len(values) for kind, values in group_init.items())
        model = DensityModel(
            log_likelihood=DenseLikelihood(densities) if whole else HiddenGroups(),
            batched=True,
            log_prior=DensePrior(densities) if whole else HiddenGroups(),
            init=flat,
            layout=layout,
        )
        quantities: AbstractQuantities = (
            Parameters(layout)
            if densities.constraints is None
            else constrained_parameters(Constraints(densities.constraints.transforms, layout))
        )
        for kind in shown:  # entries are labelled by the numbers of the groups
            further = len(quantities.shapes[kind]) - 1
            quantities.dims[kind] = (f"{kind}_group", *(f"{kind}_dim_{k}" for k in range(further)))
            quantities.coords[f"{kind}_group"] = tuple(map(str, kept[kind]))
        return model, quantities

    def lipschitz(self) -> RowValues:
        cure = "Choose another method, such as tallmc.contrib.groups.local_sgld(...)."
        raise InvalidInput("posterior", "know Lipschitz constants for this method", "none", cure)


def _check_names(init: Mapping[str, Any], groups: Mapping[str, Local]) -> None:
    if not isinstance(init, Mapping):
        raise InvalidInput("init", "be a dict of the shared parameters", type(init).__name__)
    if not groups or not all(isinstance(local, Local) for local in groups.values()):
        cure = "For example groups={'school': tallmc.contrib.groups.Local(...)}."
        raise InvalidInput("groups", "be a dict with a Local per kind of groups", groups, cure)
    both = sorted(set(init) & set(groups))
    if both:
        raise InvalidInput("groups", "have other names than the shared parameters", both)


def _numbers(kind: str, local: Local, n_rows: int) -> Int[np.ndarray, " n"]:
    """The group of each row."""
    parameter = f"groups[{kind!r}].groups"
    found = np.asarray(check_numeric(parameter, local.groups))
    if found.shape != (n_rows,) or (found % 1 != 0).any() or found.min() < 0:
        rule = f"be integers from 0 on, one per row ({n_rows})"
        raise InvalidInput(parameter, rule, f"an array of shape {found.shape}, {found.dtype}")
    if not np.ndim(local.init) or found.max() >= local.count:
        rule = f"have an entry per group, of which there are {int(found.max()) + 1}"
        raise InvalidInput(f"groups[{kind!r}].init", rule, f"shape {np.shape(local.init)}")
    found = found.astype(np.int32)
    empty = np.flatnonzero(np.bincount(found, minlength=local.count) == 0)
    if empty.size:
        cure = "No step would move it. Number the groups anew, with np.unique(..., True)."
        rule = "have a row of every group"
        raise InvalidInput(parameter, rule, f"no row of group {empty[0]}", cure)
    return found


# The groups that a batch of rows touches.
#
# A batch of n rows touches at most n groups of a kind. Each touched group has one *slot* among n:
# the position of its last row in the batch. Rows of the same group share its slot, so that their
# gradients add up and the group gets one noise. A table with one number per group finds the slots
# in a time proportional to n: the rows write their positions into the table, read them again, and
# clear them. On a CPU this takes microseconds; sorting the numbers of the groups takes a hundred
# times as long in XLA.

NO_ROW = -1


class TouchedGroups(eqx.Module):
    """The groups of one kind that a batch touches."""

    slots: Int[Array, " n"]  # The group in each slot; the number of all groups if the slot is empty
    of_rows: Int[Array, " n"]  # The slot of each row


def touched_groups(
    numbers: Int[Array, " n"], scratch: Int[Array, " groups"]
) -> tuple[TouchedGroups, Int[Array, " groups"]]:
    """The touched groups, from the group of each row, and the table `scratch` as it was.

    The table has `NO_ROW` for every group.
    """
    at = jnp.arange(numbers.shape[0], dtype=scratch.dtype)
    written = scratch.at[numbers].max(at)
    of_rows = written[numbers]
    slots = jnp.where(of_rows == at, numbers, scratch.shape[0]).astype(jnp.int32)
    # The minimum is NO_ROW. It depends on what was read, so XLA clears the table after reading it;
    # otherwise XLA would copy the table.
    cleared = jnp.minimum(of_rows, NO_ROW)
    return TouchedGroups(slots, of_rows), written.at[numbers].set(cleared)


def touch_probabilities(
    probabilities: Float[np.ndarray, " N"], numbers: Int[Any, " N"], count: int, size: int
) -> Float[np.ndarray, " groups"]:
    """q_g = 1 − (1 − Σ_{i∈g} p_i)ⁿ, the probability that n draws touch the group."""
    shares = np.bincount(np.asarray(numbers), np.asarray(probabilities, np.float64), count)
    with np.errstate(divide="ignore"):
        return -np.expm1(size * np.log1p(-np.minimum(shares, 1.0)))


# Scales of shared parameters and groups at the start, in one pass over all rows.
#
#     M_j = 1/max(Σ ∂²_j f_i, Σ (∂_j f_i)²)   over rows i and the priors of the groups, and φ's own
#
# The first sum is the diagonal of ∇²f. It may be close to zero or negative where chains start: that
# of a log standard deviation of groups is, if all groups start at their mean. The second sum
# estimates the same Fisher information from the gradients of rows and groups. The larger one gives
# the smaller, safer step. Column j of the Hessian of a row is a directional derivative of its
# gradient, so no row needs a matrix.


def inverse_curvature(
    posterior: LocalPosterior,
) -> tuple[Float[Array, " s"], dict[str, Float[Array, "groups ..."]]]:
    """M of the shared parameters, and of the groups by kind, where chains start."""
    densities, tables = posterior.densities, posterior.group_init
    shared = ravel_pytree(posterior.shared_init)[0]
    width = (shared.size + sum(values[0].size for values in tables.values())) ** 2
    totals = posterior.rows.reduce(_of_block, densities, shared, tables, width=width)
    of_shared, of_groups = totals.rounded()
    of_shared = of_shared + _terms(
        lambda free: -densities.shared_log_prior(densities.layout.unravel(free)), shared
    )
    for kind, values in tables.items():
        priors, of_groups[kind] = _with_prior(kind, densities, shared, values, of_groups[kind])
        of_shared = of_shared + priors
    return _inverted(of_shared), {kind: _inverted(sums) for kind, sums in of_groups.items()}


def _of_block(
    block: LocalRows,
    counted: Bool[Array, " n"],
    densities: LocalDensities,
    shared: Float[Array, " s"],
    tables: dict[str, Array],
) -> tuple[Float[Array, "2 s"], dict[str, Float[Array, "2 groups ..."]]]:
    """Both sums over the rows of a block."""
    local = {kind: values[block.groups[kind]] for kind, values in tables.items()}

    def of_row(local: dict[str, Array], data: PyTree[Array]) -> PyTree[Array]:
        def potential(params: tuple[Array, dict[str, Array]]) -> Array:
            seen = densities.constrained(densities.layout.unravel(params[0]))
            return -jnp.asarray(densities.log_likelihood(seen, params[1], data))

        return _terms(potential, (shared, local))

    of_shared, of_groups = jax.tree.map(
        lambda terms: jnp.where(_beside(counted, terms), terms, 0),
        jax.vmap(of_row)(local, block.data),
    )
    sums = {
        kind: jnp.zeros((2, *values.shape), values.dtype)
        .at[:, block.groups[kind]]
        .add(jnp.moveaxis(of_groups[kind], 1, 0))
        for kind, values in tables.items()
    }
    return jnp.sum(of_shared, axis=0), sums


@eqx.filter_jit
def _with_prior(
    kind: str,
    densities: LocalDensities,
    shared: Float[Array, " s"],
    values: Float[Array, "groups ..."],
    sums: Float[Array, "2 groups ..."],
) -> tuple[Float[Array, "2 s"], Float[Array, "2 groups ..."]]:
    """What the prior of these groups adds for φ, and the sums of the groups with their prior."""

    def of_group(z: Array) -> PyTree[Array]:
        def potential(params: tuple[Array, Array]) -> Array:
            seen = densities.constrained(densities.layout.unravel(params[0]))
            return -densities.group_priors[kind].log_density(seen, params[1])

        return _terms(potential, (shared, z))

    of_shared, of_groups = jax.vmap(of_group)(values)
    return jnp.sum(of_shared, axis=0), sums + jnp.moveaxis(of_groups, 1, 0)


def _terms(function: Callable[[Any], Array], at: PyTree[Array]) -> PyTree[Array]:
    """∂²_j and (∂_j)² of a function of a pytree: such a pytree with a leading axis of two."""
    vector, unravel = ravel_pytree(at)
    gradient = jax.grad(lambda position: function(unravel(position)))

    def second(j: Array) -> Array:
        direction = jnp.zeros_like(vector).at[j].set(1)
        return jax.jvp(gradient, (vector,), (direction,))[1][j]

    diagonal = lax.map(second, jnp.arange(vector.size))
    return jax.vmap(unravel)(jnp.stack([diagonal, gradient(vector) ** 2]))


def _inverted(sums: Float[Array, "2 ..."]) -> Float[Array, "*k"]:
    curvature = np.nanmax(np.asarray(sums, np.float64), axis=0)
    positive = curvature > 0  # no density depends on the other parameters
    typical = curvature[positive].mean() if positive.any() else 1.0
    return jnp.asarray(1 / np.where(positive, curvature, typical), sums.dtype)


# The step of Langevin dynamics on the shared parameters and the touched groups.
#
# The chain's memory has the parameters of all groups. A step reads and writes those of the touched
# groups. XLA updates the tables in place, because nothing else in the loop uses them. The position
# that the loop sees and records has the shared parameters and the kept groups only: everything that
# the loop does with positions takes a time that does not depend on the number of groups.


class GroupTable(eqx.Module):
    """The parameters of all groups of one kind, and their moments."""

    # Per group: the parameters z, their mean m, and their sum of squares S around it.
    entries: Float[Array, "*chains groups 3 ..."]
    # The step that set the parameters of each group last. Moments count the steps before.
    since: Int[Array, "*chains groups"]
    totals: Sum  # The sum over all groups of the statistics of the prior
    scratch: Int[Array, "*chains groups"]  # Finds the touched groups (`touched_groups`)


class LocalCarried(eqx.Module):
    """All parameters of a chain."""

    shared: Float[Array, "*chains s"]
    tables: dict[str, GroupTable]


class GroupConstants(eqx.Module):
    """What a step knows about all groups of one kind."""

    init: Float[Array, "groups ..."]
    touch_probability: Float[Array, " groups"]  # q_g
    metric: Float[Array, "groups ..."] | None  # step sizes relative to ε; None if they are 1
    kept: Int[Array, " kept"]  # The groups whose parameters become draws

    @property
    def count(self) -> int:
        return self.init.shape[0]


class LocalKernel(AbstractKernel):
    """Moves the shared parameters and the groups of the rows of a step."""

    visible: AbstractModel  # The model of positions
    densities: LocalDensities
    groups: dict[str, GroupConstants]
    shared_metric: Float[Array, " s"] | None
    stream: AbstractStream
    schedule: AbstractSchedule
    rest: Vector
    burn_in: Int[Any, ""]  # Steps that moments do not count
    size: int = eqx.field(static=True)

    @property
    def model(self) -> AbstractModel:
        return self.visible

    @property
    def rows_per_step(self) -> int:
        return self.size

    @property
    def rows_ahead(self) -> int:
        return self.size

    def after_burn_in(self, burn_in: int) -> Self:
        return eqx.tree_at(lambda kernel: kernel.burn_in, self, np.array(burn_in, np.int32))

    def group_moments(
        self, chains: ChainState, counted: Bool[np.ndarray, " chains"], steps: int
    ) -> dict[str, GroupMoments]:
        found = {}
        after = max(steps - int(self.burn_in), 0)
        for kind, table in chains.carried.tables.items():
            entries, since = np.asarray(table.entries)[counted], np.asarray(table.since)[counted]
            values, mean, squares = np.moveaxis(entries, 2, 0)
            lasted = after - np.maximum(since - int(self.burn_in), 0)
            mean, squares = extended(mean, squares, values, _beside(lasted, values), after)
            variances = np.asarray(squares, np.float64) / max(after, 1)
            found[kind] = GroupMoments.pooled(np.asarray(mean, np.float64), variances)
        return found

    def start_memory(self, positions: Float[Array, "chains d"], rows: AbstractRows) -> LocalCarried:
        shared, shown = self.densities.split(self.visible.layout.unravel(positions))
        n_chains = positions.shape[0]
        tables = {}
        for kind, known in self.groups.items():
            values = jnp.broadcast_to(known.init, (n_chains, *known.init.shape))
            if kind in shown:
                values = values.at[:, known.kept].set(shown[kind])
            entries = jnp.stack([values, jnp.zeros_like(values), jnp.zeros_like(values)], axis=2)
            since = jnp.zeros((n_chains, known.count), jnp.int32)
            statistics = jax.vmap(self.densities.group_priors[kind].statistics)(values)
            sums = jax.tree.map(lambda part: jnp.sum(part, axis=1), statistics)
            totals = Sum(sums, jax.tree.map(jnp.zeros_like, sums))
            tables[kind] = GroupTable(entries, since, totals, jnp.full_like(since, NO_ROW))
        vectors = [leaf.reshape(n_chains, -1) for leaf in jax.tree.leaves(shared)]
        return LocalCarried(jnp.concatenate(vectors, axis=1), tables)

    def draw(self, key: PRNGKeyArray, steps: int) -> Drawn:
        rows_key, noise_key = derived_keys(key, 2)
        draws = self.stream.draw(rows_key, (steps, self.size))
        return Drawn(draws, key_of(random_words(noise_key, (steps,))))

    def gather(self, drawn: Drawn, rows: AbstractRows) -> Gathered:
        draws = drawn.selection
        batch = rows.gather(RowDraws(draws.indices, draws.weights / self.size))
        return Gathered(Batch(batch.rows, batch.weights), drawn.noise)  # without row numbers

    def step(
        self, state: ChainState, gathered: Gathered, step: Int[Array, ""], rows: AbstractRows
    ) -> KernelStep:
        carried, batch = state.carried, gathered.selection
        step_size = self.schedule(step).astype(carried.shared.dtype)
        touched, at, cleared = {}, {}, {}
        for kind, table in carried.tables.items():
            groups, cleared[kind] = touched_groups(batch.rows.groups[kind], table.scratch)
            touched[kind], at[kind] = groups, _taken(table.entries, groups.slots)
        values = {kind: entries[:, 0] for kind, entries in at.items()}
        of_shared, of_groups = self.gradient(carried, values, touched, batch)
        shared_key, *group_keys = derived_keys(gathered.noise, 1 + len(self.groups))
        shared = _moved(carried.shared, of_shared, self.shared_metric, step_size, shared_key)
        tables, moved, shown = {}, [shared], self.densities.layout.unravel(shared)
        for (kind, known), key in zip(self.groups.items(), group_keys, strict=True):
            table, slots = carried.tables[kind], touched[kind].slots
            since = _taken(table.since, slots)
            metric = None if known.metric is None else _taken(known.metric, slots)
            new = _moved(values[kind], of_groups[kind], metric, step_size, key)
            changed, totals = self._changed(kind, slots, at[kind], since, new, step)
            tables[kind] = GroupTable(
                table.entries.at[slots].set(changed, mode="drop"),
                # The maximum is `step`. It depends on what was read, so XLA reads before it writes;
                # otherwise XLA would copy the table.
                table.since.at[slots].set(jnp.maximum(since, step), mode="drop"),
                table.totals.plus(totals),
                cleared[kind],
            )
            moved.append(jnp.where(_beside(slots < known.count, new), new, 0).ravel())
            if known.kept.size:
                shown[kind] = tables[kind].entries[known.kept, 0]
        position = jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(shown)])
        state = ChainState(PositionState(position), LocalCarried(shared, tables))
        return KernelStep(state, {"step_size": step_size}, outcome_of(jnp.concatenate(moved)))

    def gradient(
        self,
        carried: LocalCarried,
        values: Mapping[str, Array],
        touched: Mapping[str, TouchedGroups],
        batch: Batch,
    ) -> tuple[Float[Array, " s"], dict[str, Array]]:
        """The estimates of ∇f for the shared parameters and for the groups in the slots."""
        densities, shared = self.densities, carried.shared

        def row_potential(shared: Array, values: dict[str, Array]) -> Array:
            local = {kind: values[kind][touched[kind].of_rows] for kind in values}
            tree = densities.layout.unravel(shared)
            return -jnp.sum(batch.weights * densities.of_rows(tree, local, batch.rows.data))

        def shared_prior(shared: Array) -> Array:
            """An unbiased estimate of −log p(φ) − Σ log p(z_g | φ), as a function of φ."""
            tree = densities.layout.unravel(shared)
            total = -densities.shared_log_prior(tree)
            for kind, known in self.groups.items():
                prior, slots = densities.group_priors[kind], touched[kind].slots
                weights = jnp.where(slots < known.count, 1 / shares[kind], 0)
                seen, totals = densities.constrained(tree), carried.tables[kind].totals.rounded()
                total -= prior.log_density_of_all(seen, values[kind], weights, totals, known.count)
            return total

        def group_prior(values: Array, kind: str) -> Array:
            return -jnp.sum(densities.of_groups(kind, densities.layout.unravel(shared), values))

        shares = {
            kind: _taken(known.touch_probability, touched[kind].slots)
            for kind, known in self.groups.items()
        }
        of_shared, of_groups = jax.grad(row_potential, argnums=(0, 1))(shared, dict(values))
        of_shared = of_shared + jax.grad(shared_prior)(shared)
        for kind, share in shares.items():
            of_prior = jax.grad(group_prior)(values[kind], kind)
            of_groups[kind] = of_prior + _beside(share, values[kind]) * of_groups[kind]
        return of_shared, of_groups

    def _changed(
        self,
        kind: str,
        slots: Int[Array, " n"],
        at: Float[Array, "n 3 ..."],
        since: Int[Array, " n"],
        new: Float[Array, "n ..."],
        step: Int[Array, ""],
    ) -> tuple[Float[Array, "n 3 ..."], PyTree[Array]]:
        """New entries of the groups in the slots, and the change of the totals."""
        values, mean, squares = at[:, 0], at[:, 1], at[:, 2]
        after = jnp.maximum(step - self.burn_in, 0)
        lasted = (after - jnp.maximum(since - self.burn_in, 0)).astype(values.dtype)
        weights, count = _beside(lasted, values), after.astype(values.dtype)
        moments = extended(mean, squares, values, weights, count)
        statistics = self.densities.group_priors[kind].statistics
        filled = slots < self.groups[kind].count
        changes = jax.tree.map(
            lambda now, then: jnp.sum(jnp.where(_beside(filled, now), now - then, 0), axis=0),
            statistics(new),
            statistics(values),
        )
        return jnp.stack([new, *moments], axis=1), changes


def _taken(table: Array, slots: Int[Array, " n"]) -> Array:
    """The entries of the groups in the slots; anything for an empty slot."""
    return table.at[slots].get(mode="clip")


def _moved(
    position: Float[Array, "*k"],
    gradient: Float[Array, "*k"],
    metric: Float[Array, "*k"] | None,
    step_size: Scalar,
    key: PRNGKeyArray,
) -> Float[Array, "*k"]:
    """θ − (ε/2) M ∇f̂ + √(εM) η."""
    step = step_size if metric is None else step_size * metric
    noise = standard_normal(key, position.shape, position.dtype)
    return position - step / 2 * gradient + jnp.sqrt(step) * noise


def _beside(weights: Any, values: Any) -> Any:
    """The weights of groups, with axes for the parameters of a group."""
    return weights.reshape(weights.shape + (1,) * (values.ndim - weights.ndim))


@dataclasses.dataclass(frozen=True, kw_only=True)
class LocalSGLD(AbstractMethod):
    """Langevin dynamics of a `LocalPosterior`, of which a step moves the groups of its rows.

    The parameters are φ, which all rows share, and z_g, one vector per group; f₀(φ) = −log p(φ)
    and f_g(φ, z_g) = −log p(z_g | φ). A step draws n rows with replacement with probabilities
    p_i. They touch a set T of groups, group g with the probability q_g. The step moves φ and
    the touched groups:

        q_g = 1 − (1 − Σ_{i∈g} p_i)ⁿ
        z_g ← z_g − (ε/2) M_g [∇_z f_g + q_g Σ_{draws i∈g} ∇_z f_i/(n p_i)] + √(εM_g) η_g,   g ∈ T
        φ ← φ − (ε/2) M₀ [∇f₀ + Σ_{g∈T} ∇_φ f_g/q_g + Σ_{draws i} ∇_φ f_i/(n p_i)] + √(εM₀) η₀

    The sum over the draws of group g has the mean Σ_{i∈g} ∇f_i, and it is zero if g ∉ T. Given
    that g is touched, its mean is therefore the whole sum divided by q_g, and the bracket is
    unbiased for ∇_z f. Prior and noise are counted in full, because both are absent in the
    steps that leave the group alone. Without the factor q_g, a group with few rows would
    believe its rows 1/q_g times over. With a prior that is scaled by N/n like the likelihood,
    it would believe its prior too much.

    The draws of the rows do not depend on the state. To first order in ε, the mean of a
    function h changes by ε Σ_g q_g [−½ ∇_g f·M_g∇_g h + ½ tr(M_g ∇²_g h)] per step, with q = 1
    for φ. Every term leaves exp(−f) invariant, so the law of the chain tends to the posterior
    as ε → 0: a random scan, in which group g runs at the speed q_g.

    The sum over T estimates that over all groups. For a `NormalGroups` prior it has no noise:
    sums of z and z² over all groups are kept up to date.
    """

    paper = "Ahn, Korattikara, Liu, Rajan and Welling (2015)"
    bias = (
        "Of order ε: that of the discretisation, and that of gradient noise. A touched group "
        "usually has a single draw, which stands for its n_g rows. This inflates its variance by "
        "about (ε/4) n_g² M_g Var_i(∇f_i), relative to the variance of an exact gradient, so keep "
        "εM_g n_g small against the inverse curvature of a row."
    )
    cost = (
        "A step reads n rows and at most n groups of each kind, at any number of groups. Memory "
        "holds the parameters of all groups, with their mean and variance over the run."
    )

    step_size: Any
    batch_size: int
    preconditioned: bool = False
    weights: Any = None

    def __post_init__(self) -> None:
        as_schedule(self.step_size)
        check_int("batch_size", self.batch_size, 1)
        if not isinstance(self.preconditioned, bool):
            raise InvalidInput("preconditioned", "be True or False", self.preconditioned)

    @property
    def axes(self) -> dict[str, str]:
        subsample = "Uniform" if self.weights is None else "Preferential"
        return labels("Langevin, touched groups", "Simple, touched groups", subsample, "fixed")

    def suggest(self, curvature: Curvature) -> Suggestion:
        return Langevin().suggest(curvature)

    def prepare(
        self, posterior: AbstractPosterior, anchor: Anchor | None = None, *, seed: int = 0
    ) -> PreparedMethod:
        """Compute how often groups are touched and, if wanted, the curvature at the start."""
        check_posterior(posterior)
        if not isinstance(posterior, LocalPosterior):
            cure = "Make it with tallmc.contrib.groups.LocalPosterior."
            rule = "have parameters of groups for local_sgld"
            raise InvalidInput("posterior", rule, type(posterior).__name__, cure)
        if anchor is not None:
            raise InvalidInput("anchor", "be left out for local_sgld", "an anchor")
        n_rows, dtype = posterior.n_rows, posterior.dtype
        p, shares = None, np.full(n_rows, 1 / n_rows)
        if self.weights is not None:
            if np.shape(self.weights) != (n_rows,):
                rule = f"have one number per row ({n_rows})"
                raise InvalidInput("weights", rule, np.shape(self.weights))
            p = shares = probabilities(self.weights, floor=0.0)
        shared_metric, metrics, rows_read = None, dict[str, Array](), 0
        if self.preconditioned:
            stage("measuring the curvature of all groups")
            (shared_metric, metrics), rows_read = inverse_curvature(posterior), n_rows
        known = {}
        for kind, init in posterior.group_init.items():
            numbers = posterior.rows.columns.groups[kind]
            q = touch_probabilities(shares, numbers, len(init), self.batch_size)
            known[kind] = GroupConstants(
                init=init,
                touch_probability=jnp.asarray(q, dtype),
                metric=metrics.get(kind),
                kept=jnp.asarray(posterior.kept[kind], jnp.int32),
            )
        kernel = LocalKernel(
            visible=posterior.model,
            densities=posterior.densities,
            groups=known,
            shared_metric=shared_metric,
            stream=posterior.rows.stream(p, dtype),
            schedule=in_precision(as_schedule(self.step_size), dtype),
            rest=posterior.init,
            burn_in=np.array(0, np.int32),
            size=self.batch_size,
        )
        return PreparedMethod(BoundKernel(kernel, posterior), None, rows_read)


@named("Ahn, Korattikara, Liu, Rajan and Welling (2015)", example={"batch_size": 2})
def local_sgld(
    step_size: StepSize,
    batch_size: int,
    *,
    preconditioned: bool = False,
    weights: ArrayLike | None = None,
) -> LocalSGLD:
    """SGLD of a `LocalPosterior`: a step moves the shared parameters and the groups of its rows.

    - `preconditioned`: whether step sizes are relative to the inverse curvature of each parameter
      at the start, measured in one pass over all rows. This helps if groups have different numbers
      of rows.
    - `weights`: positive weights of the rows, to which their probabilities are proportional.
    """
    return LocalSGLD(
        step_size=step_size, batch_size=batch_size, preconditioned=preconditioned, weights=weights
    )


# Bayesian probabilistic matrix factorisation (Salakhutdinov and Mnih, 2008; nemeth-2021, 6.3).
#
#     R_ij ~ N(c + U_iᵀV_j, α⁻¹)                for the ratings that are known
#     U_i ~ N(μ_U, Λ_U⁻¹),   V_j ~ N(μ_V, Λ_V⁻¹)
#     μ_W ~ N(μ₀, Λ_W⁻¹),   Λ_W diagonal with entries ~ Gamma(a₀, b₀),   W = U, V
#
# A row is one rating; its user and its item select a row of U and of V. The prior is counted once.
# The code of nemeth-2021 scales the priors of the users and items of a minibatch by N/n, together
# with the likelihood. That is biased: the prior of a user with many ratings counts up to N/n times.


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
    of_users, n_users = _counted("users", users, n_users)
    of_items, n_items = _counted("items", items, n_items)
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


def _counted(parameter: str, values: ArrayLike, count: int | None) -> tuple[np.ndarray, int]:
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
    (users, _), (items, _) = map(_counted, ("users", "items"), found.T, counts)
    return jnp.asarray(np.stack([users, items], axis=1))
