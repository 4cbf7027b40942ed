"""Methods, and methods prepared for one posterior."""

from __future__ import annotations

import abc
from typing import NamedTuple

from jaxtyping import Array, Float

from ..anchor.anchor import Anchor, AnchorLevel, check_anchor, laplace
from ..dynamics.base import Curvature, Suggestion
from ..engine.kernel import BoundKernel
from ..models.posterior import AbstractPosterior, check_in_memory, check_posterior
from ..rows.base import RowAccess
from .account import Account


class RunDefaults(NamedTuple):
    """Chains and draws that `sample` uses if the user gives none."""

    chains: int
    draws: int | None
    """Draws per chain; None if the effective sample size ends the run."""
    ess: float | None
    """Effective sample size of every parameter, over all chains."""


class PreparedMethod(NamedTuple):
    """A method prepared for one posterior.

    >>> import tallmc
    >>> X, y = [[1.0], [2.0]], [1.0, 2.0]
    >>> posterior = tallmc.models.linear_regression(X, y, prior_variance=1.0, noise_variance=1.0)
    >>> tallmc.sgld(step_size=0.1, size=1).prepare(posterior).n_row_evals
    0
    """

    kernel: BoundKernel
    """Transition kernel with the posterior it runs on."""
    anchor: Anchor | None
    """Anchor, if the method has one."""
    n_row_evals: int
    """Rows touched by the preparation: anchor, weights, pilot runs."""
    account: Account | None = None
    """Account of an automatic choice; None for a composition of the user's own."""
    start: Float[Array, "chains d"] | None = None
    """Start of the chains; None to start at the anchor, or at `posterior.init` without one."""
    burn_in: int | None = None
    """Steps of burn-in that the method asks for, if any."""
    thin: int = 1
    """Steps per draw."""


class AbstractMethod(abc.ABC):
    """A sampling method that `sample` can run.

    >>> import tallmc
    >>> isinstance(tallmc.Automatic(), tallmc.methods.AbstractMethod)
    True
    """

    @property
    @abc.abstractmethod
    def needs(self) -> AnchorLevel:
        """What the method must know about the posterior before the first step."""

    @property
    @abc.abstractmethod
    def row_access(self) -> RowAccess:
        """How the method reads rows while chains run."""

    @abc.abstractmethod
    def defaults(self, dim: int) -> RunDefaults:
        """Chains and draws if the user gives none."""

    @property
    @abc.abstractmethod
    def has_accept_step(self) -> bool:
        """Whether an accept step compares potentials of all rows; rounding errors then matter."""

    @property
    @abc.abstractmethod
    def exact(self) -> bool:
        """Whether the method leaves the posterior invariant at any step size."""

    @property
    @abc.abstractmethod
    def unseen_by_pairs(self) -> str | None:
        """A bias that does not vanish with the step size, if the method has one."""

    @property
    @abc.abstractmethod
    def axes(self) -> dict[str, str]:
        """Labels of the parts: dynamics, gradient, subsample, size."""

    @abc.abstractmethod
    def suggest(self, curvature: Curvature) -> Suggestion | None:
        """Suggest settings for this curvature; None if the method finds its own."""

    @abc.abstractmethod
    def prepare(
        self, posterior: AbstractPosterior, anchor: Anchor | None = None, *, seed: int = 0
    ) -> PreparedMethod:
        """Do everything that precedes the first step."""


class AbstractReadingMethod(AbstractMethod):
    """A method whose steps read some rows by number, and compare no potentials of all rows."""

    @property
    def row_access(self) -> RowAccess:
        return RowAccess.TAKE

    def defaults(self, dim: int) -> RunDefaults:
        return RunDefaults(chains=4, draws=1000, ess=None)

    @property
    def has_accept_step(self) -> bool:
        return False


def prepare_anchor(
    posterior: AbstractPosterior, anchor: Anchor | None, needs: AnchorLevel
) -> tuple[Anchor | None, int]:
    """Find or check the anchor; return it with the number of rows touched."""
    check_posterior(posterior)
    if anchor is not None:
        return anchor, check_anchor(anchor, posterior, needs) + anchor.n_row_evals
    if needs > AnchorLevel.NOTHING:
        anchor = laplace(posterior, hessian=needs >= AnchorLevel.HESSIAN)
        return anchor, anchor.n_row_evals
    return None, 0


def check_row_access(method: AbstractMethod, posterior: AbstractPosterior) -> None:
    """Raise if the method reads rows in a way that the posterior's rows do not allow."""
    if method.row_access > posterior.rows.access:
        check_in_memory(
            posterior,
            "the method reads rows by number, or all rows, inside its steps",
            "Choose a method with fixed weights, such as sgld_cv_ps(...), or the default method.",
        )
