"""The exact plan of the default method against NUTS, with few rows.

Simulated logistic regressions with N = 5,000 rows. Every sampler runs in a process of its own. The
default runs until each parameter has 1,000 effective draws, NUTS makes 1,000 draws. Times include
everything: mode, compilation, tuning and sampling. NUTS is NumPyro's with its own warm-up, or
BlackJAX's (`tallmc.reference.nuts`) if NumPyro is not installed (the extra `bench`).
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
from typing import NamedTuple

import numpy as np

import tallmc
from tallmc.diagnose import ess

from .report import print_table

N_ROWS, DIMS = 5_000, (10, 100, 500)
EFFECTIVE = 1000
WARMUP, DRAWS = 500, 1000  # of NUTS


class Result(NamedTuple):
    """Seconds in total, and the effective draws of the worst parameter."""

    seconds: float
    reached: float


def main() -> None:
    """Seconds to 1,000 effective draws; the ratio to the time of NUTS."""
    rows = []
    for dim in DIMS:
        ours, peer = (_in_new_process(sampler, dim) for sampler in ("default", "nuts"))
        rows.append(
            (
                dim,
                f"{ours.seconds:.1f}",
                f"{ours.reached:,.0f}",
                f"{peer.seconds:.1f}",
                f"{peer.reached:,.0f}",
                f"{ours.seconds / peer.seconds:.2f}",
            )
        )
    columns = ("d", "sample, s", "reached", "NUTS, s", "reached", "time of NUTS (≤ 1)")
    print_table(f"Few rows, N = {N_ROWS:,}: 1,000 effective draws", columns, rows)


def _in_new_process(sampler: str, dim: int) -> Result:
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.small_data", sampler, str(dim)]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    return Result(*json.loads(found.stdout.splitlines()[-1]))


def _problem(dim: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N_ROWS, dim)).astype(np.float32)
    y = rng.random(N_ROWS) < 1 / (1 + np.exp(-x @ rng.normal(size=dim) / np.sqrt(dim)))
    return x, y.astype(np.float32)


def _run(sampler: str, dim: int) -> Result:
    x, y = _problem(dim)
    began = time.perf_counter()
    if sampler == "nuts" and importlib.util.find_spec("numpyro") is not None:
        positions = _numpyro(x, y)
    else:
        posterior = tallmc.models.logistic_regression(x, y, prior_variance=1.0)
        if sampler == "nuts":
            anchor = tallmc.anchor.find_anchor(posterior)
            positions = tallmc.reference.nuts(
                posterior, chains=1, n_draws=DRAWS, warmup=WARMUP, anchor=anchor
            ).positions
        else:
            positions = tallmc.sample(posterior, ess=EFFECTIVE, seed=0).positions
    seconds = time.perf_counter() - began
    return Result(seconds, float(ess(positions).min()))


def _numpyro(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    import jax
    import numpyro
    from numpyro import distributions as dist
    from numpyro.infer import MCMC, NUTS

    def model(x: jax.Array, y: jax.Array) -> None:
        beta = numpyro.sample("beta", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
        numpyro.sample("y", dist.Bernoulli(logits=x @ beta), obs=y)

    chain = MCMC(
        NUTS(model), num_warmup=WARMUP, num_samples=DRAWS, num_chains=1, progress_bar=False
    )
    chain.run(jax.random.key(0), jax.numpy.asarray(x), jax.numpy.asarray(y))
    return np.asarray(chain.get_samples(group_by_chain=True)["beta"])


if __name__ == "__main__":
    print(json.dumps(_run(sys.argv[1], int(sys.argv[2]))))
