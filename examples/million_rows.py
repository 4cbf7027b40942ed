"""Logistic regression with a million rows.

The default call chooses the method, runs it until every coefficient has 3,000 effective draws, and
states how large the errors may be. The rows are simulated, so the posterior can be compared with
the true coefficients. The right panel shows 90 % intervals relative to the true values, because
they are much narrower than the coefficients are apart.
"""

import matplotlib.pyplot as plt
import numpy as np

import tallmc

N_ROWS = 1_000_000  # reduced: 20_000

rng = np.random.default_rng(1)
truth = np.array([-1.0, 0.8, -0.6, 0.4, -0.2, 0.0, 0.2, -0.4, 0.6, -0.8])
X = np.column_stack([np.ones(N_ROWS), rng.normal(size=(N_ROWS, 9))])
y = rng.random(N_ROWS) < 1 / (1 + np.exp(-X @ truth))

posterior = tallmc.models.logistic_regression(X, y, prior_variance=10.0)
draws = tallmc.sample(posterior, seed=0)
print(draws.report)
low, middle, high = np.quantile(draws.positions, [0.05, 0.5, 0.95], axis=(0, 1))
covered = np.sum((low < truth) & (truth < high))
print(f"{covered} of {len(truth)} true values lie in their 90 % intervals")
print(f"rows read: {draws.n_row_evals / N_ROWS:.0f} times the table, preparation included")
print(f"time: {draws.timing.preparation + draws.timing.compilation + draws.timing.sampling:.0f} s")

fig, (values, errors) = plt.subplots(1, 2, figsize=(8, 3.6), sharey=True, layout="constrained")
rank = np.arange(len(truth))
values.plot(middle, rank, "o", color="tab:blue", label="posterior median")
values.plot(truth, rank, "|", color="tab:red", markersize=14, label="true value")
values.set(xlabel="coefficient (log odds)", yticks=rank, ylabel="column of X")
errors.axvline(0, color="tab:red")
errors.errorbar(
    middle - truth, rank, xerr=[middle - low, high - middle], fmt="o", color="tab:blue", capsize=3
)
errors.set(xlabel="coefficient − true value, 90 % interval")
errors.locator_params(axis="x", nbins=5)
values.legend(fontsize=8, loc="lower center", bbox_to_anchor=(0.4, 0))
fig.suptitle(f"{N_ROWS:,} rows: the posterior and the true coefficients")
fig.savefig("million_rows.png", dpi=120)
