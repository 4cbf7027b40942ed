"""One sampler of the race, in a process of its own: `python -m benchmarks.racers NAME GOAL LIMIT`.

Prints one JSON object per line: the seconds since the posterior was made, and the effective draws
of the worst parameter so far. Loading the packages and the data is not counted, and neither is the
computation of these effective draws. Everything else is: preparation, compilation, warm-up. The
process ends at GOAL effective draws or after LIMIT seconds.

The peers get the same anchor as tallmc, at the same cost: they sample in coordinates whitened by
it. Needs numpyro (the extra `bench`).
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import tallmc
from tallmc._core.statistics import ess

from . import problems, report

WARMUP = 300
DRAWS_PER_CALL = {"cpu": (1, 50), "gpu": (64, 10)}
"""Chains of NUTS, and draws per chain and call."""
ECS_ROWS = 1000
SGLD_DRAWS = 100  # per chain and call
_GROWTH = 1.3  # effective draws are computed again when there are so many times more draws

Positions = Iterator[np.ndarray]
"""All draws so far, of shape (chains, draws, d)."""


def automatic(posterior: tallmc.models.AbstractPosterior, goal: float, limit: float) -> Positions:
    yield tallmc.sample(posterior, ess=goal, max_seconds=limit, progress=False).positions


def sgld_cv_ps(posterior: tallmc.models.AbstractPosterior, goal: float, limit: float) -> Positions:
    """Every call of `sample` continues where the chains were: the state is the position."""
    suggested = tallmc.suggest(posterior, "sgld_cv_ps")
    blocks: list[np.ndarray] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tallmc.SamplingWarning)  # a block alone is short
        while True:
            block = tallmc.sample(
                posterior,
                suggested.method,
                n_draws=SGLD_DRAWS,
                thin=suggested.thin,
                burn_in=0 if blocks else SGLD_DRAWS * suggested.thin // 10,
                start=blocks[-1][:, -1] if blocks else None,
                seed=len(blocks),
                anchor=suggested.anchor,
                progress=False,
            )
            blocks.append(np.asarray(block.positions))
            yield np.concatenate(blocks, axis=1)


def nuts(posterior: tallmc.models.AbstractPosterior, goal: float, limit: float) -> Positions:
    """NumPyro's NUTS on all rows. On a GPU, 64 chains run together."""
    from numpyro.infer import NUTS

    class Whitened(eqx.Module):
        posterior: Any
        transposed: Any
        anchor: Any

        def __call__(self, u: jax.Array) -> jax.Array:
            position = self.anchor.position + self.anchor.factor @ u
            model, y = self.posterior.model, self.posterior.data.y
            potentials = model.likelihood.potential(position @ self.transposed, y)
            return jnp.sum(potentials) + model.prior_potential(position) - self.anchor.potential

    anchor = tallmc.anchor.find_anchor(posterior)
    transposed = jnp.asarray(posterior.data.x.T)  # XLA is several times faster on a transposed copy
    kernel = NUTS(potential_fn=Whitened(posterior, transposed, anchor), dense_mass=False)
    chains, draws = DRAWS_PER_CALL[jax.default_backend()]
    start = jnp.zeros((chains, posterior.dim) if chains > 1 else posterior.dim)
    yield from _numpyro(kernel, (), start, chains, draws)


def hmcecs(posterior: tallmc.models.AbstractPosterior, goal: float, limit: float) -> Positions:
    """NumPyro's HMCECS with Taylor control variates at the mode, one chain.

    A subsample has `ECS_ROWS` rows, a tenth of which are renewed at a time.
    """
    import numpyro
    from numpyro import distributions as dist
    from numpyro.infer import HMCECS, NUTS

    anchor = tallmc.anchor.find_anchor(posterior)

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
    rows = posterior.data
    yield from _numpyro(kernel, (rows.x, rows.y), mode, 1, 250)


def _numpyro(
    kernel: Any, arguments: tuple[Any, ...], start: Any, chains: int, n_draws: int
) -> Positions:
    from numpyro.infer import MCMC

    chain = MCMC(
        kernel,
        num_warmup=WARMUP,
        num_samples=n_draws,
        num_chains=chains,
        chain_method="vectorized" if chains > 1 else "sequential",
        progress_bar=False,
    )
    chain.warmup(jax.random.key(0), *arguments, init_params=start)
    if getattr(kernel, "_sample_fn", None) is None:
        kernel._sample_fn = kernel.sample  # otherwise `run` initialises HMCECS again, which fails
    blocks = []
    while True:
        chain.post_warmup_state = chain.last_state
        chain.run(chain.last_state.rng_key, *arguments)
        samples = chain.get_samples(group_by_chain=True)
        blocks.append(np.asarray(samples["whitened"] if isinstance(samples, dict) else samples))
        yield np.concatenate(blocks, axis=1)


RACERS: dict[str, Callable[[tallmc.models.AbstractPosterior, float, float], Positions]] = {
    "tallmc": automatic,
    "NUTS": nuts,
    "HMCECS": hmcecs,
    "SGLD-CV-PS": sgld_cv_ps,
}


def race(name: str, goal: float, limit: float) -> None:
    if name in ("NUTS", "HMCECS"):
        import numpyro  # noqa: F401  (loading packages is not counted)
    posterior = problems.covertype()
    jax.block_until_ready(posterior.data)
    began, not_counted, judged = time.perf_counter(), 0.0, 0
    for positions in RACERS[name](posterior, goal, limit):
        now = time.perf_counter()
        seconds, late = now - began - not_counted, now - began - not_counted > limit
        if positions.shape[1] >= 4 and (late or positions.size >= _GROWTH * judged):
            judged = positions.size
            reached = float(ess(positions).min())
            not_counted += time.perf_counter() - now
            print(json.dumps({"seconds": round(seconds, 2), "ess": round(reached, 1)}), flush=True)
            if reached >= goal:
                return
        if late:
            return


if __name__ == "__main__":
    if sys.argv[1] == "facts":
        print(json.dumps({**report.facts(), "platform": jax.default_backend()}))
    else:
        race(sys.argv[1], float(sys.argv[2]), float(sys.argv[3]))
