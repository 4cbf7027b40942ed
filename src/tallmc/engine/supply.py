"""The supply of a block of steps: its random numbers, and the rows that are known ahead.

Step t of a chain belongs to block t // K. One vectorised call draws the randomness of a block from
`fold_in(chain key, block number)`. The random numbers of step t therefore depend only on the seed,
the chain and t, and a run may be cut at any step and continued from there.

On a CPU the rows of independent draws are gathered by NumPy, from the memory that holds them.
Neither the program that draws nor the one that steps then depends on the number of rows. Other
rows are gathered by a compiled program, ahead of the steps if a block of them fits in memory, and
otherwise in each step.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Key, UInt32

from ..core.random import fold_in
from ..dynamics.base import AbstractDynamics
from ..rows.absent import AbsentRows
from ..rows.base import AbstractRows
from ..subsample.replacement import WithReplacement
from .kernel import AbstractKernel, Drawn, Gathered, Kernel

_BLOCK_FLOATS = 2**20
_GATHER_FLOATS = 2**23
_MOST_BLOCK_STEPS = 512
INIT_BLOCK = 2**32 - 1  # no step belongs to this block number


def block_steps(kernel: AbstractKernel, source: AbstractRows) -> int:
    """K: the number of steps for which a block's rows fit in cache.

    K is a power of two and depends only on the shapes of one chain.
    """
    floats = kernel.model.width(source) * max(1, kernel.rows_ahead)
    fitting = max(1, _BLOCK_FLOATS // floats)
    return min(_MOST_BLOCK_STEPS, 1 << (fitting.bit_length() - 1))


class Supply:
    """Makes the supplies of a run.

    **Arguments:**

    - `kernel`, `source`: the kernel and the rows.
    - `chain_axes`: `in_axes` of `jax.vmap` over the kernel.
    - `merged`: whether the chains take one step for every two steps that are drawn. Each step then
      has the noise of two drawn steps, and the rows of the first one.
    """

    def __init__(
        self,
        kernel: AbstractKernel,
        source: AbstractRows,
        chain_axes: Any = None,
        merged: bool = False,
    ):
        self.kernel, self.source, self.chain_axes = kernel, source, chain_axes
        self.merged = merged
        self.steps = block_steps(kernel, source)
        self._host_rows = chain_axes is None and _reads_on_host(kernel, source)
        self.stepper = _stepper(kernel, self._host_rows) if chain_axes is None else kernel
        """The kernel that steps with these supplies."""

    @property
    def source_of_steps(self) -> AbstractRows:
        """The rows that a step reads besides its supply."""
        return AbsentRows() if self._host_rows else self.source

    def block(self, keys: Key[Array, " chains"], number: int) -> Drawn | Gathered:
        """The supply of one block. The leading axes of every array are steps and chains."""
        if not self.merged or number == INIT_BLOCK:
            return self._gathered(self._draw(keys, number))
        assert isinstance(self.kernel, Kernel), "only compositions are run in pairs"
        halves = (self._draw(keys, 2 * number), self._draw(keys, 2 * number + 1))
        return self._gathered(_merged(self.kernel.dynamics, halves))

    def _draw(self, keys: Key[Array, " chains"], number: int) -> Drawn:
        counter = np.array(number, np.uint32)
        return _draw_block(self.stepper, keys, counter, self.steps, self.chain_axes)

    def _gathered(self, drawn: Drawn) -> Drawn | Gathered:
        if self._host_rows:
            assert isinstance(self.kernel, Kernel), "checked by `_reads_on_host`"
            selection = self.kernel.selection
            assert isinstance(selection, WithReplacement), "checked by `_reads_on_host`"
            words = np.asarray(drawn.selection)
            return Gathered(selection.gather_on_host(words, self.source), drawn.noise)
        n_chains = jax.tree.leaves(drawn)[0].shape[1] if jax.tree.leaves(drawn) else 1
        floats = (
            n_chains * self.steps * self.kernel.rows_ahead * self.kernel.model.width(self.source)
        )
        fits = 0 < floats <= _GATHER_FLOATS and jax.default_backend() == "cpu"
        return _gather(self.stepper, drawn, self.source) if fits else drawn


def _reads_on_host(kernel: AbstractKernel, source: AbstractRows) -> bool:
    """Whether NumPy can gather all rows of a step before the step."""
    independent = isinstance(kernel, Kernel) and isinstance(kernel.selection, WithReplacement)
    return independent and source.on_host


def _stepper(kernel: AbstractKernel, host_rows: bool) -> AbstractKernel:
    """The kernel with a selection that does not depend on the number of certain rows."""
    if not isinstance(kernel, Kernel) or not isinstance(kernel.selection, WithReplacement):
        return kernel
    selection = kernel.selection.supplied() if host_rows else kernel.selection.padded()
    return eqx.tree_at(lambda k: k.selection, kernel, selection)


@eqx.filter_jit
def _draw_block(
    kernel: AbstractKernel,
    keys: Key[Array, " chains"],
    number: UInt32[ArrayLike, ""],
    steps: int,
    chain_axes: Any,
) -> Drawn:
    def draw(kernel: AbstractKernel, key: Array) -> Drawn:
        return kernel.draw(fold_in(key, number), steps)

    return jax.vmap(draw, in_axes=(chain_axes, 0), out_axes=1)(kernel, keys)


@eqx.filter_jit
def _merged(dynamics: AbstractDynamics, halves: tuple[Drawn, Drawn]) -> Drawn:
    """One step for every two steps of both halves, with their noise and the rows of the first."""
    drawn = jax.tree.map(lambda *parts: jnp.concatenate(parts), *halves)
    first, second = (jax.tree.map(lambda leaf, k=k: leaf[k::2], drawn) for k in (0, 1))
    noise = jax.vmap(jax.vmap(dynamics.merged_noise))(first.noise, second.noise)
    return Drawn(first.selection, noise)


@eqx.filter_jit
def _gather(kernel: AbstractKernel, drawn: Drawn, source: AbstractRows) -> Gathered:
    return kernel.gather(drawn, source)
