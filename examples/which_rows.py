"""Which rows a run looks at.

Preferential subsampling draws rows in proportion to how much they matter for the gradient. The
picture shows how much more often a row of a logistic regression is drawn than under uniform
subsampling, against its linear predictor at the mode. By the gradient at the mode, rows with a
surprising class are drawn most often: a 1 far to the left, a 0 far to the right. By the curvature,
rows near the boundary, or with covariates far out, are drawn most often. Control variates remove
the gradient at the mode, so the curvature is what is left.

The weights of the estimator are the inverse of these numbers, so it stays unbiased.
"""

import matplotlib.pyplot as plt
import numpy as np

import tallmc

N_ROWS = 200_000  # reduced: 5_000

rng = np.random.default_rng(0)
X = np.column_stack([np.ones(N_ROWS), rng.standard_t(5, size=(N_ROWS, 4))])
y = rng.random(N_ROWS) < 1 / (1 + np.exp(-X @ [-3.0, 1.0, -1.0, 0.5, 0.0]))
posterior = tallmc.models.logistic_regression(X, y, prior_variance=10.0)
anchor = tallmc.anchor.find_anchor(posterior)
weights = {
    "by the gradient at the mode": tallmc.subsample.gradient_weights(posterior, anchor),
    "by the curvature at the mode": tallmc.subsample.curvature_weights(posterior, anchor),
}

fig, axes = plt.subplots(1, 2, figsize=(9, 3.8), sharey=True, layout="constrained")
shown = rng.choice(N_ROWS, 4_000, replace=False)
predictor = X @ np.asarray(anchor.position)
for axis, (title, values) in zip(axes, weights.items(), strict=True):
    times = np.asarray(values, np.float64) / np.mean(values)
    for value, colour in ((0, "tab:blue"), (1, "tab:orange")):
        rows = shown[y[shown] == value]
        axis.scatter(predictor[rows], times[rows], s=4, color=colour, label=f"y = {value}")
    axis.axhline(1.0, color="0.3", linestyle="--", linewidth=1, label="uniform")
    axis.set(title=f"Rows drawn {title}", xlabel="linear predictor (log odds of y = 1)")
    axis.set(xlim=(-12, 8), yscale="log")
    top = np.sort(times)[-N_ROWS // 100 :].sum() / N_ROWS
    print(f"{title}: the 1 % of rows that are drawn most often are {top:.0%} of all row draws")
axes[0].set_ylabel("how often, relative to uniform")
axes[0].legend(markerscale=3, fontsize=8, loc="lower right")
fig.savefig("which_rows.png", dpi=120)
