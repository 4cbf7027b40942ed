"""The likelihood of a row as a function of its linear predictors.

    −log p(y | z) = f(z; y) + c(y),   z = (z₁, …, z_K, s₁, …, s_E)

K predictors come from the columns of a design matrix; E parameters are *shared* by all rows, such
as a dispersion or cut points. `LinearPredictor` turns a likelihood into a model. Families with one
predictor and closed forms are in `families.py`.
"""

from __future__ import annotations

import abc

import equinox as eqx
from jaxtyping import Array, Float, PRNGKeyArray

from .cubic_bound import AbstractCubicBound
from .observations import Observations
from .starts import StartingPoint


class AbstractLikelihood(eqx.Module):
    """The potential of one row, and the distribution of its response."""

    @property
    @abc.abstractmethod
    def n_predictors(self) -> int:
        """K, the number of predictors from columns."""

    @property
    @abc.abstractmethod
    def n_shared(self) -> int:
        """E, the number of shared parameters."""

    @property
    @abc.abstractmethod
    def log_concave(self) -> bool:
        """Whether f is convex in z."""

    @abc.abstractmethod
    def row_potential(self, z: Float[Array, " k"], y: Float[Array, ""]) -> Float[Array, ""]:
        """f(z; y) of one row."""

    @abc.abstractmethod
    def largest_curvature(self) -> float | None:
        """The supremum over z and y of the largest eigenvalue of ∂²f/∂z²; None if infinite."""

    @property
    @abc.abstractmethod
    def cubic_bound(self) -> AbstractCubicBound | None:
        """A bound on the third derivatives; None if none is known."""

    @abc.abstractmethod
    def starting_point(self, rows: Observations) -> StartingPoint | None:
        """Where the search for the mode starts, from some rows on the host; None for zero."""

    @abc.abstractmethod
    def constant(self, y: Float[Array, " n"]) -> Float[Array, " n"]:
        """c(y)."""

    @abc.abstractmethod
    def mean(self, z: Float[Array, "n k"]) -> Float[Array, "n ..."]:
        """E y; for classes, the probability of each class."""

    @abc.abstractmethod
    def simulate(self, key: PRNGKeyArray, z: Float[Array, "n k"]) -> Float[Array, " n"]:
        """A draw of y."""
