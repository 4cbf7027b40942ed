"""The default method against NumPyro's NUTS and HMCECS on covertype.

Each sampler runs until every parameter has 1,000 effective draws. Times include everything. The
peers are whitened with the same anchor. Needs numpyro (the extra `bench`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import tallmc
from tallmc.diagnose import ess

from . import problems
from .report import print_table

EFFECTIVE = 1000
WARMUP, BLOCK = 300, 250
ECS_ROWS = 1000
MOST_SECONDS = 120.0  # of sampling


def main() -> None:
    """Seconds in total to 1,000 effective draws; effective draws per second of sampling alone."""
    posterior = problems.covertype()
    began = time.perf_counter()
    draws = tallmc.sample(posterior, ess=EFFECTIVE, seed=0)
    ours = time.perf_counter() - began
    reached = float(ess(draws.positions).min())
    longer = tallmc.sample(
        posterior, draws.settings["method"], chains=8, draws=20_000, burn_in=100, seed=1
    )
    rate = float(ess(longer.positions).min()) / longer.timing.sampling
    rows: list[tuple[Any, ...]] = [
        ("sample(posterior)", f"{ours:.1f}", f"{rate:,.0f}", f"{reached:,.0f}", "", "")
    ]
    for name, peer in {"NumPyro NUTS, whitened": nuts, "NumPyro HMCECS, whitened": hmcecs}.items():
        run = run_of(peer, posterior)
        ratios = (
            f"{run.seconds / ours:.1f}" if run.reached >= EFFECTIVE else "–",
            f"{rate / run.rate:,.0f}",
        )
        rows.append(
            (name, f"{run.seconds:.1f}", f"{run.rate:,.1f}", f"{run.reached:,.0f}", *ratios)
        )
    columns = (
        "sampler",
        "seconds in all",
        "effective draws a second",
        "reached",
        "ours sooner (≥ 5)",
        "ours faster (≥ 300)",
    )
    print_table("Covertype: 1,000 effective draws of every parameter", columns, rows)


class Run(NamedTuple):
    """The result of one peer."""

    seconds: float
    """In total, with anchor, compilation and warm-up."""
    rate: float
    """Effective draws per second of sampling, after warm-up."""
    reached: float
    """Effective draws at the end."""


Peer = Callable[[tallmc.AbstractPosterior, tallmc.Anchor], tuple[Any, tuple[Any, ...], Any]]
"""Returns a kernel, the arguments of its model, and its starting point."""


def run_of(peer: Peer, posterior: tallmc.AbstractPosterior) -> Run:
    """Run NumPyro until there are enough effective draws or `MOST_SECONDS` have passed."""
    from numpyro.infer import MCMC

    began = time.perf_counter()
    kernel, arguments, start = peer(posterior, tallmc.laplace(posterior))
    chain = MCMC(kernel, num_warmup=WARMUP, num_samples=BLOCK, num_chains=1, progress_bar=False)
    chain.warmup(jax.random.key(0), *arguments, init_params=start)
    positions, sampling, reached = np.zeros((1, 0, posterior.dim)), 0.0, 0.0
    while reached < EFFECTIVE and sampling < MOST_SECONDS:
        block_began = time.perf_counter()
        chain.post_warmup_state = chain.last_state
        chain.run(chain.last_state.rng_key, *arguments)
        samples = chain.get_samples(group_by_chain=True)
        block = np.asarray(samples["whitened"] if isinstance(samples, dict) else samples)
        sampling += time.perf_counter() - block_began
        positions = np.concatenate([positions, block], axis=1)
        reached = float(ess(positions).min())
    return Run(time.perf_counter() - began, reached / sampling, reached)


def nuts(
    posterior: tallmc.AbstractPosterior, anchor: tallmc.Anchor
) -> tuple[Any, tuple[Any, ...], Any]:
    from numpyro.infer import NUTS

    class Whitened(eqx.Module):
        posterior: Any
        transposed: Any
        anchor: Any

        def __call__(self, u: jax.Array) -> jax.Array:
            position = self.anchor.position + self.anchor.factor @ u
            model, y = self.posterior.model, self.posterior.data.y
            potentials = model.family.potential(position @ self.transposed, y)
            return jnp.sum(potentials) + model.prior_potential(position) - self.anchor.potential

    transposed = jnp.asarray(posterior.data.x.T)  # XLA is several times faster on a transposed copy
    kernel = NUTS(potential_fn=Whitened(posterior, transposed, anchor), dense_mass=False)
    return kernel, (), jnp.zeros(posterior.dim)


def hmcecs(
    posterior: tallmc.AbstractPosterior, anchor: tallmc.Anchor
) -> tuple[Any, tuple[Any, ...], Any]:
    """HMCECS with Taylor control variates at the mode.

    A subsample has `ECS_ROWS` rows, a tenth of which are renewed at a time.
    """
    import numpyro
    from numpyro import distributions as dist
    from numpyro.infer import HMCECS, NUTS

    def model(x: jax.Array, y: jax.Array) -> None:
        whitened = numpyro.sample(
            "whitened", dist.ImproperUniform(dist.constraints.real_vector, (), (posterior.dim,))
        )
        beta = anchor.position + anchor.factor @ whitened
        numpyro.factor("prior", -posterior.model.prior_potential(beta))
        with numpyro.plate("rows", posterior.n_rows, subsample_size=ECS_ROWS):
            logits = numpyro.subsample(x, event_dim=1) @ beta
            numpyro.sample(
                "y", dist.Bernoulli(logits=logits), obs=numpyro.subsample(y, event_dim=0)
            )

    mode = {"whitened": jnp.zeros(posterior.dim)}
    kernel = HMCECS(NUTS(model, dense_mass=False), num_blocks=10, proxy=HMCECS.taylor_proxy(mode))
    return kernel, tuple(posterior.data), mode
