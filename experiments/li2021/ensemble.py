"""Thousands of chains side by side, of which only the positions that a figure needs are kept.

`tallmc.sample` also judges the chains (ranks, autocorrelations, the report), which for 10,000
chains of few steps takes several times as long as the steps. The figures of this paper compare laws
over chains with known answers, so they run the chains alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from tallmc._engine.run import DrawSink, Run, chain_keys
from tallmc.methods.method import Method
from tallmc.models.posterior import AbstractPosterior

from ..chains import Share, kernel_of

_FLOATS_PER_PIECE = 2**24


class Ensemble(NamedTuple):
    """Chains of one method, and how many of their steps lie between two records."""

    posterior: AbstractPosterior
    method: Method
    starts: Float[np.ndarray, "chains d"]
    every: int
    seed: int

    def positions(self, records: int, share: Share) -> Float[np.ndarray, "chains records d"]:
        """The positions after `every`, 2 `every`, … steps; NaN in chains that have failed."""
        run = self._run(records)
        run.run_to(records, after_call=lambda: share(run.step / run.n_steps))
        return run.positions()

    def pieces(self, records: int, share: Share) -> Iterator[Float[np.ndarray, "chains piece d"]]:
        """The same positions in consecutive pieces that fit in memory."""
        run = self._run(records)
        assert isinstance(run.sink, DrawSink), "the default sink"
        piece, done = max(1, _FLOATS_PER_PIECE // self.starts.size), 0
        while done < records:
            done = min(records, done + piece)
            run.run_to(done)
            yield run.positions()
            run.sink.forget()
            share(done / records)

    def _run(self, records: int) -> Run:
        bound, start = (
            kernel_of(self.method, self.posterior),
            jnp.asarray(self.starts, self.posterior.dtype),
        )
        keys = chain_keys(self.seed, len(self.starts))
        return Run(bound, keys, start, burn_in=0, thin=self.every, n_draws=records)
