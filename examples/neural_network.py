"""A Bayesian neural network and where it is uncertain.

A network with one hidden layer separates two moons. SGHMC on minibatches draws its weights, and
predictions average over the draws. Among the rows the boundary is well known. Where it continues
beyond the rows, the draws disagree about it, and the standard deviation of the probability is
large.

Networks have many equal modes, so R-hat of the weights means little. Judge such draws by their
predictions on new rows.
"""

import warnings

import matplotlib.pyplot as plt
import numpy as np

import tallmc
from tallmc.models import DenseLayer

N_ROWS = 5_000  # reduced: 1_000
N_STEPS = 10_000  # reduced: 2_000


def two_moons(rng, n):
    angle, moon = rng.uniform(0, np.pi, n), rng.integers(0, 2, n)
    x1 = np.where(moon, 1 - np.cos(angle), np.cos(angle))
    x2 = np.where(moon, 0.5 - np.sin(angle), np.sin(angle))
    return np.column_stack([x1, x2]) + rng.normal(scale=0.2, size=(n, 2)), moon


rng = np.random.default_rng(0)
x, moon = two_moons(rng, N_ROWS)
posterior = tallmc.models.neural_network([DenseLayer(16, "tanh")], x, moon, prior_variance=1.0)
method = tallmc.methods.sghmc(3e-3, batch_size=100, friction=10.0)
with warnings.catch_warnings():
    warnings.simplefilter("ignore", tallmc.SamplingWarning)  # R-hat of the weights
    draws = tallmc.sample(posterior, method, n_draws=200, thin=N_STEPS // 200, burn_in=N_STEPS)
new_rows = two_moons(rng, 5_000)
share = tallmc.diagnose.accuracy(draws.positions, posterior, new_rows)
density = tallmc.diagnose.log_predictive_density(draws.positions, posterior, new_rows)
error = tallmc.diagnose.calibration(draws.positions, posterior, new_rows).error
print(f"weights: {posterior.dim}; chains: {draws.positions.shape[0]}")
print(f"share of right classes among new rows: {share:.1%}")
print(f"mean log density of new rows: {density:.3f}; calibration error: {error:.3f}")

x1, x2 = np.meshgrid(np.linspace(-3, 4, 100), np.linspace(-2.5, 3, 100))
grid = draws.predict(np.column_stack([x1.ravel(), x2.ravel()]))
fig, axes = plt.subplots(1, 2, figsize=(8, 3.4), sharey=True, layout="constrained")
pictures = {"mean": ("RdBu", grid.mean), "standard deviation": ("viridis", grid.sd)}
for axis, (name, (colours, values)) in zip(axes, pictures.items(), strict=True):
    shade = axis.pcolormesh(x1, x2, np.asarray(values)[:, 1].reshape(x1.shape), cmap=colours)
    fig.colorbar(shade, ax=axis, label=f"{name} of P(class 1)")
    for label, marker in ((0, "tab:red"), (1, "tab:blue")):
        rows = x[:400][moon[:400] == label]
        axis.scatter(*rows.T, s=4, color=marker, edgecolor="white", linewidth=0.2)
    axis.set(xlabel="x₁", title=f"Posterior {name}")
axes[0].set_ylabel("x₂")
fig.savefig("neural_network.png", dpi=120)
