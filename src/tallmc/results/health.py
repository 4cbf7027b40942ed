"""Estimated errors of the draws, and reasons to doubt them.

    error of a mean   bias, measured with pairs of chains, plus Monte-Carlo error, in posterior sds
    error of an sd    the same, relative

Each error is the one of the worst parameter. The Monte-Carlo error is a bound that the worst of d
parameters exceeds in about one run of a hundred. R-hat and ESS do not detect the bias from step
size and gradient noise. This bias comes from the account of an automatic choice. For a method of
your own the bias is unknown, and the errors are `None`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
from jaxtyping import Bool, Float

from ..methods.account import Account, Bias
from ..statistics.convergence import HEAVY_TAIL, ess, pareto_k, rhat
from ..statistics.moments import by_parameter

_LARGEST_RHAT = 1.01
_BIAS_TOLERANCE = 2.0  # multiples of the budget; a larger bias is a reason for doubt
_FEWEST_EFFECTIVE_DRAWS = 400


@dataclasses.dataclass(frozen=True)
class Health:
    """Diagnostics of a run; `str(health)` is a readable report.

    **Arguments:**

    - `reasons`: what was chosen and why; empty for a method of your own.
    - `doubts`: reasons not to trust the draws, each with its cure.
    - `ess`: effective draws of the worst parameter.
    - `rhat`: R-hat of the worst parameter.
    - `mean_error`: error of the worst posterior mean, in posterior sds.
    - `sd_error`: relative error of the worst posterior sd.
    - `inflation`: largest relative inflation of a variance by gradient noise, measured during the
        run.
    - `noise_tail`: Pareto's k of the squared gradient noise. Above 0.7 the mean of the squared
        noise, and every estimate derived from it, is unreliable.

    >>> health = Health((), ("R-hat is 1.200.",), 80.0, 1.2, None, None, None, None)
    >>> health.trusted
    False
    """

    reasons: tuple[str, ...]
    doubts: tuple[str, ...]
    ess: float
    rhat: float
    mean_error: float | None
    sd_error: float | None
    inflation: float | None
    noise_tail: float | None

    @property
    def trusted(self) -> bool:
        """Whether there are no reasons for doubt."""
        return not self.doubts

    def __str__(self) -> str:
        lines = [f"chosen: {reason}" for reason in self.reasons]
        lines.append(
            f"effective draws: at least {self.ess:,.0f} per parameter; "
            f"R-hat at most {self.rhat:.3f}"
        )
        if self.mean_error is not None and self.sd_error is not None:
            lines.append(
                f"error: posterior means within {self.mean_error:.2g} sd, "
                f"posterior sds within {self.sd_error:.1%}"
            )
        else:
            lines.append("error: unknown, because the bias is not known for this method")
        if self.inflation is not None:
            lines.append(f"gradient noise: inflates variances by {self.inflation:.2%} at most")
        verdict = (
            "nothing speaks against these draws" if self.trusted else "do not trust these draws"
        )
        return "\n".join(
            [*lines, *(f"doubt: {doubt}" for doubt in self.doubts), f"verdict: {verdict}"]
        )


def assess(
    positions: Float[np.ndarray, "chains draws d"],
    ok: Bool[np.ndarray, " chains"],
    sample_stats: Mapping[str, np.ndarray],
    account: Account | None,
) -> Health:
    """Compute the health of draws; `ok` marks the chains that completed."""
    doubts = list(account.doubts) if account else []
    failed = int((~ok).sum())
    if failed:
        doubts.append(f"{failed} of {len(ok)} chains failed; see draws.outcomes.")
    complete = positions if ok.all() else positions[ok]
    if not len(complete) or complete.shape[1] < 4:
        doubts.append("too few draws for further diagnostics.")
        return Health(
            account.reasons if account else (), tuple(doubts), 0.0, np.inf, None, None, None, None
        )
    effective = by_parameter(ess, complete)
    agreement = float(np.max(by_parameter(rhat, complete))) if len(complete) > 1 else np.nan
    if agreement > _LARGEST_RHAT:
        doubts.append(f"R-hat is {agreement:.3f}: the chains do not agree yet. Run longer.")
    if effective.min() < _FEWEST_EFFECTIVE_DRAWS:
        doubts.append(
            f"only {effective.min():.0f} effective draws for the worst parameter. Run longer."
        )
    mean_error = sd_error = inflation = None
    if account is not None and (account.exact or account.bias is not None):
        mean_error, sd_error = _errors(account.bias, effective)
        doubts += _bias_doubts(account)
    if account is not None and account.inflation is not None:
        inflation = float(account.inflation.max())
        if inflation > 3 * account.budget.inflation:
            cure = "Allow less inflation: Automatic(inflation=...)."
            doubts.append(
                f"gradient noise inflated a variance by {inflation:.1%} during the run, "
                f"more than the pilot runs predicted. {cure}"
            )
    tail = _noise_tail(sample_stats, ok)
    if tail is not None and tail > HEAVY_TAIL:
        cure = "Allow less noise, for example with Automatic(inflation=0.002)."
        doubts.append(
            f"the gradient noise has a heavy tail (k = {tail:.2f}): "
            f"influential rows are rarely drawn. {cure}"
        )
    reasons = account.reasons if account else ()
    return Health(
        reasons,
        tuple(doubts),
        float(effective.min()),
        agreement,
        mean_error,
        sd_error,
        inflation,
        tail,
    )


def _errors(bias: Bias | None, effective: Float[np.ndarray, " d"]) -> tuple[float, float]:
    # The largest absolute value of d standard normal numbers is about √(2 log 2d). It exceeds this
    # by more than 1 about once in a hundred.
    monte_carlo = (np.sqrt(2 * np.log(2 * len(effective))) + 1) / np.sqrt(effective)
    if bias is None:
        return float(monte_carlo.max()), float(monte_carlo.max() / np.sqrt(2))
    mean = np.hypot(bias.mean, bias.mean_error) + monte_carlo
    sd = np.hypot(bias.sd, bias.sd_error) + monte_carlo / np.sqrt(2)
    return float(mean.max()), float(sd.max())


def _bias_doubts(account: Account) -> list[str]:
    """Report a bias that exceeds twice its budget by more than two standard errors."""
    if account.bias is None:
        return []
    bias, budget = account.bias, account.budget
    mean = float((np.abs(bias.mean) - 2 * bias.mean_error).max())
    sd = float((np.abs(bias.sd) - 2 * bias.sd_error).max())
    if mean <= _BIAS_TOLERANCE * budget.mean_bias and sd <= _BIAS_TOLERANCE * budget.sd_bias:
        return []
    return [
        f"step size and gradient noise shift posterior means by {mean:.2g} sd "
        f"and posterior sds by {sd:.1%}."
    ]


def _noise_tail(
    sample_stats: Mapping[str, np.ndarray], ok: Bool[np.ndarray, " chains"]
) -> float | None:
    noise = sample_stats.get("grad_noise")
    return None if noise is None else pareto_k(noise[ok].ravel())
