"""Exact draws from a few rows: rows and seconds per effective draw, against other exact methods.

`python -m benchmarks.exact` prints the figures of docs/exact.md. Logistic regressions, simulated as
in section 6.1 of nemeth-2021, with N rows and d coefficients. The reference posteriors of the
folder `shared/reference` are those with N = 10⁵. Methods that read all rows make fewer draws.
Seconds are those of sampling, without preparation and compilation. Effective draws are those of the
worst parameter.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import tallmc
from tallmc.diagnose import ess
from tallmc.methods.abstract import AbstractMethod
from tallmc.methods.subsampled.thinning import bound_rows

warnings.simplefilter("ignore")

MANY = 256
"""Chains of methods whose steps are cheap."""


class Found(NamedTuple):
    """What a run cost, and how far it is from the reference."""

    method: str
    rows: float
    """Rows per effective draw."""
    seconds: float
    """Seconds per effective draw."""
    effective: float
    accepted: float
    mean_error: float | None
    """Of the worst mean, in posterior sds."""
    sd_error: float | None


def review(d: int, n_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """The simulation of section 6.1 of nemeth-2021."""
    rng = np.random.default_rng(2021)
    covariance = np.eye(d)
    for i in range(d):
        for j in range(i):
            covariance[i, j] = covariance[j, i] = rng.uniform(-0.4, 0.4) ** abs(i - j)
    values, vectors = np.linalg.eigh(covariance)
    x = rng.normal(size=(n_rows, d)) @ (vectors * np.sqrt(np.maximum(values, 1e-6))).T
    beta = rng.normal(size=d)
    return x, (rng.random(n_rows) < 1 / (1 + np.exp(-x @ beta))).astype(float)


def posterior_of(d: int, n_rows: int) -> Any:
    x, y = review(d, n_rows)
    return tallmc.models.logistic_regression(x.astype(np.float32), y, prior_variance=10.0)


def measured(
    name: str,
    posterior: Any,
    method: AbstractMethod,
    anchor: tallmc.anchor.Anchor,
    chains: int,
    n_draws: int,
    thin: int = 1,
    reference: Any = None,
) -> Found:
    """Run a method, and compare it with the reference if there is one."""
    found = tallmc.sample(
        posterior,
        method,
        anchor=anchor,
        chains=chains,
        n_draws=n_draws,
        thin=thin,
        burn_in=max(20, n_draws * thin // 10),
        progress=False,
    )
    return _found(
        name, found, n_draws * thin / (n_draws * thin + max(20, n_draws * thin // 10)), reference
    )


def _found(name: str, draws: Any, kept: float, reference: Any) -> Found:
    positions = np.asarray(draws.positions, np.float64)
    effective = float(np.min(ess(positions)))
    mean_error = sd_error = None
    if reference is not None:
        flat = positions.reshape(-1, positions.shape[2])
        mean_error = float(np.abs((flat.mean(0) - reference["mean"]) / reference["sd"]).max())
        sd_error = float(np.abs(flat.std(0) / reference["sd"] - 1).max())
    accepted = draws.sample_stats.get("acceptance_rate", np.full(1, np.nan))
    return Found(
        name,
        kept * draws.n_row_evals_sampling / effective,
        kept * draws.timing.sampling / effective,
        effective,
        float(np.mean(accepted)),
        mean_error,
        sd_error,
    )


def against_others(d: int, n_rows: int, reference: Any, slow: bool) -> list[Found]:
    """All methods on one problem. `slow` includes those that read all rows in a step."""
    posterior = posterior_of(d, n_rows)
    anchor = tallmc.anchor.find_anchor(posterior)

    def run(name: str, method: AbstractMethod, chains: int, n_draws: int, thin: int = 1) -> Found:
        return measured(name, posterior, method, anchor, chains, n_draws, thin, reference)

    few = 100 if d <= 20 else 40
    found = [
        run(
            "subsampled_mh, order 2",
            tallmc.methods.subsampled_mh(order=2),
            MANY if d <= 50 else 32,
            few,
        ),
        run("subsampled_mh, order 3", tallmc.methods.subsampled_mh(order=3), MANY, 4 * few),
        run("order 3, caps 0.1", tallmc.methods.subsampled_mh(order=3, caps=0.1), MANY, 4 * few),
        run("smh", tallmc.methods.smh(), MANY if d <= 50 else 32, few),
    ]
    if d <= 20:
        found += [
            run("zig_zag, order 2", tallmc.contrib.zig_zag.zig_zag(2.0), MANY, few),
            run("tuna_mh, order 0", tallmc.methods.tuna_mh(1e-4, chi=1e-5), 64, few, thin=10),
        ]
    default = tallmc.sample(posterior, anchor=anchor, chains=MANY, n_draws=100, progress=False)
    found.append(_found("default", default, 1.0, reference))
    if slow:
        langevin = tallmc.Method(
            dynamics=tallmc.dynamics.MALA(),
            gradient=tallmc.gradient.Full(),
            subsample=tallmc.subsample.AllRows(),
            geometry=tallmc.geometry.Dense(),
            step_size=2.0 / d ** (1 / 3),
        )
        found.append(run("mala, all rows", langevin, 4, 150))
        firefly = tallmc.methods.firefly.FlyMC(
            step_size=0.5 / d ** (1 / 3), geometry=tallmc.geometry.Dense()
        )
        found.append(run("flymc", firefly, 4, 200))
        began = time.perf_counter()
        nuts = tallmc.reference.nuts(posterior, chains=2, n_draws=150, warmup=100, anchor=anchor)
        seconds = time.perf_counter() - began
        of_nuts = _found("nuts, all rows", nuts, 1.0, reference)
        found.append(of_nuts._replace(seconds=seconds / of_nuts.effective))
    return found


def bounds(x: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Expected rows of an independent proposal, by bound: Σc · E M."""
    posterior = tallmc.models.logistic_regression(x.astype(np.float32), y, prior_variance=10.0)
    anchor = tallmc.anchor.find_anchor(posterior)
    d = posterior.dim
    u, v = np.random.default_rng(0).normal(size=(2, 4000, d))
    norm_u, norm_v = np.linalg.norm(u, axis=1), np.linalg.norm(v, axis=1)
    move = v - u
    length = np.linalg.norm(move, axis=1)
    path = length / 2 * (norm_u**2 + np.sum(u * move, axis=1) + length**2 / 3)
    ends = (norm_u**3 + norm_v**3) / 6
    w = np.asarray(posterior.data.x, np.float64) @ np.asarray(anchor.factor, np.float64)
    sizes = np.linalg.norm(w, axis=1)
    everywhere = np.sqrt(3) / 18 * sizes**3
    local = bound_rows(posterior, anchor, 2).constants
    found = {
        "norm bound, path": everywhere.sum() * path.mean(),
        "norm bound, ends": everywhere.sum() * ends.mean(),
        "local supremum, ends": local.sum() * ends.mean(),
    }
    # A sweep over blocks of 5 directions: each moves its own block, from anywhere.
    blocks = [slice(k, k + 5) for k in range(0, d, 5)]
    sweep = 0.0
    for block in blocks:
        own = np.linalg.norm(w[:, block], axis=1)
        step = np.linalg.norm(move[:, block], axis=1)
        sweep += (np.sqrt(3) / 18 * own * sizes**2).sum() * (step * norm_u**2 / 2).mean()
    found["blocks of 5, a sweep"] = sweep
    # What a bound that knew every direction would need: Σ|R(u')| + |R(u)| ≤ F/6 (|wᵀu|³ + |wᵀu'|³).
    sample = np.random.default_rng(1).integers(len(w), size=min(len(w), 20_000))
    along = np.abs(w[sample] @ u[:50].T) ** 3
    found["all directions known (no method)"] = (
        np.sqrt(3) / 18 / 6 * 2 * along.sum(axis=0).mean() * len(w) / len(sample)
    )
    if d <= 100:
        cubic = bound_rows(posterior, anchor, 3).constants
        found["order 3, local, ends"] = cubic.sum() * ((norm_u**4 + norm_v**4) / 24).mean()
    return found


