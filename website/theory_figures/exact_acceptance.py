"""Rows that an exact accept step reads, against the number of rows of the data."""

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import tallmc
from tallmc.methods.subsampled.method import SubsampledKernel
from tallmc.methods.subsampled.thinning import PoissonDecision, typical_growth

N_ROWS = [3_000, 30_000, 300_000]  # reduced: [500, 1_000]
POWERS = {1: "0", 2: "−1/2", 3: "−1"}

fig, axis = plt.subplots(figsize=(8, 3.8), layout="constrained")
for order, power in POWERS.items():
    per_proposal = []
    for n_rows in N_ROWS:
        rng = np.random.default_rng(0)
        X = np.column_stack([np.ones(n_rows), rng.normal(size=(n_rows, 9))])
        y = rng.random(n_rows) < 1 / (1 + np.exp(-X @ np.linspace(-0.5, 0.5, 10)))
        posterior = tallmc.models.logistic_regression(X, y, prior_variance=10.0)
        kernel = tallmc.methods.subsampled_mh(order=order).prepare(posterior).kernel.kernel
        assert isinstance(kernel, SubsampledKernel)
        assert isinstance(kernel.decision, PoissonDecision)
        typical = typical_growth(kernel.surrogate, kernel.proposal, jnp.float32(1.0))
        per_proposal.append(kernel.n_certain + float(kernel.decision.total) * typical)
    slope = np.polyfit(np.log(N_ROWS), np.log(per_proposal), 1)[0]
    print(f"order {order}: {np.round(per_proposal, 4)} rows per proposal, slope {slope:.2f}")
    colour = f"C{order - 1}"
    axis.plot(N_ROWS, per_proposal, "o-", color=colour, label=f"order {order}, expected rows")
    line = per_proposal[0] * (np.array(N_ROWS) / N_ROWS[0]) ** ((1 - order) / 2)
    axis.plot(N_ROWS, line, "--", color=colour, linewidth=0.8, label=f"N^({power})")
axis.plot(N_ROWS, N_ROWS, color="grey", linewidth=0.8, label="all rows")
axis.set(xscale="log", yscale="log", xlabel="rows of the data, N", ylabel="rows read per proposal")
fig.legend(fontsize=8, loc="outside right center")
fig.savefig("exact_acceptance.png", dpi=110)
