"""Proposals in the coordinates u, in which the posterior is close to N(0, I).

    pCN          u' = √(1 − h) u + √h ξ           reversible for N(0, I); h = 1 is independent of u
    Langevin     u' = u − (h/2) ∇Ŝ(u) + √h ξ      Ŝ is the surrogate, so no rows are read
    random walk  u' = u + √h ξ

`log_ratio` is log q(u | u')/q(u' | u) relative to N(0, I): the target's ratio then needs only the
excess over ½‖u‖².
"""

from __future__ import annotations

import abc

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ...core.errors import InvalidInput, check_number
from ...schedule import AbstractSchedule, as_schedule
from .surrogate import Surrogate


class AbstractProposal(eqx.Module):
    """A Gaussian proposal."""

    @abc.abstractmethod
    def propose(
        self,
        surrogate: Surrogate,
        u: Float[Array, " d"],
        step: Float[Array, ""],
        normal: Float[Array, " d"],
    ) -> Float[Array, " d"]:
        """u'."""

    @abc.abstractmethod
    def log_ratio(
        self,
        surrogate: Surrogate,
        here: Float[Array, " d"],
        there: Float[Array, " d"],
        step: Float[Array, ""],
    ) -> Float[Array, ""]:
        """log q(u | u') − log q(u' | u) − ½‖u'‖² + ½‖u‖²."""


class PreconditionedCrankNicolson(AbstractProposal):
    """pCN."""

    def propose(
        self,
        surrogate: Surrogate,
        u: Float[Array, " d"],
        step: Float[Array, ""],
        normal: Float[Array, " d"],
    ) -> Float[Array, " d"]:
        return jnp.sqrt(jnp.maximum(1 - step, 0)) * u + jnp.sqrt(step) * normal

    def log_ratio(
        self,
        surrogate: Surrogate,
        here: Float[Array, " d"],
        there: Float[Array, " d"],
        step: Float[Array, ""],
    ) -> Float[Array, ""]:
        return jnp.zeros_like(step)


class SurrogateLangevin(AbstractProposal):
    """Langevin dynamics of the surrogate."""

    def propose(
        self,
        surrogate: Surrogate,
        u: Float[Array, " d"],
        step: Float[Array, ""],
        normal: Float[Array, " d"],
    ) -> Float[Array, " d"]:
        return u - step / 2 * surrogate.gradient(u) + jnp.sqrt(step) * normal

    def log_ratio(
        self,
        surrogate: Surrogate,
        here: Float[Array, " d"],
        there: Float[Array, " d"],
        step: Float[Array, ""],
    ) -> Float[Array, ""]:
        # ‖δ + hg/2‖²/2h − ‖δ − hg'/2‖²/2h with δ = u' − u, without its large terms, which cancel.
        move = there - here
        g, g_there = surrogate.gradient(here), surrogate.gradient(there)
        proposals = jnp.sum(move * (g + g_there)) / 2 + step / 8 * (
            jnp.sum(g**2) - jnp.sum(g_there**2)
        )
        return proposals - jnp.sum(move * (here + there)) / 2


class RandomWalkProposal(AbstractProposal):
    """A random walk."""

    def propose(
        self,
        surrogate: Surrogate,
        u: Float[Array, " d"],
        step: Float[Array, ""],
        normal: Float[Array, " d"],
    ) -> Float[Array, " d"]:
        return u + jnp.sqrt(step) * normal

    def log_ratio(
        self,
        surrogate: Surrogate,
        here: Float[Array, " d"],
        there: Float[Array, " d"],
        step: Float[Array, ""],
    ) -> Float[Array, ""]:
        return -jnp.sum((there - here) * (here + there)) / 2


PROPOSALS: dict[str, AbstractProposal] = {
    "pcn": PreconditionedCrankNicolson(),
    "langevin": SurrogateLangevin(),
    "random-walk": RandomWalkProposal(),
}


def check_proposal(name: str, step_size: float | AbstractSchedule) -> None:
    """Raise if there is no such proposal, or the step size is out of its range."""
    as_schedule(step_size)
    if name not in PROPOSALS:
        raise InvalidInput("proposal", f"be one of {', '.join(map(repr, PROPOSALS))}", name)
    if name == "pcn" and isinstance(step_size, int | float):
        check_number("step_size", step_size, 0, 1, low_open=True)
