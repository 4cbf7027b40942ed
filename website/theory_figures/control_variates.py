"""Noise of control variates of orders 0, 1 and 2 against the distance from the mode."""

import jax
import matplotlib.pyplot as plt
import numpy as np

import tallmc
from tallmc.gradient import ControlVariate, Simple
from tallmc.subsample import Preferential, Uniform

N_ROWS = 50_000  # reduced: 500
N_DIRECTIONS = 4  # reduced: 1

jax.config.update("jax_enable_x64", True)  # residuals of order 2 are below the rounding of float32
unit = np.random.default_rng(1).normal(size=(N_DIRECTIONS, 5))
unit /= np.linalg.norm(unit, axis=1, keepdims=True)
distances = np.geomspace(0.1, 1000, 9)
gradients = (Simple(), ControlVariate(1), ControlVariate(2))


class Problem:
    """A logistic regression with its anchor."""

    def __init__(self, n_rows):
        rng = np.random.default_rng(0)
        X = np.column_stack([np.ones(n_rows), rng.normal(size=(n_rows, 4))])
        y = rng.random(n_rows) < 1 / (1 + np.exp(-X @ [-2.0, 1.0, -1.0, 0.5, 0.0]))
        self.posterior = tallmc.models.logistic_regression(X, y, prior_variance=10.0)
        self.anchor = tallmc.anchor.find_anchor(self.posterior)
        self.metric = tallmc.geometry.Dense().prepare(self.posterior, self.anchor)

    def noise(self, gradient, subsample, distances):
        """Tr Cov(Cᵀ∇f̂) of one row at these distances, as a mean over directions."""
        method = tallmc.Method(
            gradient=gradient,
            subsample=subsample,
            batch_size=1,
            step_size=0.1,
            geometry=tallmc.geometry.Dense(),
        )
        kernel = method.prepare(self.posterior, self.anchor).kernel
        found = [
            tallmc.diagnose.pseudo_variance(
                kernel, self.anchor.position + self.metric.push(s * v), geometry=self.metric
            )
            for s in distances
            for v in unit
        ]
        return np.mean(np.reshape(found, (len(distances), -1)), axis=1)


problem = Problem(N_ROWS)
fig, axis = plt.subplots(figsize=(8, 3.8), layout="constrained")
for order, gradient in enumerate(gradients):
    for weights, subsample, style in (
        ("uniform rows", Uniform(), "--"),
        ("own weights", Preferential("residual"), "-"),
    ):
        noise = problem.noise(gradient, subsample, distances)
        slopes = np.diff(np.log(noise)) / np.diff(np.log(distances))
        print(f"order {order}, {weights}: slopes", np.round(slopes, 2))
        axis.plot(distances, noise, style, color=f"C{order}", label=f"order {order}, {weights}")
axis.axvspan(*np.sqrt([1.15, 11.1]), color="grey", alpha=0.2, label="90 % of the posterior")
axis.set(xscale="log", yscale="log", xlabel="distance from the mode, ‖u‖, in posterior sds")
axis.set_ylabel("pseudo-variance of one row")
axis.legend(fontsize=7, ncols=2)
fig.savefig("control_variates.png", dpi=110)

smaller = Problem(N_ROWS // 10)
for order, gradient in enumerate(gradients):
    few, many = (of.noise(gradient, Uniform(), [np.sqrt(5)])[0] for of in (smaller, problem))
    print(f"order {order}: {few:.3g} with N/10 rows, {many:.3g} with N")
