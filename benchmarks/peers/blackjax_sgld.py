"""SGLD of BlackJAX in two forms.

The documented form is a Python loop over compiled steps. The other one is written by hand with
`lax.scan`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import blackjax
import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax

import tallmc


def _sgld(n_rows: int) -> Any:
    def log_prior(theta: Any) -> Any:
        return -0.5 * jnp.sum(theta**2) / 10.0

    def log_likelihood(theta: Any, row: Any) -> Any:
        z = row.x @ theta
        return row.y * z - jnp.logaddexp(0.0, z)

    return blackjax.sgld(
        blackjax.sgmcmc.gradients.grad_estimator(log_prior, log_likelihood, n_rows)
    )


def in_a_scan(
    posterior: tallmc.models.AbstractPosterior, size: int, steps: int, step_size: float
) -> Callable[[], Any]:
    def run(data: Any, start: Any, key: Any) -> Any:
        sgld = _sgld(posterior.n_rows)

        def step(theta: Any, key: Any) -> Any:
            index_key, step_key = jax.random.split(key)
            indices = jax.random.randint(index_key, (size,), 0, posterior.n_rows)
            batch = jax.tree.map(lambda column: column[indices], data)
            theta = sgld.step(step_key, theta, batch, step_size / 2)
            return theta, theta

        return lax.scan(step, start, jax.random.split(key, steps))[1]

    compiled = eqx.filter_jit(run)
    return lambda: compiled(posterior.data, posterior.init, jax.random.key(0))


def as_documented(
    posterior: tallmc.models.AbstractPosterior, size: int, steps: int, step_size: float
) -> Callable[[], Any]:
    compiled = jax.jit(_sgld(posterior.n_rows).step)

    def take_steps() -> Any:
        theta, key = posterior.init, jax.random.key(0)
        for _ in range(steps):
            key, index_key, step_key = jax.random.split(key, 3)
            indices = jax.random.randint(index_key, (size,), 0, posterior.n_rows)
            batch = jax.tree.map(operator.itemgetter(indices), posterior.data)
            theta = compiled(step_key, theta, batch, step_size / 2)
        return theta

    return take_steps
