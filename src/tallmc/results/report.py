"""The report on a run: estimated errors, reasons for doubt, and the verdict.

    error of a mean   bias, measured with pairs of chains, plus Monte-Carlo error, in posterior sds
    error of an sd    the same, relative

Each error is the one of the worst parameter. The Monte-Carlo error is a bound that the worst of d
parameters exceeds in about one run of a hundred. R-hat and ESS do not detect the bias from step
size and gradient noise. This bias comes from the `Account`: what the method promises, and what it
measured. The report is made of the account and the draws, and everything that is said about a run
(warnings, summaries, the page, the command) comes from it. There are three verdicts:

    checked       the bias is known and within its budget, and nothing else speaks against the draws
    doubtful      there is a reason not to trust the draws
    not checked   no reason for doubt was found, but the bias is not known
"""

from __future__ import annotations

import dataclasses
import enum
import html
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
from jaxtyping import Array, Bool, Float

from .._core.arrays import HostDraws, Vector
from .._core.errors import Outcome
from .._core.statistics import (
    FEWEST_EFFECTIVE_DRAWS,
    FOURTH_MOMENT,
    HEAVY_TAIL,
    SECOND_MOMENT,
    Agreement,
    agreement,
    kurtosis,
    moments,
    pareto_k,
    tail_index,
)
from ..methods.abstract import Account, Bias
from ..models.posterior import AbstractPosterior

_HOW_TO_CHECK = (
    "the bias of step size and gradient noise was not measured. "
    "Use sample(..., measure_bias=True) or tallmc.check(posterior, method)."
)


_HEAVY = (
    "the tails of {} are heavy: draws cannot tell its sd, which may not exist. "
    "Read its quantiles, or use a prior with lighter tails."
)


class Verdict(enum.StrEnum):
    """What is known about the draws."""

    CHECKED = "checked"
    DOUBTFUL = "doubtful"
    NOT_CHECKED = "not checked"


_MEANING = {
    Verdict.CHECKED: "nothing speaks against these draws",
    Verdict.DOUBTFUL: "do not trust these draws",
    Verdict.NOT_CHECKED: "nothing is known about the bias of these draws",
}
_COLOURS = {
    Verdict.CHECKED: "#2c7a4b",
    Verdict.DOUBTFUL: "#b3401d",
    Verdict.NOT_CHECKED: "#8a6d1a",
}


