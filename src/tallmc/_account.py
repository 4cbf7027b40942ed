"""What an automatic choice says of itself: what was chosen and why, and what is known of its error."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float


@dataclasses.dataclass(frozen=True)
class Budget:
    """How wrong the draws may be, in their worst parameter."""

    inflation: float = 0.01
    """Of a variance, by gradient noise."""
    mean_bias: float = 0.04
    """In posterior standard deviations, by the step size and gradient noise together."""
    sd_bias: float = 0.02
    """Relative, by the step size and gradient noise together."""


class Bias(NamedTuple):
    """A bias by parameter, in posterior standard deviations, and the standard errors with which it is known."""

    mean: Float[np.ndarray, " d"]
    mean_error: Float[np.ndarray, " d"]
    sd: Float[np.ndarray, " d"]
    """Relative."""
    sd_error: Float[np.ndarray, " d"]


@dataclasses.dataclass(frozen=True)
class Account:
    method: Any
    """The composition that was run."""
    budget: Budget
    reasons: tuple[str, ...]
    """What was chosen, and why."""
    doubts: tuple[str, ...] = ()
    """Why the draws should not be trusted, where that is known beforehand."""
    bias: Bias | None = None
    """As measured in pilot runs; None where there is none, or where it is not known."""
    exact: bool = False
    """Whether the method leaves the posterior invariant, so that Monte-Carlo error is all there is."""
    inflation: Float[np.ndarray, " d"] | None = None
    """Of the variances by gradient noise, as measured along the run."""
