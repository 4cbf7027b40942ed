"""The step of Langevin dynamics on the shared parameters and the touched groups.

The chain's memory has the parameters of all groups. A step reads and writes those of the touched
groups. XLA updates the tables in place, because nothing else in the loop uses them. The position
that the loop sees and records has the shared parameters and the kept groups only: everything that
the loop does with positions takes a time that does not depend on the number of groups.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from ...core.outcome import outcome_of
from ...core.random import derived_keys, key_of, random_words, standard_normal
from ...dynamics.base import AbstractDynamicsState
from ...engine.kernel import AbstractKernel, ChainState, Drawn, Gathered, KernelStep
from ...models.base import AbstractModel
from ...models.local import position_of
from ...models.local_densities import LocalDensities, LocalRows
from ...rows.base import AbstractRows
from ...rows.batch import RowDraws
from ...rows.stream import AbstractStream
from ...rows.sums import Sum
from ...schedule import AbstractSchedule
from ...statistics.group_moments import GroupMoments, extended
from .touched import NO_ROW, TouchedGroups, touched_groups


class VisibleState(AbstractDynamicsState):
    """The part of the state that becomes draws."""

    position: Float[Array, " d"]


class GroupTable(eqx.Module):
    """The parameters of all groups of one kind, and their moments."""

    entries: Float[Array, "*chains groups 3 ..."]
    """Per group: the parameters z, their mean m, and their sum of squares S around it."""
    since: Int[Array, "*chains groups"]
    """The step that set the parameters of each group last. Moments count the steps before."""
    totals: Sum
    """The sum over all groups of the statistics of the prior."""
    scratch: Int[Array, "*chains groups"]
    """Finds the touched groups (`touched.py`)."""


class LocalMemory(eqx.Module):
    """All parameters of a chain."""

    shared: Float[Array, "*chains s"]
    tables: dict[str, GroupTable]


class GroupConstants(eqx.Module):
    """What a step knows about all groups of one kind."""

    init: Float[Array, "groups ..."]
    touch_probability: Float[Array, " groups"]
    """q_g."""
    metric: Float[Array, "groups ..."] | None
    """The step size of each parameter, relative to ε; None if it is 1."""
    kept: Int[Array, " kept"]
    """The groups whose parameters become draws."""

    @property
    def count(self) -> int:
        """The number of groups."""
        return self.init.shape[0]


class LocalBatch(eqx.Module):
    """The rows of a step."""

    rows: LocalRows
    weights: Float[Array, "*k n"]
    """1/(n p_i)."""


class LocalKernel(AbstractKernel):
    """Moves the shared parameters and the groups of the rows of a step."""

    visible: AbstractModel
    """The model of positions."""
    densities: LocalDensities
    groups: dict[str, GroupConstants]
    shared_metric: Float[Array, " s"] | None
    stream: AbstractStream
    schedule: AbstractSchedule
    rest: Float[Array, " d"]
    burn_in: Int[Any, ""]
    """Steps that moments do not count."""
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

    @property
    def most_rows(self) -> int:
        return self.size

    @property
    def renewed_every(self) -> None:
        return None

    def passes_before(self, step: np.ndarray) -> np.ndarray:
        return np.zeros_like(step)

    def rows_at_start(self) -> int:
        return 0

    def broken_claim(self, chains: ChainState) -> None:
        return None

    def after_burn_in(self, burn_in: int) -> Self:
        return eqx.tree_at(lambda kernel: kernel.burn_in, self, np.array(burn_in, np.int32))

    def group_moments(
        self, chains: ChainState, counted: Bool[np.ndarray, " chains"], steps: int
    ) -> dict[str, GroupMoments]:
        found = {}
        after = max(steps - int(self.burn_in), 0)
        for kind, table in chains.memory.tables.items():
            entries, since = np.asarray(table.entries)[counted], np.asarray(table.since)[counted]
            values, mean, squares = np.moveaxis(entries, 2, 0)
            lasted = after - np.maximum(since - int(self.burn_in), 0)
            mean, squares = extended(mean, squares, values, _beside(lasted, values), after)
            variances = np.asarray(squares, np.float64) / max(after, 1)
            found[kind] = GroupMoments.pooled(np.asarray(mean, np.float64), variances)
        return found

    def start_memory(
        self, positions: Float[Array, "chains d"], source: AbstractRows
    ) -> LocalMemory:
        shared, shown = self.densities.split(self.visible.layout.unravel(positions))
        n_chains = positions.shape[0]
        tables = {}
        for kind, known in self.groups.items():
            values = jnp.broadcast_to(known.init, (n_chains, *known.init.shape))
            if kind in shown:
                values = values.at[:, known.kept].set(shown[kind])
            entries = jnp.stack([values, jnp.zeros_like(values), jnp.zeros_like(values)], axis=2)
            since = jnp.zeros((n_chains, known.count), jnp.int32)
            totals = jax.vmap(self._totals(kind))(values)
            tables[kind] = GroupTable(entries, since, totals, jnp.full_like(since, NO_ROW))
        vectors = [leaf.reshape(n_chains, -1) for leaf in jax.tree.leaves(shared)]
        return LocalMemory(jnp.concatenate(vectors, axis=1), tables)

    def init(
        self,
        key: PRNGKeyArray,
        position: Float[Array, " d"],
        memory: LocalMemory,
        gathered: Gathered,
        source: AbstractRows,
    ) -> ChainState:
        return ChainState(VisibleState(position), memory)

    def renew(self, chains: ChainState, source: AbstractRows) -> ChainState:
        return chains

    def draw(self, key: PRNGKeyArray, steps: int) -> Drawn:
        rows_key, noise_key = derived_keys(key, 2)
        draws = self.stream.draw(rows_key, (steps, self.size))
        return Drawn(draws, key_of(random_words(noise_key, (steps,))))

    def gather(self, drawn: Drawn, source: AbstractRows) -> Gathered:
        draws = drawn.selection
        batch = source.gather(RowDraws(draws.indices, draws.weights / self.size))
        return Gathered(LocalBatch(batch.rows, batch.weights), drawn.noise)

    def step(
        self,
        state: ChainState,
        gathered: Gathered,
        step: Int[Array, ""],
        source: AbstractRows,
    ) -> KernelStep:
        memory, batch = state.memory, gathered.selection
        step_size = self.schedule(step).astype(memory.shared.dtype)
        found = {
            kind: touched_groups(batch.rows.groups[kind], table.scratch)
            for kind, table in memory.tables.items()
        }
        touched = {kind: groups for kind, (groups, _) in found.items()}
        at, since = (
            {kind: _taken(get(memory.tables[kind]), touched[kind].slots) for kind in touched}
            for get in (lambda table: table.entries, lambda table: table.since)
        )
        values = {kind: entries[:, 0] for kind, entries in at.items()}
        of_shared, of_groups = self.gradient(memory, values, touched, batch)
        shared_key, *group_keys = derived_keys(gathered.noise, 1 + len(self.groups))
        shared = _moved(memory.shared, of_shared, self.shared_metric, step_size, shared_key)
        tables, moved = {}, [shared]
        for (kind, known), key in zip(self.groups.items(), group_keys, strict=True):
            slots = touched[kind].slots
            metric = None if known.metric is None else _taken(known.metric, slots)
            new = _moved(values[kind], of_groups[kind], metric, step_size, key)
            changed, totals = self._changed(kind, slots, at[kind], since[kind], new, step)
            table = memory.tables[kind]
            tables[kind] = GroupTable(
                table.entries.at[slots].set(changed, mode="drop"),
                # The maximum is `step`. It depends on what was read, so XLA reads before it writes;
                # otherwise XLA would copy the table.
                table.since.at[slots].set(jnp.maximum(since[kind], step), mode="drop"),
                table.totals.plus(totals),
                found[kind][1],
            )
            moved.append(jnp.where(_beside(slots < known.count, new), new, 0).ravel())
        shown = {kind: tables[kind].entries[known.kept, 0] for kind, known in self.groups.items()}
        position = position_of(self.densities.layout.unravel(shared), shown)
        return KernelStep(
            ChainState(VisibleState(position), LocalMemory(shared, tables)),
            {"step_size": step_size},
            outcome_of(jnp.concatenate(moved)),
            jnp.zeros_like(position),
        )

    def gradient(
        self,
        memory: LocalMemory,
        values: Mapping[str, Array],
        touched: Mapping[str, TouchedGroups],
        batch: LocalBatch,
    ) -> tuple[Float[Array, " s"], dict[str, Array]]:
        """The estimates of ∇f for the shared parameters and for the groups in the slots."""
        unravel = self.densities.layout.unravel

        def row_potential(shared: Array, values: dict[str, Array]) -> Array:
            local = {kind: values[kind][touched[kind].of_rows] for kind in values}
            return -jnp.sum(
                batch.weights * self.densities.of_rows(unravel(shared), local, batch.rows.data)
            )

        of_shared, of_groups = jax.grad(row_potential, argnums=(0, 1))(memory.shared, dict(values))
        of_shared = of_shared + jax.grad(self._shared_prior)(memory.shared, memory, values, touched)
        for kind, known in self.groups.items():
            share = _taken(known.touch_probability, touched[kind].slots)
            of_prior = jax.grad(self._group_prior, argnums=1)(memory.shared, values[kind], kind)
            of_groups[kind] = of_prior + _beside(share, values[kind]) * of_groups[kind]
        return of_shared, of_groups

    def _shared_prior(
        self,
        shared: Float[Array, " s"],
        memory: LocalMemory,
        values: Mapping[str, Array],
        touched: Mapping[str, TouchedGroups],
    ) -> Float[Array, ""]:
        """An unbiased estimate of −log p(φ) − Σ log p(z_g | φ), as a function of φ."""
        tree = self.densities.layout.unravel(shared)
        total = -self.densities.shared_log_prior(tree)
        for kind, known in self.groups.items():
            slots = touched[kind].slots
            share = _taken(known.touch_probability, slots)
            weights = jnp.where(slots < known.count, 1 / share, 0)
            total = total - self.densities.group_priors[kind].log_density_of_all(
                self.densities.constrained(tree),
                values[kind],
                weights,
                memory.tables[kind].totals.rounded(),
                known.count,
            )
        return total

    def _group_prior(
        self, shared: Float[Array, " s"], values: Float[Array, "n ..."], kind: str
    ) -> Float[Array, ""]:
        tree = self.densities.layout.unravel(shared)
        return -jnp.sum(self.densities.of_groups(kind, tree, values))

    def _totals(self, kind: str) -> Any:
        """Returns the sum of the statistics of all groups."""
        prior = self.densities.group_priors[kind]

        def total(values: Float[Array, "groups ..."]) -> Sum:
            sums = jax.tree.map(lambda part: jnp.sum(part, axis=0), prior.statistics(values))
            return Sum(sums, jax.tree.map(jnp.zeros_like, sums))

        return total

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
        moments = extended(
            mean, squares, values, _beside(lasted, values), after.astype(values.dtype)
        )
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
    step_size: Float[Array, ""],
    key: PRNGKeyArray,
) -> Float[Array, "*k"]:
    """θ − (ε/2) M ∇f̂ + √(εM) η."""
    step = step_size if metric is None else step_size * metric
    noise = standard_normal(key, position.shape, position.dtype)
    return position - step / 2 * gradient + jnp.sqrt(step) * noise


def _beside(weights: Any, values: Any) -> Any:
    """The weights of groups, with axes for the parameters of a group."""
    return weights.reshape(weights.shape + (1,) * (values.ndim - weights.ndim))
