"""The default on real posteriors: is it right, is it honest about its error, and what does it cost against NUTS?

References: full-data NUTS in `shared/reference`. The race is on covertype, everything included: NumPyro's NUTS, whitened by the
same anchor, against `sample(posterior)`, both until every parameter has 1,000 effective draws. Needs numpyro (the extra `bench`).
"""

from __future__ import annotations

import time
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import tallmc
from tallmc.diagnose import ess

from . import problems
from .report import print_table

REFERENCES = problems.DATA.parent / "reference"
POSTERIORS = {
    "covertype": problems.covertype,
    "review10": lambda: problems.review(10),
    "review50": lambda: problems.review(50),
    "review100": lambda: problems.review(100),
    "pima": lambda: problems.small("pima"),
    "parkinsons": lambda: problems.small("parkinsons"),
}
SEEDS = (0, 1, 2)
EFFECTIVE, RACE_EFFECTIVE = 4000, 1000
NUTS_WARMUP, NUTS_BLOCK = 300, 250


def main() -> None:
    accuracy()
    race()


def accuracy() -> None:
    """Largest errors over the parameters, real and reported, of one default call for each seed."""
    rows = []
    for name, make in POSTERIORS.items():
        posterior, reference = make(), np.load(REFERENCES / f"{name}.npz")
        for seed in SEEDS:
            draws = tallmc.sample(posterior, ess=EFFECTIVE, seed=seed)
            found, health = draws.positions[draws.ok].astype(float), draws.health
            mean = np.abs(found.mean(axis=(0, 1)) - reference["mean"]) / reference["sd"]
            ratio = found.std(axis=(0, 1)) / reference["sd"]
            passes = draws.n_row_evals / posterior.n_rows
            real = (f"{mean.max():.3f}", f"{ratio.min():.3f}–{ratio.max():.3f}")
            reported = (f"{health.mean_error:.3f}", f"{health.sd_error:.3f}")
            rows.append((name, seed, f"{health.ess:,.0f}", *real, *reported, f"{passes:,.0f}", health.trusted))
    real_columns = ("mean error (≤ 0.1)", "sd ratio (0.95–1.05)")
    columns = ("posterior", "seed", "ESS", *real_columns, "mean, reported", "sd, reported", "passes", "trusted")
    print_table("The default against full-data NUTS", columns, rows)


def race() -> None:
    """1,000 effective draws on covertype: seconds from nothing, and effective draws a second of sampling alone."""
    posterior = problems.covertype()
    began = time.perf_counter()
    draws = tallmc.sample(posterior, ess=RACE_EFFECTIVE, seed=0)
    ours = time.perf_counter() - began
    reached = float(ess(draws.positions).min())
    longer = tallmc.sample(posterior, draws.settings["method"], chains=8, draws=20_000, burn_in=100, seed=1)
    rate = float(ess(longer.positions).min()) / longer.timing.sampling
    nuts, nuts_rate = numpyro_race(posterior)
    rows: list[tuple[Any, ...]] = [
        ("sample(posterior)", f"{ours:.1f}", f"{rate:,.0f}", f"{reached:,.0f}"),
        ("NumPyro NUTS, whitened", f"{nuts:.1f}", f"{nuts_rate:,.1f}", ""),
        ("ratio (targets ≥ 5 and ≥ 300)", f"{nuts / ours:.1f}", f"{rate / nuts_rate:,.0f}", ""),
    ]
    print_table("Covertype", ("sampler", "seconds to 1,000 effective draws", "effective draws a second", "reached"), rows)


def numpyro_race(posterior: tallmc.AbstractPosterior) -> tuple[float, float]:
    """Seconds to the effective draws with anchor, compilation and warm-up; and effective draws a second after these."""
    from numpyro.infer import MCMC, NUTS

    began = time.perf_counter()
    anchor = tallmc.laplace(posterior)
    transposed = jnp.asarray(posterior.data.x.T)  # XLA is several times faster on a transposed copy

    class Whitened(eqx.Module):
        posterior: Any
        transposed: Any
        anchor: Any

        def __call__(self, u: jax.Array) -> jax.Array:
            position = self.anchor.position + self.anchor.factor @ u
            potentials = self.posterior.family.potential(position @ self.transposed, self.posterior.data.y)
            return jnp.sum(potentials) + self.posterior.prior_potential(position) - self.anchor.potential

    kernel = NUTS(potential_fn=Whitened(posterior, transposed, anchor), dense_mass=False)
    chain = MCMC(kernel, num_warmup=NUTS_WARMUP, num_samples=NUTS_BLOCK, num_chains=1, progress_bar=False)
    chain.warmup(jax.random.key(0), init_params=jnp.zeros(posterior.dim))
    positions, sampling = np.zeros((1, 0, posterior.dim)), 0.0
    while positions.shape[1] < 4 or ess(positions).min() < RACE_EFFECTIVE:
        block_began = time.perf_counter()
        chain.post_warmup_state = chain.last_state
        chain.run(chain.last_state.rng_key)
        block = np.asarray(chain.get_samples(group_by_chain=True))
        sampling += time.perf_counter() - block_began
        positions = np.concatenate([positions, block], axis=1)
    return time.perf_counter() - began, float(ess(positions).min()) / sampling
