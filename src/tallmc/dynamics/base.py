"""Dynamics turn a gradient estimate and fresh noise into the next state.

The step-size convention is everywhere that of θ' = θ − (ε/2) ∇f̂ + √ε η (putcha-2023, eq. 4).
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from .._anchor import Anchor, Needs
from .._posterior import AbstractPosterior
from ..subsample.selection import Estimate

Evaluate = Callable[[Float[Array, " d"]], Estimate]


class AbstractDynamicsState(eqx.Module):
    position: eqx.AbstractVar[Float[Array, " d"]]


class AbstractDynamics(eqx.Module):
    """`step` calls `evaluate` once; everything random comes in through `noise`, drawn for many steps at a time."""

    evaluates_at_start: ClassVar[bool]

    @abc.abstractmethod
    def init(self, position: Float[Array, " d"], evaluate: Evaluate) -> Any:
        """The state before the first step."""

    @abc.abstractmethod
    def noise(self, key: PRNGKeyArray, steps: int, like: Float[Array, " d"]) -> PyTree[Array]:
        """The noise of `steps` steps; the leading axis is the step."""

    @abc.abstractmethod
    def step(
        self, state: Any, evaluate: Evaluate, step_size: Float[Array, ""], noise: PyTree[Array]
    ) -> tuple[Any, Estimate, dict[str, Array]]:
        """The next state, the estimate it used, and statistics worth keeping."""


class DynamicsChoice(abc.ABC):
    """What a method asks for; `prepare` makes it ready for one posterior."""

    needs: ClassVar[Needs]
    exact_only: ClassVar[bool]
    """Whether it is right with exact gradients only."""

    @abc.abstractmethod
    def prepare(self, posterior: AbstractPosterior, anchor: Anchor | None) -> AbstractDynamics:
        """The dynamics for this posterior."""
