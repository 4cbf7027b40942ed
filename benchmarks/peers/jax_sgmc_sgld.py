"""jax-sgmc, by its alias for SGLD. The host sends minibatches, 512 at a time."""

import jax.numpy as jnp
from jax_sgmc import alias, potential
from jax_sgmc.data.numpy_loader import NumpyDataLoader


def make(x, y, size, steps, step_size):
    def log_likelihood(theta, row):
        z = row["x"] @ theta["beta"]
        return row["y"] * z - jnp.logaddexp(0.0, z)

    def log_prior(theta):
        return -0.5 * jnp.sum(theta["beta"] ** 2) / 10.0

    run = alias.sgld(
        potential.minibatch_potential(log_prior, log_likelihood, strategy="vmap"),
        NumpyDataLoader(x=x, y=y),
        batch_size=size,
        first_step_size=step_size,
        last_step_size=step_size / 2,
        accepted_samples=steps,
        save_to_numpy=False,
        progress_bar=False,
    )
    start = {"beta": jnp.zeros(x.shape[1])}
    return lambda: run(start, iterations=steps)
