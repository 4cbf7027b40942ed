"""Posteriors with parameters of groups, of which a step moves those of its rows only.

A position of the posterior holds the shared parameters and the *kept* groups. Chains hold the
parameters of all groups, and their draws hold the kept ones. If all groups are kept, the posterior
is an ordinary one: every method of the library, `find_anchor` and NUTS run on it.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int, PyTree

from ..._core.arrays import (
    AbstractQuantities,
    Layout,
    Parameters,
    Scalar,
    check_numeric,
    layout_of,
    to_floats,
)
from ..._core.errors import InvalidInput
from ..._rows.access import PerRow, RowValues
from ..._rows.resident import ResidentRows, resident
from ...models.model import DensityModel, check_scalar
from ...models.posterior import AbstractPosterior
from ...models.predictive import AbstractPredictive
from ...models.transforms import Constraints, constrained, constrained_parameters

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

    **Arguments:**

    - `law`: `law(shared)`, a pair (mean, sd). Each is a number or has the shape of the parameters
      of a group.
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
