"""The error that the buffers of a series cause, at positions of a run.

The rows of a series know the past of their window by a buffer of B observations. The gradient of a
window is compared with that of a buffer that is much longer, at draws: see
`models/buffer_length.py` for the measure. The cost is two passes over at most 256 windows per
position.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from jaxtyping import ArrayLike, Float

from ..anchor.anchor import Anchor
from ..core.errors import InvalidInput, check_int
from ..models.buffer_length import WANTED_ERROR, buffer_errors
from ..models.posterior import AbstractPosterior
from ..results.draws import Draws
from .series_of_posterior import observed_series, some_positions

_LEAST_REFERENCE, _TIMES_LONGER = 64, 4


@dataclasses.dataclass(frozen=True)
class BufferError:
    """How far the posterior mean is moved by the buffers, in posterior standard deviations.

    **Attributes:**

    - `errors`: one per position.
    - `buffer`: the buffer of the rows.
    - `reference`: the longer buffer that it was compared with.

    >>> BufferError(np.array([0.001, 0.003]), buffer=20, reference=80)
    buffer 20: error 0.003 posterior sds at the worst of 2 positions (against buffer 80), good
    """

    errors: np.ndarray
    buffer: int
    reference: int

    @property
    def largest(self) -> float:
        """The error at the worst position."""
        return float(self.errors.max())

    def __repr__(self) -> str:
        verdict = "good" if self.largest <= WANTED_ERROR else "too large: use a longer buffer"
        return (
            f"buffer {self.buffer}: error {self.largest:.2g} posterior sds at the worst of "
            f"{len(self.errors)} positions (against buffer {self.reference}), {verdict}"
        )


def buffer_error(
    posterior: AbstractPosterior,
    draws: Draws | ArrayLike,
    *,
    reference: int | None = None,
    positions: int = 8,
    anchor: Anchor | None = None,
) -> BufferError:
    """Measure the error that the buffers of a series cause, at draws.

    **Arguments:**

    - `posterior`: a posterior of `tallmc.models.hidden_markov` or `tallmc.models.state_space`.
    - `draws`: the draws, or positions of shape (k, d).
    - `reference`: the longer buffer to compare with; by default 4 times the buffer of the rows, and
      at least 64 more.
    - `positions`: how many draws to use, spread over the run.
    - `anchor`: from `laplace(posterior)`. Its covariance is the unit of the error. By default the
      covariance of the draws is.

    **Returns:** a `BufferError`.

    **Raises:** `InvalidInput` if the posterior is not one of a series, an argument is out of range,
    or there are too few draws for their covariance.

    >>> import tallmc
    >>> rng = np.random.default_rng(0)
    >>> y = np.cumsum(rng.normal(size=500)) + rng.normal(size=500)
    >>> posterior = tallmc.models.state_space(y, "level", window=50, buffer=25)
    >>> anchor = tallmc.laplace(posterior)
    >>> tallmc.diagnose.buffer_error(posterior, anchor.position[None], anchor=anchor).largest < 0.01
    True
    """
    found = observed_series(posterior)
    window, buffer = found.likelihood.window, found.likelihood.before
    longer = max(_TIMES_LONGER * buffer, buffer + _LEAST_REFERENCE)
    chosen = longer if reference is None else check_int("reference", reference, buffer + 1)
    listed = some_positions(posterior, draws, None)
    errors = buffer_errors(
        found.model,
        found.y,
        some_positions(posterior, draws, positions),
        _unit(listed, anchor),
        window=window,
        buffers=[buffer],
        reference=min(chosen, len(found.y)),
    )
    return BufferError(errors[:, 0], buffer, chosen)


def _unit(positions: Float[np.ndarray, "k d"], anchor: Anchor | None) -> Float[np.ndarray, "d d"]:
    """C with C Cᵀ the posterior covariance."""
    if anchor is not None:
        if anchor.factor is None:
            cure = "Use laplace(posterior, hessian=True)."
            raise InvalidInput("anchor", "have a Hessian", "none", cure)
        return np.asarray(anchor.factor, np.float64)
    n, d = positions.shape
    if n <= 2 * d:
        cure = "Pass anchor=laplace(posterior)."
        raise InvalidInput("draws", f"be more than {2 * d} for their covariance", n, cure)
    return np.linalg.cholesky(np.cov(positions.T).reshape(d, d))
