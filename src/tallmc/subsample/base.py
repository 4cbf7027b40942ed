"""The two choices of subsampling in a method: which rows a step sees, and how many.

`SubsampleChoice.prepare` turns both choices into a selection for one posterior.
"""

from __future__ import annotations

import abc
from typing import ClassVar, NamedTuple

import numpy as np

from ..anchor.anchor import Anchor, AnchorLevel
from ..core.linear_maps import AbstractLinearMap, IdentityMap
from ..models.posterior import AbstractPosterior
from ..rows.base import RowAccess
from ..rows.stream import AbstractStream
from .selection import AbstractSelection


class SubsampleContext(NamedTuple):
    """What a subsample is prepared for: the posterior, the estimator and the metric."""

    posterior: AbstractPosterior
    anchor: Anchor | None = None
    """The anchor, if the method needs one."""
    order: int | None = None
    """The order of the gradient estimator, if it has one."""
    geometry: AbstractLinearMap = IdentityMap()
    """The metric in which gradient noise is measured."""


class SizeChoice(abc.ABC):
    """How many rows a step sees.

    >>> import tallmc
    >>> isinstance(tallmc.subsample.Fixed(100), SizeChoice)
    True
    """

    needs: ClassVar[AnchorLevel]
    """What must be known about the posterior before the first step."""
    row_access: ClassVar[RowAccess]
    """How rows are read while chains run."""
    size: int | None
    """The least number of rows per step; None if it is not known before the run."""

    @abc.abstractmethod
    def select(
        self, stream: AbstractStream, context: SubsampleContext, certain: np.ndarray
    ) -> AbstractSelection:
        """The selection of this size: the `certain` rows and draws from the stream.

        `certain` is empty if `size` is None.
        """


class SubsampleChoice(abc.ABC):
    """Which rows a step sees.

    >>> import tallmc
    >>> isinstance(tallmc.subsample.Uniform(), SubsampleChoice)
    True
    """

    unseen_by_pairs: ClassVar[str | None] = None
    """A bias of the estimate that half the step size need not reduce, if there is one."""

    @property
    @abc.abstractmethod
    def needs(self) -> AnchorLevel:
        """What must be known about the posterior before the first step."""

    @property
    @abc.abstractmethod
    def row_access(self) -> RowAccess:
        """How rows are read while chains run."""

    @property
    @abc.abstractmethod
    def passes(self) -> int:
        """Number of passes over the rows that `prepare` makes."""

    @property
    @abc.abstractmethod
    def knows_its_spread(self) -> bool:
        """Whether the noise of an estimate can be estimated from its own batch."""

    @abc.abstractmethod
    def prepare(self, context: SubsampleContext, size: SizeChoice | None) -> AbstractSelection:
        """Build the selection for this posterior, estimator and metric."""
