"""Several modes of one posterior: where they are, and how much probability each has.

The Gaussian around mode m has the mass exp(−f(θ_m)) |Σ_m|^½, relative to the other modes. A mode
with a share w of the mass at a distance of D standard deviations multiplies the variance by about
1 + wD². A mode with less than a hundredth of the mass is ignored unless this matters: a distant
mode may determine the standard deviation without being seen in most runs.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from ..._anchor.anchor import Anchor
from ..._anchor.modes import other_modes
from ..._anchor.optimisers import CountedPasses
from ...models.posterior import AbstractPosterior
from ..abstract import PreparedMethod

_LEAST = 0.01  # share of the mass
_LEAST_VARIANCE = 0.04  # wD² of a mode with a smaller share that is not ignored
_LIGHT = 0.05  # below this share, the visits to a mode are too few to determine moments well


class Modes(NamedTuple):
    """Modes of a posterior with the Gaussian around each; the first is the anchor's."""

    positions: Float[np.ndarray, "k d"]
    covariances: Float[np.ndarray, "k d d"]
    weights: Float[np.ndarray, " k"]
    """Probability of each mode, by the Gaussians; the sum is one."""

    def start(self, chains: int) -> Float[np.ndarray, "chains d"]:
        """Starting positions: chains are shared out among the modes by weight, at least one each.

        With fewer chains than modes, the modes of least weight get none.
        """
        counts = np.maximum(1, np.round(self.weights * chains)).astype(int)
        order = np.argsort(-self.weights)
        # One chain per mode first.
        places = np.concatenate([order, np.repeat(order, counts[order] - 1)])
        return self.positions[np.resize(places, chains)]

    @property
    def changes_per_draw(self) -> float:
        """How often independent draws are in another mode than the draw before."""
        return 1 - float(np.sum(self.weights**2))

    def nearest(self, draws: Float[np.ndarray, "*n d"]) -> Int[np.ndarray, "*n"]:
        """The number of the mode that is nearest to each draw, in units of its Gaussian."""
        offsets = np.stack([draws - position for position in self.positions])
        roots = np.linalg.inv(np.linalg.cholesky(self.covariances))
        return np.stack(
            [np.sum((at @ root.T) ** 2, axis=-1) for at, root in zip(offsets, roots, strict=True)]
        ).argmin(axis=0)

    def centred(self, draws: Float[np.ndarray, "*n d"]) -> Float[np.ndarray, "*n d"]:
        """The draws relative to the nearest mode."""
        return draws - self.positions[self.nearest(draws)]

    def describe(self) -> tuple[str, ...]:
        """One sentence per mode other than the first."""
        offsets = self.positions - self.positions[0]
        distances = np.sqrt(
            np.einsum("kd,de,ke->k", offsets, np.linalg.inv(self.covariances[0]), offsets)
        )
        return tuple(
            f"the posterior has another mode {distance:.3g} standard deviations away "
            f"with about {100 * weight:.2g}% of the probability"
            for distance, weight in zip(distances[1:], self.weights[1:], strict=True)
        )


def with_light_modes(plan: PreparedMethod, modes: Modes) -> PreparedMethod:
    """Return the plan with a doubt if a mode is visited too rarely for the errors reported."""
    least = modes.weights.min()
    if least >= _LIGHT:
        return plan
    doubt = (
        f"a mode with about {100 * least:.2g}% of the probability is visited rarely: means and "
        "standard deviations are less accurate than reported. Ask for more effective draws."
    )
    return _with_doubts(plan, (doubt,))


def in_one_mode(plan: PreparedMethod, modes: Modes) -> PreparedMethod:
    """Return the plan with a doubt for every mode that its chains do not visit."""
    unvisited = tuple(f"{mode}; the chains stayed in one mode." for mode in modes.describe())
    return _with_doubts(plan, unvisited)


def _with_doubts(plan: PreparedMethod, doubts: tuple[str, ...]) -> PreparedMethod:
    assert plan.account is not None
    account = dataclasses.replace(plan.account, doubts=plan.account.doubts + doubts)
    return plan._replace(account=account)


def find_modes(posterior: AbstractPosterior, anchor: Anchor, seed: int) -> tuple[Modes | None, int]:
    """Search for other modes that matter; None if there are none.

    Returns the modes, and the rows touched.
    """
    passes = CountedPasses(posterior)
    found = other_modes(posterior, anchor, seed=seed, passes=passes)
    weights = np.array([1.0, *(mode.mass_ratio for mode in found)])
    weights /= weights.sum()
    distances = np.array([0.0, *(mode.distance for mode in found)])
    matters = (weights >= _LEAST) | (weights * distances**2 >= _LEAST_VARIANCE)
    matters[0] = True
    if matters.sum() == 1:
        return None, passes.n_row_evals
    others = [mode for mode, kept in zip(found, matters[1:], strict=True) if kept]
    covariances = [np.asarray(anchor.covariance, np.float64)]
    covariances += [np.linalg.inv(passes.hessian(mode.position)) for mode in others]
    positions = [np.asarray(anchor.position, np.float64), *(mode.position for mode in others)]
    kept = weights[matters] / weights[matters].sum()
    return Modes(np.stack(positions), np.stack(covariances), kept), passes.n_row_evals
