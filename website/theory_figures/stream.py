"""Rows that a float32 inverse CDF never draws, and the mode of a stream that is used again."""

import matplotlib.pyplot as plt
import numpy as np

from tallmc._rows.law import alias_table

N_TABLES = [10**5, 10**6, 10**7]  # reduced: [10**4, 10**5]
N_ROWS = 20_000  # reduced: 1_000
N_REPEATS = 20  # reduced: 2

uniforms = np.arange(2**23, dtype=np.float32) / np.float32(2**23)  # every float32 uniform of JAX


def unreachable_by_inversion(p):
    """The share of rows that no float32 uniform chooses, by a float32 cumulative sum."""
    cumulative = np.cumsum(p.astype(np.float32))
    chosen = np.searchsorted(cumulative, uniforms * cumulative[-1], side="right")
    return 1 - (np.count_nonzero(np.diff(chosen)) + 1) / len(p)


def unreachable_by_alias(p):
    """The share of rows that have no unit in the alias table."""
    return np.mean(alias_table(p).probability == 0)


rng = np.random.default_rng(0)
fig, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
for number, (name, sigma) in enumerate({"uniform p": 0.0, "log-normal p": 1.0}.items()):
    shares = []
    for n_rows in N_TABLES:
        weights = rng.lognormal(0, sigma, n_rows) if sigma else np.ones(n_rows)
        p = weights / weights.sum()
        shares.append((unreachable_by_inversion(p), unreachable_by_alias(p)))
    inverse, alias = np.array(shares).T
    print(f"{name}: {np.round(inverse, 4)}, {alias}")
    left.plot(N_TABLES, 100 * inverse, "o-", color=f"C{number}", label=f"float32, {name}")
    left.plot(N_TABLES, 100 * alias, "x--", color=f"C{number}", label=f"alias table, {name}")
left.set(xscale="log", xlabel="rows, N", ylabel="rows that are never drawn, %")
left.legend(fontsize=8)

X = np.column_stack([np.ones(N_ROWS), rng.normal(size=(N_ROWS, 4))])
y = rng.random(N_ROWS) < 1 / (1 + np.exp(-X @ [-1.0, 1.0, -1.0, 0.5, 0.0]))


def mode_and_hessian(counts):
    """The mode of a logistic regression whose rows count this many times, by Newton's method."""
    position = np.zeros(5)
    for _ in range(8):
        fitted = 1 / (1 + np.exp(-X @ position))
        hessian = (X.T * (counts * fitted * (1 - fitted))) @ X
        position -= np.linalg.solve(hessian, X.T @ (counts * (fitted - y)))
    return position, hessian


true_mode, hessian = mode_and_hessian(np.ones(N_ROWS))
whitening = np.linalg.cholesky(hessian).T
lengths = np.geomspace(N_ROWS / 20, 50 * N_ROWS, 6).astype(int)
moved = []
for length in lengths:
    for _ in range(N_REPEATS):
        # A stream of `length` uniform draws, each of weight N/length, in place of all rows.
        counts = rng.multinomial(length, np.full(N_ROWS, 1 / N_ROWS)) * N_ROWS / length
        moved.append(whitening @ (mode_and_hessian(counts)[0] - true_mode))
distance = np.sqrt(np.mean(np.square(moved).reshape(len(lengths), -1), axis=1))
print(f"T/N {lengths / N_ROWS}, distances {distance}, ratio {distance * np.sqrt(lengths / N_ROWS)}")
right.plot(lengths / N_ROWS, distance, "o", label="measured")
right.plot(lengths / N_ROWS, np.sqrt(N_ROWS / lengths), "k--", linewidth=1, label="√(N/T)")
right.set(xscale="log", yscale="log", xlabel="draws of the stream relative to the rows, T/N")
right.set_ylabel("distance of the modes, posterior sds")
right.legend(fontsize=8)
fig.savefig("stream.png", dpi=110)
