"""Robust regression: Student-t noise against Gaussian noise.

One row in twenty is an outlier. Gaussian noise makes the line follow the outliers, and its
interval excludes the true slope. With Student-t noise the degrees of freedom are estimated too,
and rows far from the line count little.
"""

import matplotlib.pyplot as plt
import numpy as np

import tallmc

N_ROWS = 5_000  # reduced: 1_000

rng = np.random.default_rng(0)
x = rng.uniform(0, 10, N_ROWS)
y = 1.0 + 2.0 * x + rng.normal(size=N_ROWS)
y = np.where(rng.random(N_ROWS) < 0.05, rng.normal(-5, 10, N_ROWS), y)

X = np.column_stack([np.ones(N_ROWS), x])
posteriors = {
    "Gaussian": tallmc.models.linear_regression(X, y, prior_variance=100.0),
    "Student-t": tallmc.models.student_t_regression(X, y, prior_variance=100.0),
}
colours = {"Gaussian": "tab:orange", "Student-t": "tab:blue"}
fig, (left, right) = plt.subplots(1, 2, figsize=(8, 3.6), layout="constrained")
left.scatter(x[:1_000], y[:1_000], s=4, color="0.6", label="rows")
for name, posterior in posteriors.items():
    draws = tallmc.sample(posterior, seed=0)
    slope, scale = draws.params["beta"][..., 1], np.exp(draws.params["log_scale"])
    print(f"{name}: slope {slope.mean():.3f} ± {slope.std():.3f}; true 2")
    print(f"{name}: noise scale {scale.mean():.2f} ± {scale.std():.2f}; true 1 without outliers")
    print(f"{name}: {draws.report.verdict}")
    line = draws.predict([[1.0, 0.0], [1.0, 10.0]]).mean
    left.plot([0, 10], line, color=colours[name], label=name, linewidth=2)
    right.hist(slope.ravel(), bins=40, density=True, color=colours[name], label=name)
right.axvline(2.0, color="tab:red", linestyle="--", label="true slope")
left.set(xlabel="x", ylabel="y", title="Outliers pull the Gaussian line down")
right.set(xlabel="slope", ylabel="posterior density", title="Posterior of the slope")
left.legend(loc="lower left", fontsize=8)
right.legend(loc="upper left", fontsize=8)
fig.savefig("robust_regression.png", dpi=120)
