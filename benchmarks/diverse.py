"""Diversified minibatches on the data of figure 1 of putcha-2023: noise and cost.

The noise is the pseudo-variance of the gradient from 10 rows, simulated at two of the figure's
positions and divided by that of uniform draws. The cost is that of drawing the rows of a step.
"""

from __future__ import annotations

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import tallmc
from experiments.putcha2023.fig1 import Figure1Problem, problem_as_meant
from tallmc._engine.kernel import BoundKernel
from tallmc.contrib.diverse_batches import Determinantal, PoissonDisk
from tallmc.gradient import ControlVariate, Simple
from tallmc.rows import RowDraws
from tallmc.subsample import Preferential, Stratified, Uniform
from tallmc.subsample.selection import SubsampleChoice

from .report import print_table
from .timing import best_seconds

SIZE, BATCHES, POSITIONS, STEPS = 10, 2000, 2, 50


def schemes(weights: str) -> dict[str, SubsampleChoice]:
    return {
        "uniform": Uniform(),
        "uniform, no replacement": Uniform(replace=False),
        "preferential": Preferential(weights),
        "stratified, 10 clusters": Stratified(10),
        "k-DPP": Determinantal(),
        "Poisson disk": PoissonDisk(simulated=20_000),
    }


@eqx.filter_jit
def estimates(bound: BoundKernel, position: jax.Array, key: jax.Array) -> jax.Array:
    kernel, rows = bound.composition, bound.rows
    drawn = kernel.selection.draw(key, BATCHES)

    def gradient(one: RowDraws) -> jax.Array:
        gathered = kernel.selection.gather(one, rows)
        return kernel.estimate(position, gathered, rows).gradient

    return jax.lax.map(gradient, drawn, batch_size=100)


def noise(problem: Figure1Problem, bound: BoundKernel) -> float:
    """The mean pseudo-variance over the positions."""
    variances = []
    for number, candidate in enumerate(problem.candidates[:POSITIONS]):
        position = jnp.asarray(candidate, problem.posterior.dtype)
        found = np.asarray(estimates(bound, position, jax.random.key(number)), float)
        variances.append(found.var(axis=0).sum())
    return float(np.mean(variances))


def seconds_per_step(n_rows: int) -> dict[str, float]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n_rows, 5))
    posterior = tallmc.models.logistic_regression(x, rng.random(n_rows) < 0.5, prior_variance=10.0)
    draw = eqx.filter_jit(lambda selection, key: selection.draw(key, STEPS))

    def drawing(scheme: SubsampleChoice) -> Callable[[], RowDraws]:
        method = tallmc.Method(subsample=scheme, batch_size=SIZE, step_size=0.1)
        selection = method.prepare(posterior).kernel.composition.selection
        return lambda: jax.block_until_ready(draw(selection, jax.random.key(0)))

    found = best_seconds({name: drawing(s) for name, s in schemes("gradient").items()}, rounds=5)
    return {name: seconds / STEPS for name, seconds in found.items()}


def main() -> None:
    columns: dict[str, list[str]] = {name: [] for name in schemes("gradient")}
    for key, gradient, weights in (
        ("a", Simple(), "gradient"),
        ("b", Simple(), "gradient"),
        ("c", Simple(), "gradient"),
        ("b", ControlVariate(), "curvature"),
        ("c", ControlVariate(), "curvature"),
    ):
        with jax.enable_x64(key == "a"):
            problem = problem_as_meant(key)
            found = {}
            for name, scheme in schemes(weights).items():
                method = tallmc.Method(
                    gradient=gradient, subsample=scheme, batch_size=SIZE, step_size=1.0
                )
                bound = method.prepare(problem.posterior, problem.anchor).kernel
                found[name] = noise(problem, bound)
        for name, value in found.items():
            columns[name].append(f"{value / found['uniform']:.3f}")
    for n_rows in (1000, 10_000):
        for name, seconds in seconds_per_step(n_rows).items():
            columns[name].append(f"{1e6 * seconds:.1f}")
    names = ("(a)", "(b)", "(c)", "(b) CV", "(c) CV", "µs, N = 10³", "µs, N = 10⁴")
    print_table(
        "noise and cost of diversified batches",
        ("scheme", *names),
        [(name, *values) for name, values in columns.items()],
    )


if __name__ == "__main__":
    main()
