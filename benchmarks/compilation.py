"""Seconds of the first call of every named method, with compilation, and of a second call.

The second call has another seed, step size, length and data set. It should compile nothing.
"""

from __future__ import annotations

import time

import jax
import jax.numpy as jnp
import numpy as np

import tallmc
from tallmc.methods.method import AbstractMethod
from tallmc.models import logistic_regression

from .problem import covertype_shaped
from .report import print_table

SIZE, DRAWS = 32, 16
_COMPILED = "/jax/core/compile/backend_compile_duration"


class Compilations:
    """Counts the programs that XLA compiles in this process."""

    def __init__(self) -> None:
        self.count = 0
        jax.monitoring.register_event_duration_secs_listener(self._on_event)

    def _on_event(self, event: str, duration_secs: float, **kwargs: str | int) -> None:
        self.count += event == _COMPILED


def main() -> None:
    posterior, compilations = covertype_shaped(), Compilations()
    other = logistic_regression(
        jnp.flip(posterior.data.x, 0),
        np.asarray(posterior.data.y)[::-1].copy(),
        prior_variance=10.0,
    )
    anchor, other_anchor = tallmc.anchor.find_anchor(posterior), tallmc.anchor.find_anchor(other)
    rows = []
    for name, named in tallmc.methods.METHODS.items():
        settings = {
            **named.example,
            **({"batch_size": SIZE} if "batch_size" in named.example else {}),
        }
        if name.startswith("asgld"):
            settings["noise_threshold"] = 1e9  # otherwise pilot runs would search for it
        first = seconds_of(posterior, anchor, named.make(1e-9, **settings), DRAWS, seed=0)
        before = compilations.count
        again = seconds_of(other, other_anchor, named.make(2e-9, **settings), DRAWS + 1, seed=1)
        rows.append((name, f"{first:.1f}", "≤ 5", f"{again:.2f}", compilations.count - before))
    columns = (
        "method",
        "first call, s",
        "target",
        "another seed, step, length and data, s",
        "compiled anew",
    )
    print_table(f"Compilation: {DRAWS} draws of one chain, the mode given", columns, rows)


def seconds_of(
    posterior: tallmc.models.AbstractPosterior,
    anchor: tallmc.anchor.Anchor,
    method: AbstractMethod,
    n_draws: int,
    seed: int,
) -> float:
    began = time.perf_counter()
    tallmc.sample(
        posterior,
        method,
        chains=1,
        n_draws=n_draws,
        seed=seed,
        anchor=anchor if method.needs else None,
    )
    return time.perf_counter() - began
