"""The default method against NUTS on all rows.

`tallmc.reference.nuts` draws from the same posterior with the no-U-turn sampler of BlackJAX, which
reads all rows in every leapfrog step. It needs the extra `reference`:
`pip install ".[reference]"`. NUTS has no bias, so it serves as the reference here.

The picture shows differences of posterior means, in posterior standard deviations, with bars of two
Monte-Carlo standard errors of both runs, and the time and the rows that each run took.
"""

import matplotlib.pyplot as plt
import numpy as np

import tallmc

N_ROWS = 100_000  # reduced: 6_000
N_DRAWS = 250  # reduced: 100

rng = np.random.default_rng(0)
truth = np.linspace(-1, 1, 8)
X = np.column_stack([np.ones(N_ROWS), rng.standard_t(5, size=(N_ROWS, 7))])
y = rng.random(N_ROWS) < 1 / (1 + np.exp(-X @ truth))
posterior = tallmc.models.logistic_regression(X, y, prior_variance=10.0)

anchor = tallmc.anchor.find_anchor(posterior)
ours = tallmc.sample(posterior, anchor=anchor, seed=0)
nuts = tallmc.reference.nuts(posterior, n_draws=N_DRAWS, warmup=200, anchor=anchor, seed=1)
time, passes, ess = {}, {}, {}
for name, draws in (("default", ours), ("NUTS", nuts)):
    timing = draws.timing
    time[name] = timing.preparation + timing.compilation + timing.sampling
    passes[name] = draws.n_row_evals / N_ROWS
    ess[name] = tallmc.diagnose.ess(draws.positions)
    print(
        f"{name}: {ess[name].min():,.0f} effective draws, {time[name]:.1f} s, "
        f"rows read {passes[name]:,.0f} times"
    )

sd = nuts.positions.std(axis=(0, 1))
shift = (ours.positions.mean(axis=(0, 1)) - nuts.positions.mean(axis=(0, 1))) / sd
error = np.sqrt(1 / ess["default"] + 1 / ess["NUTS"])
ratio = ours.positions.std(axis=(0, 1)) / sd
print(f"largest difference of means: {np.abs(shift).max():.3f} posterior sds", end=", ")
print(f"where the Monte-Carlo error is {error[np.abs(shift).argmax()]:.3f}")
print(f"ratios of standard deviations: {ratio.min():.3f} to {ratio.max():.3f}")

fig, axes = plt.subplots(1, 3, figsize=(9, 3.6), width_ratios=[3, 1, 1], layout="constrained")
axes[0].axhline(0, color="tab:red", label="NUTS")
axes[0].errorbar(range(8), shift, yerr=2 * error, fmt="o", capsize=3, label="default method")
axes[0].set(xlabel="coefficient", ylabel="difference of means (posterior sds)")
axes[0].set_title("Posterior means agree")
axes[0].legend(fontsize=8)
for axis, label, values in zip(axes[1:], ("seconds", "passes"), (time, passes), strict=True):
    bars = axis.bar(list(values), list(values.values()), color=["tab:blue", "tab:red"])
    axis.bar_label(bars, fmt="{:,.0f}")
    axis.set_title({"seconds": "Time (s)", "passes": "Passes over the rows"}[label], fontsize=10)
fig.savefig("against_nuts.png", dpi=120)
