"""Variational inference as a baseline: NumPyro's AutoNormal guide on all rows.

The guide is a product of normal densities. Adam maximises the evidence lower bound, with one draw
from the guide per step and a step size that decreases from 0.05 to 0.0005. This is the method of
Stan's ADVI with another schedule of the step size.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from tallmc._core.packages import check_installed
from tallmc._core.random import new_key

_FIRST_STEP_SIZE, _DECREASE = 0.05, 0.01


class VariationalDraws(NamedTuple):
    """Draws from the fitted guide, and the seconds to fit it."""

    positions: Float[np.ndarray, "1 draws d"]
    seconds: float
    compilation: float


def advi_draws(
    rows: Float[np.ndarray, "N d"],
    responses: Float[np.ndarray, " N"],
    prior_variance: float,
    *,
    steps: int,
    n_draws: int,
    seed: int = 0,
) -> VariationalDraws:
    """Fit a logistic regression by variational inference."""
    check_installed("numpyro", needed_by="the baseline ADVI")
    import numpyro
    from numpyro import distributions
    from numpyro.infer import SVI, Trace_ELBO
    from numpyro.infer.autoguide import AutoNormal

    prior = distributions.Normal(0, prior_variance**0.5).expand([rows.shape[1]]).to_event(1)

    def model(rows: Array, responses: Array) -> None:
        theta = numpyro.sample("theta", prior)
        numpyro.sample("y", distributions.Bernoulli(logits=rows @ theta), obs=responses)

    guide = AutoNormal(model, init_scale=0.01)

    def step_size(step: Array) -> Array:
        return _FIRST_STEP_SIZE * _DECREASE ** (step / steps)

    svi = SVI(model, guide, numpyro.optim.Adam(step_size), Trace_ELBO())
    fit_key, draw_key = jax.random.split(new_key(seed))
    data = jnp.asarray(rows), jnp.asarray(responses)
    state = svi.init(fit_key, *data)

    def fit(state: Any, data: tuple[Array, Array]) -> Any:
        return jax.lax.fori_loop(0, steps, lambda _, state: svi.update(state, *data)[0], state)

    began = time.perf_counter()
    compiled = jax.jit(fit).lower(state, data).compile()
    compilation = time.perf_counter() - began
    state = jax.block_until_ready(compiled(state, data))
    seconds = time.perf_counter() - began - compilation
    found = guide.sample_posterior(draw_key, svi.get_params(state), sample_shape=(n_draws,))
    return VariationalDraws(np.asarray(found["theta"])[None], seconds, compilation)
