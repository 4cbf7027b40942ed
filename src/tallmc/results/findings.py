"""Problems that a run shows, each with its cure. They become doubts of its account.

R-hat and ESS detect none of these problems.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Array, Float

from ..core.outcome import Outcome
from ..methods.account import Account
from ..models.posterior import AbstractPosterior
from ..statistics.moments import moments
from .draws import Draws

_LARGEST_SD_RATIO = 3.0
_LARGEST_GRAIN = 0.05
_LARGEST_UNCORRECTED_SHARE = 0.01
_LARGEST_POTENTIAL_ERROR = 0.1  # nats
_MOST_CHAINS_NAMED = 5
_USE_FLOAT64 = 'Use float64 (jax.config.update("jax_enable_x64", True) before making the posterior)'


def findings(
    draws: Draws, failed_at: np.ndarray, covariance: Array | np.ndarray | None
) -> list[str]:
    """All problems visible in the draws; `covariance` is that of the anchor's Gaussian."""
    return _failures(draws, failed_at) + _visible_problems(draws, covariance)


def _failures(draws: Draws, failed_at: np.ndarray) -> list[str]:
    """Which chains failed, and at which step."""
    found = []
    for outcome in sorted(set(draws.outcomes) - {Outcome.OK}):
        failed = [chain for chain, of_chain in enumerate(draws.outcomes) if of_chain is outcome]
        named = ", ".join(
            f"chain {chain} at step {failed_at[chain]}" for chain in failed[:_MOST_CHAINS_NAMED]
        )
        more = (
            f" and {len(failed) - _MOST_CHAINS_NAMED} more"
            if len(failed) > _MOST_CHAINS_NAMED
            else ""
        )
        found.append(
            f"{len(failed)} of {len(draws.outcomes)} chains {outcome.message} ({named}{more})"
        )
    return found


def _visible_problems(draws: Draws, covariance: Array | np.ndarray | None) -> list[str]:
    """Chains that never moved, draws that are too wide, uncorrected noise, coarse positions.

    Draws far wider than the anchor's Gaussian are no problem if their bias is known.
    """
    complete = draws.positions if draws.ok.all() else draws.positions[draws.ok]
    if complete.shape[1] < 2 or not len(complete):
        return []
    mean, sd, extent = moments(complete)
    stuck = np.flatnonzero(draws.ok)[extent.max(axis=1) == 0]
    if len(stuck):
        named = ", ".join(str(chain) for chain in stuck[:_MOST_CHAINS_NAMED])
        return [
            f"{len(stuck)} of {len(draws.outcomes)} chains never moved ({named}). "
            "Change the step size or the start."
        ]
    found = []
    if covariance is not None and not _bias_is_known(draws.account):
        ratio = sd / np.sqrt(np.diag(np.asarray(covariance, np.float64)))
        if ratio.max() > _LARGEST_SD_RATIO:
            found.append(
                f"the sd of parameter {np.argmax(ratio)} is {ratio.max():.3g} times "
                "the sd from the curvature at the mode. Unless the posterior is far from Gaussian, "
                "the cause is gradient noise or an unstable step. "
                "Make the step size smaller or the subsample larger."
            )
    uncorrected = draws.sample_stats.get("uncorrected_noise")
    if uncorrected is not None and np.mean(uncorrected[draws.ok]) > _LARGEST_UNCORRECTED_SHARE:
        found.append(
            f"{np.mean(uncorrected[draws.ok]):.0%} of the gradient noise "
            "was too large for the step to correct. "
            "Make the step size smaller or the subsample larger."
        )
    grain = (
        np.finfo(draws.positions.dtype).eps * np.abs(mean) / np.maximum(sd, np.finfo(float).tiny)
    )
    if grain.max() > _LARGEST_GRAIN and (sd > 0).all():
        found.append(
            f"{draws.positions.dtype} resolves only {1 / grain.max():.0f} values per sd "
            f"of parameter {np.argmax(grain)}, because its mean is large relative to its sd. "
            f"{_USE_FLOAT64}, or centre the data."
        )
    return found


def _bias_is_known(account: Account | None) -> bool:
    return account is not None and (account.exact or account.bias is not None)


def coarse_potential(posterior: AbstractPosterior, position: Float[Array, " d"]) -> list[str]:
    """Warn if rounding errors in the potential could decide an accept step.

    The rounding error of the sum is about √N times the error of one row.
    """
    # The pass that found the anchor: `posterior.potential` would be another program to compile.
    total = posterior.model.potential_and_gradient(position, posterior.rows)
    potential = abs(float(total.float64()[0]))
    error = float(np.finfo(posterior.dtype).eps) * potential / posterior.n_rows**0.5
    if error <= _LARGEST_POTENTIAL_ERROR:
        return []
    return [
        f"the potential, {potential:.3g}, has a rounding error of {error:.2g} "
        f"in {np.dtype(posterior.dtype)}. This is too coarse for an accept step, "
        f"so the draws are not exact. {_USE_FLOAT64}, or check the noise variance."
    ]
