"""The simulated data of putcha-2023, bit for bit.

NumPy's legacy generator is consumed in the same order as by the authors' tools.

    bivariate          x_i ~ N((0, 1), S), S = [[1e5, 6e4], [6e4, 2e5]], from `np.random.seed(seed)`
    classification     two Gaussian clusters of random shape at corners of a cube, some labels
                       flipped; a third of the rows is held out
    shuffle_split      a permutation by `np.random.RandomState(seed)`, held-out rows first
    stratified_split   a split within each class, then a shuffle of each part

`classification` is scikit-learn's `make_classification` with four informative columns and no
others. The splits are its `train_test_split` and `StratifiedShuffleSplit`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

_COLUMNS = 4
MEAN = np.array([0.0, 1.0])
COVARIANCE = np.array([[1e5, 6e4], [6e4, 2e5]])


def bivariate(seed: int, n_rows: int) -> Float[np.ndarray, "N 2"]:
    return np.random.RandomState(seed).multivariate_normal(MEAN, COVARIANCE, n_rows)


def conjugate_posterior(
    x: Float[np.ndarray, "N d"], covariance: Float[np.ndarray, "d d"], prior_variance: float
) -> tuple[Float[np.ndarray, " d"], Float[np.ndarray, "d d"]]:
    """Return the posterior mean and covariance of a Gaussian's mean, given the rows' covariance."""
    precision = np.linalg.inv(covariance)
    posterior_covariance = np.linalg.inv(np.eye(x.shape[1]) / prior_variance + len(x) * precision)
    return posterior_covariance @ precision @ x.sum(axis=0), posterior_covariance


def classification(
    seed: int, n_rows: int, *, shares: Sequence[float] = (0.5, 0.5), flipped: float = 0.01
) -> tuple[Float[np.ndarray, "N 5"], Int[np.ndarray, " N"]]:
    """Simulate `n_rows` rows and return the two thirds that are not held out.

    The rows have an intercept and four columns. The labels are 0 or 1.
    """
    x, y = _clusters(np.random.RandomState(seed), n_rows, shares, flipped)
    kept, _ = shuffle_split(n_rows, -(-n_rows // 3), seed=42)
    return np.column_stack([np.ones(len(kept)), x[kept]]), y[kept]


def shuffle_split(
    n_rows: int, n_held_out: int, seed: int
) -> tuple[Int[np.ndarray, " kept"], Int[np.ndarray, " held_out"]]:
    order = np.random.RandomState(seed).permutation(n_rows)
    return order[n_held_out:], order[:n_held_out]


def stratified_split(
    labels: Int[np.ndarray, " N"], n_held_out: int, seed: int
) -> tuple[Int[np.ndarray, " kept"], Int[np.ndarray, " held_out"]]:
    random, counts = np.random.RandomState(seed), np.bincount(labels)
    kept_of = _proportional_counts(counts, len(labels) - n_held_out, random)
    held_out_of = _proportional_counts(counts - kept_of, n_held_out, random)
    kept, held_out = [], []
    for label, (count, first, second) in enumerate(zip(counts, kept_of, held_out_of, strict=True)):
        members = np.flatnonzero(labels == label)[random.permutation(count)]
        kept.append(members[:first])
        held_out.append(members[first : first + second])
    return random.permutation(np.concatenate(kept)), random.permutation(np.concatenate(held_out))


def _clusters(
    random: np.random.RandomState, n_rows: int, shares: Sequence[float], flipped: float
) -> tuple[Float[np.ndarray, "N 4"], Int[np.ndarray, " N"]]:
    sizes = [int(n_rows * share) for share in shares]
    for extra_row in range(n_rows - sum(sizes)):
        sizes[extra_row % 2] += 1
    corners = random.permutation(2**_COLUMNS)[:2]
    centres = 2.0 * ((corners[:, None] >> np.arange(_COLUMNS)[::-1]) & 1) - 1
    x, y = random.standard_normal((n_rows, _COLUMNS)), np.repeat([0, 1], sizes)
    for label, centre in enumerate(centres):
        shape = 2 * random.uniform(size=(_COLUMNS, _COLUMNS)) - 1
        x[y == label] = x[y == label] @ shape + centre
    flip = random.uniform(size=n_rows) < flipped
    y[flip] = random.randint(2, size=flip.sum())
    rows, columns = np.arange(n_rows), np.arange(_COLUMNS)
    random.shuffle(rows)
    random.shuffle(columns)
    return x[rows][:, columns], y[rows]


def _proportional_counts(
    counts: Int[np.ndarray, " k"], n: int, random: np.random.RandomState
) -> Int[np.ndarray, " k"]:
    """Split n into whole numbers in proportion to `counts`.

    The largest remainders are rounded up. Ties are broken at random.
    """
    exact = counts / counts.sum() * n
    shares = np.floor(exact)
    remainders, missing = exact - shares, int(n - shares.sum())
    for value in np.unique(remainders)[::-1]:
        if not missing:
            break
        tied = np.flatnonzero(remainders == value)
        chosen = random.choice(tied, min(len(tied), missing), replace=False)
        shares[chosen] += 1
        missing -= len(chosen)
    return shares.astype(int)