def adult_like(n_rows: int = 100_000) -> tuple[np.ndarray, np.ndarray]:
    """Five numbers and the dummies of four categories, some of them rare; 41 columns."""
    rng = np.random.default_rng(7)
    numbers = rng.normal(size=(n_rows, 5))
    dummies = []
    for levels in (8, 7, 14, 7):
        shares = rng.dirichlet(np.full(levels + 1, 0.8))
        shares = np.maximum(shares, 0.003)
        codes = rng.choice(levels + 1, size=n_rows, p=shares / shares.sum())
        dummies.append(np.eye(levels + 1)[codes][:, 1:])
    x = np.column_stack([np.ones(n_rows), numbers, *dummies])
    beta = rng.normal(size=x.shape[1]) * 0.5
    return x, (rng.random(n_rows) < 1 / (1 + np.exp(-x @ beta + 1))).astype(float)


def covertype(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """The rows of the reference posterior."""
    stored = np.load(path)
    x, y = stored["X"].astype(float), stored["y"]
    low, middle, high = np.percentile(x[:, :10], [25, 50, 75], axis=0)
    x[:, :10] = (x[:, :10] - middle) / (high - low)
    rows = np.random.default_rng(0).permutation(len(x))[:435_759]
    is_class = y if set(np.unique(y)) == {0, 1} else y == 2
    return np.column_stack([np.ones(len(rows)), x[rows]]), is_class[rows].astype(float)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--references", type=Path, default=Path("../shared/reference"))
    parser.add_argument("--covertype", type=Path, default=Path("../shared/data/covertype.npz"))
    parser.add_argument("--output", type=Path, default=Path(".bench/exact.json"))
    parser.add_argument("--parts", default="bounds,reference,grid")
    options = parser.parse_args()
    options.output.parent.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {}

    def keep(name: str, value: Any) -> None:
        results[name] = value
        print(name, value, flush=True)
        options.output.write_text(json.dumps(results))

    if "bounds" in options.parts:
        problems = {"review50": review(50, 100_000), "review100": review(100, 100_000)}
        problems["adult-like"] = adult_like()
        if options.covertype.exists():
            problems["covertype"] = covertype(options.covertype)
        for name, problem in problems.items():
            keep(f"bounds {name}", bounds(*problem))
    if "reference" in options.parts:
        for d in (10, 50, 100):
            path = options.references / f"review{d}.npz"
            reference = np.load(path) if path.exists() else None
            keep(f"review{d}", against_others(d, 100_000, reference, slow=d <= 50))
    if "grid" in options.parts:
        for d, n_rows in (
            (2, 10**4),
            (2, 10**6),
            (10, 10**4),
            (10, 10**6),
            (20, 10**4),
            (20, 10**5),
            (20, 10**6),
            (10, 10**7),
        ):
            posterior = posterior_of(d, n_rows)
            anchor = tallmc.anchor.find_anchor(posterior)
            for order in (2, 3):
                method = tallmc.methods.subsampled_mh(order=order)
                found = measured(f"order {order}", posterior, method, anchor, MANY, 100)
                keep(f"d = {d}, N = {n_rows:.0e}, order {order}", found)


if __name__ == "__main__":
    main()
