"""How wrong draws may be, and why one should or should not trust them.

    error of a mean   its bias, as measured by pairs of chains, and its Monte-Carlo error, in standard deviations
    error of a sd     the same, relative

Each is that of the worst parameter, and the Monte-Carlo error is what the worst of so many parameters exceeds once in a hundred.
R-hat and ESS see the chains only; the bias of step size and gradient noise, which they cannot see, comes from the account of an
automatic choice. For a method of your own it is not known, and `None`.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from .._kept import by_parameter
from .convergence import HEAVY_TAIL, ess, pareto_k, rhat

if TYPE_CHECKING:
    from .._draws import Draws

_LARGEST_RHAT = 1.01
_BIAS_SHARE = 2.0  # a bias of so many times its budget is a reason for doubt
_FEW_EFFECTIVE = 400


@dataclasses.dataclass(frozen=True)
class Health:
    """`str(health)` is made to be read; `trusted` is the verdict."""

    reasons: tuple[str, ...]
    """What was chosen, and why; empty for a method of your own."""
    doubts: tuple[str, ...]
    """Why the draws should not be trusted, each with what can be done about it."""
    ess: float
    """Effective draws of the worst parameter."""
    rhat: float
    mean_error: float | None
    """Of the worst parameter, in posterior standard deviations."""
    sd_error: float | None
    """Of the worst parameter, relative."""
    inflation: float | None
    """Of the worst parameter's variance by gradient noise, as measured along the run."""
    noise_tail: float | None
    """Pareto's k of the squared gradient noise: above 0.7 its mean, and so all that is known of it, is not to be relied on."""

    @property
    def trusted(self) -> bool:
        return not self.doubts

    def __str__(self) -> str:
        lines = [f"chosen: {reason}" for reason in self.reasons]
        lines.append(f"effective draws: {self.ess:,.0f} or more of every parameter; R-hat at most {self.rhat:.3f}")
        if self.mean_error is not None and self.sd_error is not None:
            lines.append(f"error: means within {self.mean_error:.2g} standard deviations, those within {self.sd_error:.1%}")
        else:
            lines.append("error: the bias is not known for this method")
        if self.inflation is not None:
            lines.append(f"gradient noise: inflates variances by {self.inflation:.2%} at most")
        verdict = "nothing speaks against these draws" if self.trusted else "do not trust these draws"
        return "\n".join([*lines, *(f"doubt: {doubt}" for doubt in self.doubts), f"verdict: {verdict}"])


def assess(draws: Draws) -> Health:
    """The health of these draws."""
    account = draws.account
    doubts = list(account.doubts) if account else []
    failed = int((~draws.ok).sum())
    if failed:
        doubts.append(f"{failed} of {len(draws.ok)} chains failed; see draws.outcomes.")
    complete = draws.positions if draws.ok.all() else draws.positions[draws.ok]
    if not len(complete) or complete.shape[1] < 4:
        doubts.append("too few draws to say more.")
        return Health(account.reasons if account else (), tuple(doubts), 0.0, np.inf, None, None, None, None)
    effective = by_parameter(ess, complete)
    agreement = float(np.max(by_parameter(rhat, complete))) if len(complete) > 1 else np.nan
    if agreement > _LARGEST_RHAT:
        doubts.append(f"R-hat is {agreement:.3f}: the chains do not agree yet. Run longer.")
    if effective.min() < _FEW_EFFECTIVE:
        doubts.append(f"only {effective.min():.0f} effective draws of a parameter. Run longer.")
    mean_error = sd_error = inflation = None
    if account is not None and (account.exact or account.bias is not None):
        mean_error, sd_error = _errors(draws, effective)
        doubts += _doubts_of_bias(draws)
    if account is not None and account.inflation is not None:
        inflation = float(account.inflation.max())
        if inflation > 3 * account.budget.inflation:
            cure = "Allow less: Automatic(inflation=...)."
            doubts.append(f"gradient noise inflated a variance by {inflation:.1%} along the run, not as pilot runs said. {cure}")
    tail = _noise_tail(draws)
    if tail is not None and tail > HEAVY_TAIL:
        cure = "Allow less noise, as with Automatic(inflation=0.002)."
        doubts.append(f"the gradient noise has a heavy tail (k = {tail:.2f}): rows that matter are seldom seen. {cure}")
    reasons = account.reasons if account else ()
    return Health(reasons, tuple(doubts), float(effective.min()), agreement, mean_error, sd_error, inflation, tail)


def _errors(draws: Draws, effective: Float[np.ndarray, " d"]) -> tuple[float, float]:
    # √(2 log 2d) is about the largest of d standard normal numbers, and one more is what it exceeds once in a hundred.
    monte_carlo = (np.sqrt(2 * np.log(2 * len(effective))) + 1) / np.sqrt(effective)
    bias = draws.account.bias if draws.account else None
    if bias is None:
        return float(monte_carlo.max()), float(monte_carlo.max() / np.sqrt(2))
    mean = np.hypot(bias.mean, bias.mean_error) + monte_carlo
    sd = np.hypot(bias.sd, bias.sd_error) + monte_carlo / np.sqrt(2)
    return float(mean.max()), float(sd.max())


def _doubts_of_bias(draws: Draws) -> list[str]:
    """A bias beyond its budget, known to be so."""
    account = draws.account
    if account is None or account.bias is None:
        return []
    bias, budget = account.bias, account.budget
    mean = float((np.abs(bias.mean) - 2 * bias.mean_error).max())
    sd = float((np.abs(bias.sd) - 2 * bias.sd_error).max())
    if mean <= _BIAS_SHARE * budget.mean_bias and sd <= _BIAS_SHARE * budget.sd_bias:
        return []
    return [f"step size and gradient noise shift means by {mean:.2g} standard deviations, and these by {sd:.1%}."]


def _noise_tail(draws: Draws) -> float | None:
    noise = draws.sample_stats.get("grad_noise")
    return None if noise is None else pareto_k(noise[draws.ok].ravel())
