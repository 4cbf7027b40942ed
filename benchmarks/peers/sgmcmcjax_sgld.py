"""SGMCMCJax, as in its documentation."""

import jax
import jax.numpy as jnp
from sgmcmcjax.samplers import build_sgld_sampler


def make(x, y, size, steps, step_size):
    def log_likelihood(theta, row, response):
        z = row @ theta
        return response * z - jnp.logaddexp(0.0, z)

    def log_prior(theta):
        return -0.5 * jnp.sum(theta**2) / 10.0

    data = jnp.asarray(x), jnp.asarray(y)
    sampler = jax.jit(
        build_sgld_sampler(step_size, log_likelihood, log_prior, data, size, pbar=False),
        static_argnums=1,
    )
    start, key = jnp.zeros(x.shape[1]), jax.random.PRNGKey(0)
    return lambda: jax.block_until_ready(sampler(key, steps, start))
