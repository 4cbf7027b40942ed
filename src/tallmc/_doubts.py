"""What gives reason to doubt a run, each in a sentence with its cure. R-hat and ESS cannot see any of this."""

from __future__ import annotations

import numpy as np
from jaxtyping import Array, Float

from ._draws import Draws
from ._kept import moments
from ._outcome import Outcome
from ._posterior import AbstractPosterior

_TOO_WIDE = 3.0
_TOO_COARSE = 0.05
_UNCORRECTED = 0.01
_UNRESOLVED_NATS = 0.1
_SHOWN = 5
_DOUBLE = 'Use float64 (jax.config.update("jax_enable_x64", True) before making the posterior)'


def failures(draws: Draws, failed_at: np.ndarray) -> list[str]:
    """The chains that failed, and when."""
    found = []
    for outcome in sorted(set(draws.outcomes) - {Outcome.OK}):
        failed = [chain for chain, of_chain in enumerate(draws.outcomes) if of_chain is outcome]
        named = ", ".join(f"chain {chain} at step {failed_at[chain]}" for chain in failed[:_SHOWN])
        more = f" and {len(failed) - _SHOWN} more" if len(failed) > _SHOWN else ""
        found.append(f"{len(failed)} of {len(draws.outcomes)} chains {outcome.message} ({named}{more})")
    return found


def doubts(draws: Draws, covariance: Array | np.ndarray | None) -> list[str]:
    """Chains that never moved; draws far wider than the anchor's Gaussian; noise left uncorrected; positions too coarse."""
    complete = draws.positions if draws.ok.all() else draws.positions[draws.ok]
    if complete.shape[1] < 2 or not len(complete):
        return []
    mean, sd, extent = moments(complete)
    stuck = np.flatnonzero(draws.ok)[extent.max(axis=1) == 0]
    if len(stuck):
        named = ", ".join(str(chain) for chain in stuck[:_SHOWN])
        return [f"{len(stuck)} of {len(draws.outcomes)} chains never moved ({named}). Change the step size or the start."]
    found = []
    if covariance is not None:
        ratio = sd / np.sqrt(np.diag(np.asarray(covariance, np.float64)))
        if ratio.max() > _TOO_WIDE:
            found.append(
                f"parameter {np.argmax(ratio)} spreads {ratio.max():.3g} times as wide as the curvature at the mode says. "
                "Unless the posterior is far from Gaussian this is gradient noise or an unstable step: "
                "make the step smaller or the size larger."
            )
    uncorrected = draws.sample_stats.get("uncorrected_noise")
    if uncorrected is not None and np.mean(uncorrected[draws.ok]) > _UNCORRECTED:
        found.append(
            f"{np.mean(uncorrected[draws.ok]):.0%} of the gradient noise was too much for its step to be corrected. "
            "Make the step size smaller or the subsample larger."
        )
    grain = np.finfo(draws.positions.dtype).eps * np.abs(mean) / np.maximum(sd, np.finfo(float).tiny)
    if grain.max() > _TOO_COARSE and (sd > 0).all():
        found.append(
            f"parameter {np.argmax(grain)} is so large for its spread that {draws.positions.dtype} resolves only "
            f"{1 / grain.max():.0f} values a standard deviation. {_DOUBLE}, or centre the data."
        )
    return found


def coarse_potential(posterior: AbstractPosterior, position: Float[Array, " d"]) -> list[str]:
    """An accept step compares potentials; their rounding errors, √N of one row each, must not decide it."""
    potential = abs(float(posterior.potential(position)))
    error = float(np.finfo(posterior.dtype).eps) * potential / posterior.n_rows**0.5
    if error <= _UNRESOLVED_NATS:
        return []
    return [
        f"the potential, {potential:.3g}, is known to {error:.2g} only in {np.dtype(posterior.dtype)}, "
        f"which is too coarse for an accept step: the draws are not exact. {_DOUBLE}, or check the noise variance."
    ]
