"""Langevin dynamics of the shared parameters and the groups of the drawn rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, ArrayLike, Bool, Float, Int, PRNGKeyArray, PyTree

from ..._anchor.anchor import Anchor
from ..._core.arrays import Scalar, Vector
from ..._core.errors import InvalidInput, check_int, outcome_of
from ..._core.random import derived_keys, key_of, random_words, standard_normal
from ..._core.statistics import GroupMoments, extended
from ..._core.supervision import stage
from ..._engine.kernel import AbstractKernel, BoundKernel, ChainState, Drawn, Gathered, KernelStep
from ..._rows.access import AbstractRows
from ..._rows.law import AbstractStream, Batch, RowDraws
from ..._rows.passes import Sum
from ..._rows.probabilities import probabilities
from ...dynamics import Langevin
from ...dynamics.dynamics import Curvature, PositionState, Suggestion
from ...methods.abstract import AbstractMethod, PreparedMethod
from ...methods.method import StepSize
from ...methods.registry import named
from ...models.model import AbstractModel
from ...models.posterior import AbstractPosterior, check_posterior
from ...schedule import AbstractSchedule, as_schedule, in_precision
from .posterior import LocalDensities, LocalPosterior, LocalRows

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
        return KernelStep(
            ChainState(PositionState(position), LocalCarried(shared, tables)),
            {"step_size": step_size},
            outcome_of(jnp.concatenate(moved)),
            jnp.zeros_like(position),
        )

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
        return {
            "dynamics": "Langevin, touched groups",
            "gradient": "Simple, touched groups",
            "subsample": "Uniform" if self.weights is None else "Preferential",
            "size": "fixed",
        }

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
