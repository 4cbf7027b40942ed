"""Softmax regression with four classes.

Each row has one of four classes. The regression has one set of coefficients per class except the
first, which is the baseline. Quadratic columns make the boundaries between classes curved.

The left panel shows the most probable class and some rows. The right panel shows the width of the
90 % interval of that probability: it is widest along the boundaries and where rows are few.
"""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import ListedColormap

import tallmc

N_ROWS = 50_000  # reduced: 4_000


def columns(x1, x2):
    return np.column_stack([np.ones(len(x1)), x1, x2, x1**2, x2**2, x1 * x2])


rng = np.random.default_rng(0)
centres = np.array([[0, 0], [2.5, 0.5], [-1.5, 2.0], [-1.0, -2.5]])
spreads = np.array([[0.7, 0.7], [1.0, 0.5], [1.2, 0.8], [0.6, 1.0]])
y = rng.choice(4, N_ROWS, p=[0.4, 0.3, 0.2, 0.1])
x = centres[y] + spreads[y] * rng.normal(size=(N_ROWS, 2))

posterior = tallmc.models.softmax_regression(columns(*x.T), y, prior_variance=10.0)
draws = tallmc.sample(posterior, seed=0)
print(draws.report)
share = tallmc.diagnose.accuracy(draws.positions, posterior, (columns(*x[:5_000].T), y[:5_000]))
print(f"share of right classes among 5,000 rows: {share:.1%}")

x1, x2 = np.meshgrid(np.linspace(-5, 6, 110), np.linspace(-6, 5, 110))
grid = draws.predict(columns(x1.ravel(), x2.ravel()))
best = grid.mean.argmax(axis=1)[:, None]
width = np.take_along_axis(np.asarray(grid.high) - np.asarray(grid.low), best, axis=1)

fig, (left, right) = plt.subplots(1, 2, figsize=(8, 3.8), sharey=True, layout="constrained")
colours = ListedColormap(["tab:blue", "tab:orange", "tab:green", "tab:red"])
left.pcolormesh(x1, x2, best.reshape(x1.shape), cmap=colours, alpha=0.35)
for label in range(4):
    some = x[:1_500][y[:1_500] == label]
    left.scatter(*some.T, color=colours(label), s=4, label=f"class {label}")
left.set(
    xlabel="x₁", ylabel="x₂", xlim=(-5, 6), ylim=(-6, 5), title="Most probable class, and rows"
)
left.legend(loc="upper right", markerscale=3, fontsize=8)
shade = right.pcolormesh(x1, x2, width.reshape(x1.shape), cmap="viridis")
right.set(xlabel="x₁", title="Uncertainty of its probability")
fig.colorbar(shade, ax=right, label="width of the 90 % interval")
fig.savefig("softmax_classes.png", dpi=120)
