"""Rows beyond memory: a row store.

A table is made in parts and written into a row store, a folder of shards. The whole table is never
in memory: `tallmc.ingest` reads one part at a time, and sampling streams rows from disk. Two stores
are fitted, the second ten times as tall as the first. The right panel shows the most memory that
the process has used so far. Most of it is Python, JAX and compiled programs.

`tallmc.ingest` reads files as well, such as "clicks-*.parquet".
"""

import resource
import tempfile

import matplotlib.pyplot as plt
import numpy as np

import tallmc

ROWS_PER_PART = 100_000  # reduced: 10_000

truth = np.linspace(-1, 1, 12)


def part(number):
    rng = np.random.default_rng(number)
    X = rng.normal(size=(ROWS_PER_PART, len(truth)))
    clicked = rng.random(ROWS_PER_PART) < 1 / (1 + np.exp(2 - X @ truth))
    return {**{f"x{j:02}": column for j, column in enumerate(X.T)}, "clicked": clicked}


def most_memory():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # MiB, on Linux


carried = {}
with tempfile.TemporaryDirectory() as folder:
    for n in (3, 30):  # a function that returns an iterator is called for each of two passes
        tallmc.ingest(lambda n=n: map(part, range(n)), f"{folder}/{n}", response="clicked")
    carried["both tables\nwritten"] = most_memory()
    for n in (3, 30):
        rows = tallmc.rows.open(f"{folder}/{n}")
        posterior = tallmc.models.logistic_regression(rows, response="clicked", prior_variance=10.0)
        draws = tallmc.sample(posterior, seed=0)
        carried[f"{posterior.n_rows:,}\nrows fitted"] = most_memory()
        size = posterior.n_rows * (len(truth) + 2) * 4 / 2**20
        print(f"{posterior.n_rows:,} rows, {size:.0f} MiB in the store: {draws.report.verdict}")
for what, amount in carried.items():
    print(f"most memory so far, {' '.join(what.split())}: {amount:.0f} MiB")

low, middle, high = np.quantile(draws.positions[..., 1:], [0.05, 0.5, 0.95], axis=(0, 1))
fig, axes = plt.subplots(1, 2, figsize=(9, 3.6), width_ratios=[3, 2], layout="constrained")
axes[0].axhline(0, color="tab:red", label="true value")
bars = [middle - low, high - middle]
axes[0].errorbar(range(12), middle - truth, yerr=bars, fmt="o", capsize=3, label="90 % interval")
axes[0].set(xlabel="column", ylabel="coefficient − true value (log odds)")
axes[0].set_title(f"Posterior from {posterior.n_rows:,} rows on disk")
axes[0].legend(fontsize=8)
axes[1].bar_label(axes[1].bar(list(carried), list(carried.values())), fmt="{:,.0f}")
axes[1].set(ylabel="MiB", title="Most memory so far")
axes[1].margins(y=0.12)
fig.savefig("out_of_core.png", dpi=120)
