"""A bad run and its verdict, beside a good one.

Both runs use SGLD with control variates. The step size of the first is the one that
`tallmc.suggest` finds, and the second run's is ten times as large. The chains of the bad run agree
with each other, so R-hat is fine, but they are spread too widely. `measure_bias=True` runs pairs of
chains at the step size and at half of it, and the verdict on the bad run is doubtful.

The picture compares both runs with exact draws, for the coefficient that is hit hardest.
"""

import warnings

import matplotlib.pyplot as plt
import numpy as np

import tallmc

N_ROWS = 20_000  # reduced: 6_000

rng = np.random.default_rng(0)
X = np.column_stack([np.ones(N_ROWS), rng.normal(size=(N_ROWS, 4))])
y = rng.random(N_ROWS) < 1 / (1 + np.exp(-X @ [0.5, 1.0, -1.0, 0.3, 0.0]))
posterior = tallmc.models.logistic_regression(X, y, prior_variance=10.0)
anchor = tallmc.anchor.find_anchor(posterior)

good = tallmc.suggest(posterior, "sgld_cv", batch_size=200, anchor=anchor)
steps = {"suggested step": good.step_size, "ten times the step": 10 * good.step_size}
exact = tallmc.sample(posterior, exact=True, anchor=anchor, ess=4_000, seed=1)
runs = {}
for name, step_size in steps.items():
    method = tallmc.methods.sgld_cv(step_size=step_size, batch_size=200)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tallmc.SamplingWarning)  # report has the same doubts
        runs[name] = tallmc.sample(
            posterior,
            method,
            n_draws=1_000,
            thin=good.thin,
            anchor=anchor,
            measure_bias=True,
            seed=0,
        )
    print(f"--- {name}: {step_size:.2g}\n{runs[name].report}")

widest = runs["ten times the step"].positions.std(axis=(0, 1)) / exact.positions.std(axis=(0, 1))
worst = widest.argmax()
fig, axes = plt.subplots(1, 2, figsize=(8, 3.6), sharex=True, sharey=True, layout="constrained")
for axis, (name, draws) in zip(axes, runs.items(), strict=True):
    bins = np.linspace(*np.quantile(runs["ten times the step"].positions[..., worst], [0, 1]), 50)
    for run, colour, label in ((exact, "0.6", "exact draws"), (draws, "tab:blue", name)):
        values = run.positions[..., worst].ravel()
        axis.hist(values, bins=bins, density=True, color=colour, alpha=0.6, label=label)
    report = draws.report
    axis.set_title(f"{report.verdict}: R-hat {report.rhat:.3f}, sds within {report.sd_error:.0%}")
    axis.set(xlabel=f"coefficient {worst} (log odds)")
    axis.legend(fontsize=8)
axes[0].set_ylabel("density")
fig.savefig("good_and_bad_run.png", dpi=120)
