"""The cost per draw as N grows. Cache misses are allowed; work that grows with N is not."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from tallmc._rows.law import AliasLaw, ResidentStream, UniformLaw
from tallmc._rows.probabilities import probabilities
from tallmc.subsample.selection import WithReplacement
from tallmc.subsample.uniform import WithoutReplacement

from .report import print_table
from .timing import best_seconds

SMALL, LARGE, SIZE, STEPS = 10**5, 10**7, 32, 512


def selections(n_rows: int) -> dict[str, WithReplacement | WithoutReplacement]:
    uniform = UniformLaw(n_rows, jnp.float32)
    weights = np.random.default_rng(0).lognormal(0, 1, n_rows)
    preferential = AliasLaw.of(probabilities(weights, 0.05), jnp.float32)
    return {
        "uniform, with replacement": WithReplacement(stream=ResidentStream(uniform), size=SIZE),
        "uniform, without replacement": WithoutReplacement(law=uniform, size=SIZE),
        "preferential": WithReplacement(stream=ResidentStream(preferential), size=SIZE),
    }


def main() -> None:
    draw = eqx.filter_jit(lambda selection, key: selection.draw(key, STEPS))
    key = jax.random.key(0)
    small, large = selections(SMALL), selections(LARGE)
    rows = []
    for name in small:
        calls = {
            "small": lambda s=small[name]: draw(s, key),
            "large": lambda s=large[name]: draw(s, key),
        }
        seconds = best_seconds(calls, rounds=20)
        per_row = {n_rows: took / STEPS / SIZE * 1e9 for n_rows, took in seconds.items()}
        ratio = seconds["large"] / seconds["small"]
        rows.append(
            (name, f"{per_row['small']:.1f}", f"{per_row['large']:.1f}", f"{ratio:.2f}", "≤ 4")
        )
    columns = (
        "subsample",
        f"ns a row, N = {SMALL:,}",
        f"ns a row, N = {LARGE:,}",
        "ratio",
        "target",
    )
    print_table(f"A draw of {SIZE} rows as N grows", columns, rows)
