"""The accept step as an interface: what is known, what the rows add, and the verdict."""

from __future__ import annotations

import abc
from typing import NamedTuple

import equinox as eqx
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from ...rows.base import AbstractRows
from .remainders import AbstractRemainders


class Move(NamedTuple):
    """A proposed move from u to u'."""

    here: Float[Array, " d"]
    there: Float[Array, " d"]
    moves: Float[Array, "2 d"]
    """Cu and Cu', the moves of θ away from the anchor."""
    log_known: Float[Array, ""]
    """The logarithm of the acceptance ratio without the rows left to chance."""
    log_uniform: Float[Array, ""]


class Decided(NamedTuple):
    """The result of an accept step."""

    accept: Bool[Array, ""]
    rate: Float[Array, ""]
    """The probability of accepting, given the rows."""
    n_rows: Int[Array, ""]
    """Rows evaluated."""
    exceeded: Int[Array, ""]
    """Rows whose change was above their cap: each of them breaks detailed balance."""
    worst: Float[Array, ""]
    """The largest |D_i|/cap_i."""
    outside: Bool[Array, ""]
    """Whether the move was rejected because there is no bound for it."""


class AbstractDecision(eqx.Module):
    """Decides about a move from some rows."""

    @property
    @abc.abstractmethod
    def most_rows(self) -> int:
        """The largest number of rows of a step, as far as it is known."""

    @abc.abstractmethod
    def decide(
        self,
        remainders: AbstractRemainders,
        move: Move,
        key: PRNGKeyArray,
        source: AbstractRows,
    ) -> Decided:
        """Whether the move is accepted."""
