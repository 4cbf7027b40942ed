"""What a method asks of its subsampling: a scheme and a size, made ready for one posterior by `prepare`."""

from __future__ import annotations

import abc
from typing import ClassVar, NamedTuple

import numpy as np

from .._anchor import Anchor, Needs
from .._posterior import AbstractPosterior
from ..geometry import AbstractGeometry, IdentityGeometry
from .law import AbstractLaw
from .selection import AbstractSelection


class Setting(NamedTuple):
    """What rows are chosen for."""

    posterior: AbstractPosterior
    anchor: Anchor | None = None
    """There when the method needs one."""
    order: int | None = None
    """The order of the gradient estimator, where it has one."""
    geometry: AbstractGeometry = IdentityGeometry()
    """The metric in which noise matters."""


class SizeChoice(abc.ABC):
    """How many rows a step sees."""

    needs: ClassVar[Needs]
    size: int | None
    """Rows in every step at least; None when that depends on the state."""

    @abc.abstractmethod
    def select(self, law: AbstractLaw, setting: Setting, certain: np.ndarray) -> AbstractSelection:
        """So many rows: those that are `certain` (none, where the size is None) and draws, with replacement, from `law`."""


class SubsampleChoice(abc.ABC):
    """Which rows a step sees."""

    @property
    @abc.abstractmethod
    def needs(self) -> Needs:
        """What must be known about the posterior before the first step."""

    @property
    @abc.abstractmethod
    def passes(self) -> int:
        """Passes over the rows that `prepare` makes."""

    @property
    @abc.abstractmethod
    def knows_its_spread(self) -> bool:
        """Whether its batches tell how noisy they are."""

    @abc.abstractmethod
    def prepare(self, setting: Setting, size: SizeChoice | None) -> AbstractSelection:
        """The selection for this posterior, estimator and metric."""
