"""Which rows a run looks at.

Preferential subsampling draws rows in proportion to how much they matter for the gradient. The
picture shows the probabilities of the rows of a logistic regression against their linear predictor
at the mode. Rows with a surprising class, or with covariates far out, are drawn most often.
"""

import matplotlib.pyplot as plt
import numpy as np

import tallmc

N_ROWS = 200_000  # reduced: 5_000

rng = np.random.default_rng(0)
X = np.column_stack([np.ones(N_ROWS), rng.standard_t(5, size=(N_ROWS, 4))])
y = rng.random(N_ROWS) < 1 / (1 + np.exp(-X @ [-3.0, 1.0, -1.0, 0.5, 0.0]))
posterior = tallmc.models.logistic_regression(X, y, prior_variance=10.0)
anchor = tallmc.laplace(posterior)

fig, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
weights = {
    "gradients at the mode (eq. 11)": tallmc.subsample.gradient_weights(posterior, anchor),
    "curvature at the mode (eq. 16)": tallmc.subsample.curvature_weights(posterior, anchor),
}
shown = rng.choice(N_ROWS, 5_000, replace=False)
predictor = X @ np.asarray(anchor.position)
for axis, (title, values) in zip(axes, weights.items(), strict=True):
    times = np.asarray(values) * N_ROWS / np.sum(values)
    for value, colour in ((0, "tab:blue"), (1, "tab:orange")):
        rows = shown[y[shown] == value]
        axis.scatter(predictor[rows], times[rows], s=3, color=colour, label=f"y = {value}")
    axis.set(title=title, xlabel="linear predictor", yscale="log")
    print(f"{title}: the top 1 % of rows get {np.sort(times)[-N_ROWS // 100 :].sum() / N_ROWS:.0%}")
axes[0].set_ylabel("probability, times N")
axes[0].legend(markerscale=4)
fig.savefig("which_rows.png", dpi=120)
