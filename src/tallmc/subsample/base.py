"""What a method asks of its subsampling: a scheme and a size, made ready for one posterior by `prepare`."""

from __future__ import annotations

import abc
from typing import ClassVar

from .._anchor import Anchor, Needs
from .._posterior import AbstractPosterior
from .law import AbstractLaw
from .selection import AbstractSelection


class SizeChoice(abc.ABC):
    """How many rows a step sees."""

    needs: ClassVar[Needs]

    @abc.abstractmethod
    def select(self, law: AbstractLaw, posterior: AbstractPosterior, anchor: Anchor | None) -> AbstractSelection:
        """So many draws, with replacement, from `law`."""


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
    def prepare(self, posterior: AbstractPosterior, anchor: Anchor | None, size: SizeChoice | None) -> AbstractSelection:
        """The selection for this posterior."""