@dataclasses.dataclass(frozen=True)
class RunReport:
    """What is known about the draws of a run; `str(report)` is text to read.

    **Arguments:**

    - `reasons`: what was chosen and why; empty for a method of your own.
    - `doubts`: reasons not to trust the draws, each with its cure.
    - `ess`: the fewest effective draws for the mean of a parameter, as in `Draws.summary`.
    - `rhat`: the largest R-hat, as in `Draws.summary`.
    - `mean_error`: error of the worst posterior mean, in posterior sds; None if unknown, as for a
        posterior that may have no variance.
    - `sd_error`: relative error of the worst posterior sd; None if unknown, as for a posterior that
        may have no fourth moment.
    - `inflation`: largest relative inflation of a variance by gradient noise, measured during the
        run.
    - `noise_tail`: Pareto's k of the squared gradient noise. Above 0.7 the mean of the squared
        noise, and every estimate derived from it, is unreliable.
    - `notes`: what to know about the posterior, such as a direction that the prior alone decides.
    - `unknown`: what is not known about the draws, with the cure; None if the bias is known.
    - `chains_agree`: whether chance explains every R-hat.
    - `fewest`: fewer effective draws than these raise a doubt.
    - `n_unread`: rows of an earlier fit that the check of an update has not read again.
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
    chains_agree: bool = True
    fewest: float = FEWEST_EFFECTIVE_DRAWS
    n_unread: int = 0

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
        if self.n_unread and self.verdict is Verdict.CHECKED:
            unread = f"the {self.n_unread:,} old rows were not read again"
            return f"{_MEANING[self.verdict]}, but {unread}: only the new ones were checked"
        return _MEANING[self.verdict]

    def _facts(self) -> list[str]:
        """The lines of the report between the choices and the verdict."""
        lines = []
        agreement = "" if np.isnan(self.rhat) else f"; R-hat at most {self.rhat:.3f}"
        if np.isfinite(self.ess):
            lines.append(f"effective draws: at least {self.ess:,.0f} per parameter{agreement}")
        if self.mean_error is not None:
            of_sds = "not known" if self.sd_error is None else f"within {self.sd_error:.1%}"
            lines.append(
                f"error: posterior means within {self.mean_error:.2g} sd, posterior sds {of_sds}"
            )
        if self.inflation is not None:
            lines.append(f"gradient noise: inflates variances by {self.inflation:.2%} at most")
        lines += [f"note: {note}" for note in self.notes]
        lines += [f"doubt: {doubt}" for doubt in self.doubts]
        return lines if self.unknown is None else [*lines, f"unknown: {self.unknown}"]

    def __str__(self) -> str:
        chosen = [f"chosen: {reason}" for reason in self.reasons]
        return "\n".join([*chosen, *self._facts(), f"verdict: {self.verdict}; {self.meaning}"])

    def _repr_html_(self) -> str:
        """The verdict first, the choices last and folded."""
        verdict = html.escape(f"verdict: {self.verdict}; {self.meaning}")
        folded = f"<details><summary>What was chosen</summary>{_items(self.reasons)}</details>"
        return (
            f'<div><p><b style="color:{_COLOURS[self.verdict]}">{verdict}</b></p>'
            f"{_items(self._facts())}{folded if self.reasons else ''}</div>"
        )


def _items(lines: Iterable[str]) -> str:
    items = "".join(f"<li>{html.escape(line)}</li>" for line in lines)
    return f"<ul>{items}</ul>" if items else ""


def make_report(
    draws: HostDraws,
    ok: Bool[np.ndarray, " chains"],
    sample_stats: Mapping[str, np.ndarray],
    account: Account,
    weight_efficiency: float = 1.0,
    agreed: Agreement | None = None,
    wanted: float | None = None,
    names: Callable[[], Sequence[str]] | None = None,
) -> RunReport:
    """Judge the draws, in the coordinates that users see.

    `ok` marks the chains that completed. `weight_efficiency` is the share of effective draws that
    remains because draws count differently. `agreed` is the agreement of the completed chains, if
    it is known. Fewer effective draws than `wanted` of them raise a doubt, if these are few.
    `names` returns the names of what is drawn.
    """
    complete = draws if ok.all() else draws[ok]
    ess, rhat, unknown = 0.0, np.nan, None
    mean_error = sd_error = tail = None
    notes, fewest = account.notes, min(FEWEST_EFFECTIVE_DRAWS, wanted or math.inf)
    if not len(complete) or complete.shape[1] < 4:
        doubts = ["there are too few draws for diagnostics. Run longer."]
    else:
        agreed = agreement(complete) if agreed is None else agreed
        agreed = agreed._replace(ess=weight_efficiency * agreed.ess)
        ess, rhat = weight_efficiency * float(agreed.bulk.min()), agreed.largest_rhat
        unknown = _what_is_unknown(account)
        if (account.exact and unknown is None) or account.bias is not None:
            mean_error, sd_error = _errors(account.bias, agreed, complete)
            worst, index = _heaviest(agreed, complete)
            if index > FOURTH_MOMENT:
                sd_error, notes = None, (*notes, _HEAVY.format(_name(worst, names)))
            if index > SECOND_MOMENT:
                mean_error = None
        tail = account.noise_tail
        if tail is None and "grad_noise" in sample_stats:
            tail = pareto_k(sample_stats["grad_noise"][ok].ravel())
        doubts = _convergence_doubts(agreed, fewest) + _bias_doubts(account, tail)
    return RunReport(
        reasons=account.reasons,
        doubts=(*account.doubts, *doubts),
        ess=ess,
        rhat=rhat,
        mean_error=mean_error,
        sd_error=sd_error,
        inflation=None if account.inflation is None else float(account.inflation.max()),
        noise_tail=tail,
        notes=notes,
        unknown=unknown,
        chains_agree=agreed is None or agreed.reached,
        fewest=fewest,
        n_unread=account.n_unread,
    )


def _name(place: int, names: Callable[[], Sequence[str]] | None) -> str:
    return f"parameter {place}" if names is None else names()[place]


def _convergence_doubts(agreed: Agreement, fewest: float) -> list[str]:
    doubts = []
    if not agreed.reached:
        doubts.append(
            f"R-hat is {agreed.rhat:.3f}, and chance explains at most {agreed.limit:.3f}: "
            "the chains do not agree yet. Run longer."
        )
    if agreed.ess.min() < fewest:
        # Tables have the effective draws for the mean.
        of_spread = "'s spread" if agreed.ess.min() < agreed.bulk.min() else ""
        doubts.append(
            f"only {agreed.ess.min():.0f} effective draws for the worst parameter{of_spread}. "
            "Run longer."
        )
    return doubts


def _bias_doubts(account: Account, tail: float | None) -> list[str]:
    """Doubts because of what step size and gradient noise were measured to do."""
    bias, budget, doubts = account.bias, account.budget, []
    # Raise a doubt only if the bias exceeds its budget by more than its standard errors explain.
    if bias is not None and bias.excess(budget, max(2.0, _typical_largest(len(bias.mean)))) > 1:
        doubts.append(
            "step size and gradient noise shift posterior means by "
            f"{np.abs(bias.mean).max():.2g} sd and posterior sds by {np.abs(bias.sd).max():.1%}. "
            "Make the step size smaller or the subsample larger."
        )
    inflation = None if account.inflation is None else account.inflation.max()
    if inflation is not None and inflation > 3 * budget.inflation:
        doubts.append(
            f"gradient noise inflated a variance by {inflation:.1%} during the run, "
            "more than the pilot runs predicted. "
            "Allow less inflation: Automatic(inflation=...)."
        )
    # Rare rows may make the noise a hundred times larger than it was measured.
    matters = inflation is None or 100 * inflation > budget.inflation
    if tail is not None and tail > HEAVY_TAIL and matters:
        doubts.append(
            f"the gradient noise has a heavy tail (k = {tail:.2f}): influential rows are rarely "
            "drawn. Allow less noise, for example with Automatic(inflation=0.002)."
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


def _errors(bias: Bias | None, agreed: Agreement, positions: HostDraws) -> tuple[float, float]:
    # The largest absolute value of d standard normal numbers is about √(2 log 2d). It exceeds this
    # by more than 1 about once in a hundred.
    monte_carlo = (_typical_largest(positions.shape[2]) + 1) / np.sqrt(agreed.ess)
    # An sd from n independent draws has the relative error √((κ − 1)/4n), with the kurtosis κ.
    fourth = np.array([kurtosis(draws) for draws in _examined(agreed, positions)])
    of_sd = np.max(monte_carlo * np.sqrt(np.maximum(fourth - 1, 1) / 4))
    if bias is None:
        return float(monte_carlo.max()), float(of_sd)
    mean = np.hypot(bias.mean, bias.mean_error).max() + monte_carlo.max()
    return float(mean), float(np.hypot(bias.sd, bias.sd_error).max() + of_sd)


def _heaviest(agreed: Agreement, positions: HostDraws) -> tuple[int, float]:
    """The examined parameter with the heaviest tails, and its tail index."""
    found = [
        tail_index(draws, ess)
        for draws, ess in zip(_examined(agreed, positions), agreed.ess, strict=True)
    ]
    worst = int(np.argmax(found))
    return int(agreed.parameters[worst]), found[worst]


def _examined(agreed: Agreement, positions: HostDraws) -> Iterator[Float[np.ndarray, " n"]]:
    return (positions[:, :, j].astype(np.float64).ravel() for j in agreed.parameters)


def _typical_largest(count: int) -> float:
    return float(np.sqrt(2 * np.log(2 * count)))


# Problems that R-hat and ESS do not detect, each with its cure. They become doubts of the account.

_LARGEST_SD_RATIO = 3.0
_LARGEST_GRAIN = 0.05
_LARGEST_UNCORRECTED_SHARE = 0.01
_LARGEST_POTENTIAL_ERROR = 0.1  # nats
_MOST_CHAINS_NAMED = 5
_USE_FLOAT64 = 'Use float64 (jax.config.update("jax_enable_x64", True) before making the posterior)'


def failure_doubts(outcomes: Sequence[Outcome], failed_at: np.ndarray) -> list[str]:
    """Which chains failed, and at which step."""
    found = []
    for outcome in sorted(set(outcomes) - {Outcome.OK}):
        failed = [chain for chain, of_chain in enumerate(outcomes) if of_chain is outcome]
        first = failed[:_MOST_CHAINS_NAMED]
        named = ", ".join(f"chain {chain} at step {failed_at[chain]}" for chain in first)
        more = f" and {len(failed) - len(first)} more" if len(failed) > len(first) else ""
        found.append(f"{len(failed)} of {len(outcomes)} chains {outcome.message} ({named}{more})")
    return found


def visible_doubts(
    positions: HostDraws,
    ok: Bool[np.ndarray, " chains"],
    sample_stats: Mapping[str, np.ndarray],
    account: Account | None,
    covariance: Array | np.ndarray | None,
    names: Callable[[], Sequence[str]] | None = None,
) -> list[str]:
    """Chains that never moved, draws that are too wide, uncorrected noise, coarse positions.

    `covariance` is that of the anchor's Gaussian. Draws far wider than it are no problem if their
    bias is known.
    """
    complete = positions if ok.all() else positions[ok]
    if complete.shape[1] < 2 or not len(complete):
        return []
    mean, sd, extent = moments(complete)
    stuck = np.flatnonzero(ok)[extent.max(axis=1) == 0]
    if len(stuck):
        named = ", ".join(str(chain) for chain in stuck[:_MOST_CHAINS_NAMED])
        return [
            f"{len(stuck)} of {len(ok)} chains never moved ({named}). "
            "Change the step size or the start."
        ]
    found = []
    bias_is_known = account is not None and (account.exact or account.bias is not None)
    if covariance is not None and not bias_is_known:
        ratio = sd / np.sqrt(np.diag(np.asarray(covariance, np.float64)))
        if ratio.max() > _LARGEST_SD_RATIO:
            found.append(
                f"the sd of {_name(int(np.argmax(ratio)), names)} is {ratio.max():.3g} times "
                "the sd from the curvature at the mode. Unless the posterior is far from Gaussian, "
                "the cause is gradient noise or an unstable step. "
                "Make the step size smaller or the subsample larger."
            )
    uncorrected = sample_stats.get("uncorrected_noise")
    if uncorrected is not None and np.mean(uncorrected[ok]) > _LARGEST_UNCORRECTED_SHARE:
        found.append(
            f"{np.mean(uncorrected[ok]):.0%} of the gradient noise "
            "was too large for the step to correct. "
            "Make the step size smaller or the subsample larger."
        )
    grain = np.finfo(positions.dtype).eps * np.abs(mean) / np.maximum(sd, np.finfo(float).tiny)
    if grain.max() > _LARGEST_GRAIN and (sd > 0).all():
        worst = _name(int(np.argmax(grain)), names)
        found.append(
            f"{positions.dtype} resolves only {1 / grain.max():.0f} values per sd "
            f"of {worst}, because its mean is large relative to its sd. "
            f"{_USE_FLOAT64}, or centre the data."
        )
    return found


def rounding_doubts(posterior: AbstractPosterior, position: Vector) -> list[str]:
    """Whether rounding errors in the potential could decide an accept step.

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


_MOST_ZEROS = 5
"""Behind the decimal point. Smaller numbers have an exponent, which is shorter."""
_FIXED = {"ess_bulk": ",.0f", "ess_tail": ",.0f", "rhat": ".3f", "z": "+.2f"}


def cell_text(column: str, value: float, sd: float) -> str:
    """Format diagnostics conventionally, other values to at least a hundredth of the sd."""
    if not math.isfinite(value):
        return "–"
    if column in _FIXED:
        return format(value, _FIXED[column])
    decimals = -1
    if 0 < sd < math.inf:
        decimals = 2 - math.floor(math.log10(sd)) + column.startswith("mcse_")
    if decimals > _MOST_ZEROS and 0 < abs(value) < 10.0**-_MOST_ZEROS:
        return format(value, f".{max(0, decimals + math.floor(math.log10(abs(value))))}e")
    return format(value, f".{decimals}f" if 0 <= decimals <= 9 else ".4g")
