"""The verdict on draws: estimated errors, and reasons to doubt them.

    error of a mean   bias, measured with pairs of chains, plus Monte-Carlo error, in posterior sds
    error of an sd    the same, relative

Each error is the one of the worst parameter. The Monte-Carlo error is a bound that the worst of d
parameters exceeds in about one run of a hundred. R-hat and ESS do not detect the bias from step
size and gradient noise. This bias comes from the account of the run. There are three verdicts:

    checked       the bias is known and within its budget, and nothing else speaks against the draws
    doubtful      there is a reason not to trust the draws
    not checked   no reason for doubt was found, but the bias is not known
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping

import numpy as np
from jaxtyping import Bool, Float

from ..methods.account import Account, Bias
from ..statistics.convergence import FEWEST_EFFECTIVE_DRAWS, Agreement, agreement
from ..statistics.moments import by_parameter
from ..statistics.pareto import HEAVY_TAIL, pareto_k
from .html import health_html

_HOW_TO_CHECK = (
    "the bias of step size and gradient noise was not measured. "
    "Use sample(..., check=True) or tallmc.check(posterior, method)."
)


class Verdict(enum.StrEnum):
    """What is known about the draws.

    >>> str(Verdict.NOT_CHECKED)
    'not checked'
    """

    CHECKED = "checked"
    DOUBTFUL = "doubtful"
    NOT_CHECKED = "not checked"


@dataclasses.dataclass(frozen=True)
class Health:
    """Diagnostics of a run; `str(health)` is a readable report.

    **Arguments:**

    - `reasons`: what was chosen and why; empty for a method of your own.
    - `doubts`: reasons not to trust the draws, each with its cure.
    - `ess`: effective draws of the worst parameter.
    - `rhat`: R-hat of the worst parameter.
    - `mean_error`: error of the worst posterior mean, in posterior sds; None if unknown.
    - `sd_error`: relative error of the worst posterior sd; None if unknown.
    - `inflation`: largest relative inflation of a variance by gradient noise, measured during the
        run.
    - `noise_tail`: Pareto's k of the squared gradient noise. Above 0.7 the mean of the squared
        noise, and every estimate derived from it, is unreliable.
    - `notes`: what to know about the posterior, such as a direction that the prior alone decides.
    - `unknown`: what is not known about the draws, with the cure; None if the bias is known.

    >>> health = Health((), ("R-hat is 1.200.",), 80.0, 1.2, None, None, None, None, (), None)
    >>> health.verdict, health.trusted
    (<Verdict.DOUBTFUL: 'doubtful'>, False)
    """

    reasons: tuple[str, ...]
    doubts: tuple[str, ...]
    ess: float
    rhat: float
    mean_error: float | None
    sd_error: float | None
    inflation: float | None
    noise_tail: float | None
    notes: tuple[str, ...]
    unknown: str | None

    @property
    def verdict(self) -> Verdict:
        """Whether the draws are checked, doubtful or not checked."""
        if self.doubts:
            return Verdict.DOUBTFUL
        return Verdict.CHECKED if self.unknown is None else Verdict.NOT_CHECKED

    @property
    def trusted(self) -> bool:
        """Whether the bias is known to be within its budget, and nothing else raises doubts."""
        return self.verdict is Verdict.CHECKED

    @property
    def meaning(self) -> str:
        """The verdict in words."""
        return {
            Verdict.CHECKED: "nothing speaks against these draws",
            Verdict.DOUBTFUL: "do not trust these draws",
            Verdict.NOT_CHECKED: "nothing is known about the bias of these draws",
        }[self.verdict]

    def __str__(self) -> str:
        lines = [f"chosen: {reason}" for reason in self.reasons]
        agreement = "" if np.isnan(self.rhat) else f"; R-hat at most {self.rhat:.3f}"
        if np.isfinite(self.ess):
            lines.append(f"effective draws: at least {self.ess:,.0f} per parameter{agreement}")
        if self.mean_error is not None and self.sd_error is not None:
            lines.append(
                f"error: posterior means within {self.mean_error:.2g} sd, "
                f"posterior sds within {self.sd_error:.1%}"
            )
        if self.inflation is not None:
            lines.append(f"gradient noise: inflates variances by {self.inflation:.2%} at most")
        lines += [f"note: {note}" for note in self.notes]
        lines += [f"doubt: {doubt}" for doubt in self.doubts]
        if self.unknown is not None:
            lines.append(f"unknown: {self.unknown}")
        return "\n".join([*lines, f"verdict: {self.verdict}; {self.meaning}"])

    def _repr_html_(self) -> str:
        return health_html(str(self), str(self.verdict))


def assess(
    positions: Float[np.ndarray, "chains draws d"],
    ok: Bool[np.ndarray, " chains"],
    sample_stats: Mapping[str, np.ndarray],
    account: Account,
    weight_efficiency: float = 1.0,
    agreed: Agreement | None = None,
) -> Health:
    """Judge the draws.

    `ok` marks the chains that completed. `weight_efficiency` is the share of effective draws that
    remains because draws count differently. `agreed` is the agreement of the completed chains, if
    it is known.
    """
    complete = positions if ok.all() else positions[ok]
    doubts = list(account.doubts)
    if not len(complete) or complete.shape[1] < 4:
        doubts.append("there are too few draws for diagnostics. Run longer.")
        return _health(account, doubts, 0.0, np.nan, None, None, None)
    agreed = agreement(complete) if agreed is None else agreed
    agreed = agreed._replace(ess=weight_efficiency * agreed.ess)
    doubts += _convergence_doubts(agreed)
    unknown = _what_is_unknown(account)
    mean_error = sd_error = None
    if account.exact or account.bias is not None:
        mean_error, sd_error = _errors(account.bias, agreed, complete)
        doubts += _bias_doubts(account)
    if account.inflation is not None and account.inflation.max() > 3 * account.budget.inflation:
        cure = "Allow less inflation: Automatic(inflation=...)."
        doubts.append(
            f"gradient noise inflated a variance by {account.inflation.max():.1%} during the run, "
            f"more than the pilot runs predicted. {cure}"
        )
    tail = _noise_tail(sample_stats, ok) if account.noise_tail is None else account.noise_tail
    if tail is not None and tail > HEAVY_TAIL and _noise_matters(account):
        cure = "Allow less noise, for example with Automatic(inflation=0.002)."
        doubts.append(
            f"the gradient noise has a heavy tail (k = {tail:.2f}): "
            f"influential rows are rarely drawn. {cure}"
        )
    health = _health(
        account, doubts, float(agreed.ess.min()), agreed.rhat, mean_error, sd_error, unknown
    )
    return dataclasses.replace(health, noise_tail=tail)


def _health(
    account: Account,
    doubts: list[str],
    ess: float,
    rhat: float,
    mean_error: float | None,
    sd_error: float | None,
    unknown: str | None,
) -> Health:
    inflation = None if account.inflation is None else float(account.inflation.max())
    return Health(
        account.reasons,
        tuple(doubts),
        ess,
        rhat,
        mean_error,
        sd_error,
        inflation,
        None,
        account.notes,
        unknown,
    )


def _convergence_doubts(agreed: Agreement) -> list[str]:
    doubts = []
    if not agreed.reached:
        doubts.append(
            f"R-hat is {agreed.rhat:.3f}, and chance explains at most {agreed.limit:.3f}: "
            "the chains do not agree yet. Run longer."
        )
    if agreed.ess.min() < FEWEST_EFFECTIVE_DRAWS:
        doubts.append(
            f"only {agreed.ess.min():.0f} effective draws for the worst parameter. Run longer."
        )
    return doubts


def _what_is_unknown(account: Account) -> str | None:
    """Why the bias is not known, or None if it is."""
    if account.exact or account.unmeasured is not None:
        return account.unmeasured
    if account.bias is None:
        return _HOW_TO_CHECK
    if account.bias.imprecision(account.budget) > 1:
        return (
            f"the bias was measured only to within {account.bias.mean_error.max():.2g} sd "
            f"in a mean and {account.bias.sd_error.max():.1%} in an sd. Run longer."
        )
    return None


def _errors(
    bias: Bias | None, agreed: Agreement, positions: Float[np.ndarray, "chains draws d"]
) -> tuple[float, float]:
    # The largest absolute value of d standard normal numbers is about √(2 log 2d). It exceeds this
    # by more than 1 about once in a hundred.
    monte_carlo = (_typical_largest(positions.shape[2]) + 1) / np.sqrt(agreed.ess)
    # An sd from n independent draws has the relative error √((κ − 1)/4n), with the kurtosis κ.
    kurtosis = by_parameter(_kurtosis, positions[:, :, agreed.parameters])
    of_sd = np.max(monte_carlo * np.sqrt(np.maximum(kurtosis - 1, 1) / 4))
    if bias is None:
        return float(monte_carlo.max()), float(of_sd)
    mean = np.hypot(bias.mean, bias.mean_error).max() + monte_carlo.max()
    return float(mean), float(np.hypot(bias.sd, bias.sd_error).max() + of_sd)


def _kurtosis(positions: Float[np.ndarray, "chains draws k"]) -> Float[np.ndarray, " k"]:
    squares = (positions - positions.mean(axis=(0, 1))) ** 2
    variance = np.maximum(squares.mean(axis=(0, 1)), np.finfo(float).tiny)
    return np.mean(squares**2, axis=(0, 1)) / variance**2


def _bias_doubts(account: Account) -> list[str]:
    """Report a bias that exceeds its budget by more than its error explains."""
    bias, budget = account.bias, account.budget
    if bias is None or bias.excess(budget, max(2.0, _typical_largest(len(bias.mean)))) <= 1:
        return []
    return [
        f"step size and gradient noise shift posterior means by {np.abs(bias.mean).max():.2g} sd "
        f"and posterior sds by {np.abs(bias.sd).max():.1%}. "
        "Make the step size smaller or the subsample larger."
    ]


def _typical_largest(count: int) -> float:
    """About the largest absolute value of `count` standard normal numbers."""
    return float(np.sqrt(2 * np.log(2 * count)))


def _noise_matters(account: Account) -> bool:
    """Whether the noise would exceed its budget if rare rows made it a hundred times larger."""
    return account.inflation is None or 100 * account.inflation.max() > account.budget.inflation


def _noise_tail(
    sample_stats: Mapping[str, np.ndarray], ok: Bool[np.ndarray, " chains"]
) -> float | None:
    noise = sample_stats.get("grad_noise")
    return None if noise is None else pareto_k(noise[ok].ravel())
