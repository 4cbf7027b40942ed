"""Noise of a gradient estimate: how weights lower it, and what the floor under them does."""

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import tallmc
from tallmc.gradient import ControlVariate, Simple
from tallmc.subsample import Optimal, Preferential, Uniform

N_ROWS = 20_000  # reduced: 500
N_POSITIONS = 5  # reduced: 2

rng = np.random.default_rng(0)
X = np.column_stack([np.ones(N_ROWS), rng.standard_t(5, size=(N_ROWS, 4))])
rare = rng.random(N_ROWS) < 1 / (1 + np.exp(-X @ [-3.0, 1.0, -1.0, 0.5, 0.0]))
posterior = tallmc.models.logistic_regression(X, rare, prior_variance=10.0)
anchor = tallmc.anchor.find_anchor(posterior)
directions = rng.normal(size=(N_POSITIONS, 5))
to_draws = directions @ np.asarray(anchor.factor).T
to_distance_one = to_draws / np.linalg.norm(directions, axis=1, keepdims=True)


def kernel_of(gradient, subsample):
    """A method with one row per step."""
    method = tallmc.Method(gradient=gradient, subsample=subsample, batch_size=1, step_size=1e-3)
    return method.prepare(posterior, anchor).kernel


def noise(kernel, moves):
    """The mean of tr Cov over positions θ̂ + move."""
    positions = anchor.position + jnp.asarray(moves, jnp.float32)
    return np.mean([tallmc.diagnose.pseudo_variance(kernel, at) for at in positions])


curves = {
    "simple, uniform (eq. 3)": (Simple(), Uniform(), "tab:blue", "-"),
    "simple, eq. 11": (Simple(), Preferential("gradient"), "tab:orange", "-"),
    "simple, optimum (eq. 10)": (Simple(), Optimal(), "black", ":"),
    "control variates, uniform (eq. 5)": (ControlVariate(), Uniform(), "tab:blue", "--"),
    "control variates, eq. 16": (ControlVariate(), Preferential("curvature"), "tab:orange", "--"),
    "control variates, optimum (eq. 14)": (ControlVariate(), Optimal(), "black", "-."),
}
fig, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
sizes = np.geomspace(1, 1_000, 30)
for label, (gradient, subsample, colour, style) in curves.items():
    of_one = noise(kernel_of(gradient, subsample), to_draws)
    print(f"{label}: {of_one:.3g}")
    left.plot(sizes, of_one / sizes, style, color=colour, label=label)
left.set(xscale="log", yscale="log", xlabel="rows per step, n", ylabel="pseudo-variance, tr Cov")
left.set_title("at draws of the posterior", fontsize=10)
left.legend(fontsize=6.5)

distances = np.geomspace(1, 1_000, 7)
uniform = kernel_of(Simple(), Uniform())
of_uniform = np.array([noise(uniform, distance * to_distance_one) for distance in distances])
for floor, colour in ((0.0, "tab:red"), (0.05, "tab:orange"), (0.5, "tab:green")):
    kernel = kernel_of(Simple(), Preferential("gradient", floor=floor))
    found = np.array([noise(kernel, distance * to_distance_one) for distance in distances])
    ratios = found / of_uniform
    print(f"floor {floor}:", np.round(ratios, 3))
    right.plot(distances, ratios, "o-", markersize=3, color=colour, label=f"floor δ = {floor}")
right.axhline(1, color="grey", linewidth=0.8)
right.set(xscale="log", yscale="log", xlabel="distance from the mode, posterior sds")
right.set_ylabel("pseudo-variance relative to uniform rows")
right.set_title("eq. 11 away from the mode", fontsize=10)
right.legend(fontsize=8)
fig.savefig("preferential_subsampling.png", dpi=110)
