"""Write docs/trust.md: real and reported errors of the default and of every named method.

`python -m benchmarks.trust` runs every method on six posteriors, with its suggested settings and
with a step ten times too large, and the default with three seeds. This takes two
hours on two cores; `--jobs` uses more of them, and `--methods sgld mala` runs some methods only and
prints their rows; `--posteriors` replaces the rows of some posteriors. All rows are in
docs/trust.csv; `--draw` writes the page from them.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import csv
import dataclasses
import functools
import multiprocessing
import re
import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import tallmc
from tallmc.models.priors import StudentTPrior
from tallmc.results.report import Verdict

from . import problems
from .report import stamp

DOCS, PAGE, TABLE = Path(__file__).resolve().parents[1] / "docs", "trust.md", "trust.csv"
_REFUSED = "refused"
STEPS = {"suggested": 1.0, "× 10": 10.0}
_N_ROWS = 10_000
_DRAWS = 1000


def gaussian() -> tallmc.models.AbstractPosterior:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(_N_ROWS, 5)) * [1.0, 1.0, 1.0, 0.5, 2.0]
    y = x @ np.ones(5) + rng.normal(size=_N_ROWS)
    return tallmc.models.linear_regression(x, y, prior_variance=10.0, noise_variance=1.0)


def logistic() -> tallmc.models.AbstractPosterior:
    rng = np.random.default_rng(2)
    x = np.c_[np.ones(_N_ROWS), rng.normal(size=(_N_ROWS, 4))]
    y = rng.random(_N_ROWS) < 1 / (1 + np.exp(-x @ [0.5, 1.0, -1.0, 0.5, 0.0]))
    return tallmc.models.logistic_regression(x, y, prior_variance=10.0)


def covertype_subset() -> tallmc.models.AbstractPosterior:
    """Class 2 against the others, from the ten numeric columns."""
    x, y = (values[:_N_ROWS] for values in problems.covertype_rows())
    return tallmc.models.logistic_regression(x[:, :11], y == 2, prior_variance=10.0)


def skewed() -> tallmc.models.AbstractPosterior:
    """A logistic regression with about thirty positive responses."""
    rng = np.random.default_rng(3)
    x = np.c_[np.ones(_N_ROWS), rng.normal(size=(_N_ROWS, 2))]
    y = rng.random(_N_ROWS) < 1 / (1 + np.exp(6.2 - x @ [0.0, 1.0, 0.0]))
    return tallmc.models.logistic_regression(x, y, prior_variance=10.0)


def rare_event() -> tallmc.models.AbstractPosterior:
    """One event of 20,000: the posterior of the intercept is that of a logarithm of a gamma."""
    y = np.zeros(2 * _N_ROWS)
    y[1234] = 1
    return tallmc.models.logistic_regression(np.ones((len(y), 1)), y, prior_variance=100.0)


def cauchy_prior() -> tallmc.models.AbstractPosterior:
    """A column that is not zero in five rows, which bound its coefficient weakly from above."""
    rng = np.random.default_rng(4)
    x = np.c_[np.ones(_N_ROWS), np.zeros(_N_ROWS)]
    y = rng.random(_N_ROWS) < 0.5
    x[:5, 1], y[:5] = [1.0, 1.0, 1.0, 1.0, 0.3], [True, True, True, True, False]
    posterior = tallmc.models.logistic_regression(x, y, prior_variance=1.0)
    scale, one, zero = (jnp.asarray(value, posterior.dtype) for value in (2.5, 1.0, 0.0))
    prior = StudentTPrior(scale, one, zero)
    return eqx.tree_at(lambda of: of.model.prior, posterior, prior)


POSTERIORS = {
    "Gaussian": gaussian,
    "logistic": logistic,
    "covertype, 10,000 rows": covertype_subset,
    "skewed": skewed,
    "rare event": rare_event,
    "Cauchy prior": cauchy_prior,
}
DEFAULT, SEEDS = "the default", ("seed 0", "seed 1", "seed 2")


@functools.cache
def problem(name: str) -> tuple[tallmc.models.AbstractPosterior, tallmc.anchor.Anchor]:
    posterior = POSTERIORS[name]()
    return posterior, tallmc.anchor.find_anchor(posterior)


class Moments(NamedTuple):
    mean: np.ndarray
    sd: np.ndarray


def true_moments(name: str) -> Moments:
    """Exactly for the Gaussian, by quadrature in one or two dimensions, else by NUTS."""
    posterior, anchor = problem(name)
    if name == "Gaussian":
        assert anchor.covariance is not None
        sd = np.sqrt(np.diag(np.asarray(anchor.covariance, float)))
        return Moments(np.asarray(anchor.position, float), sd)
    if posterior.dim <= 2:
        return _by_quadrature(posterior, anchor)
    found = tallmc.reference.nuts(posterior, chains=8, n_draws=2000, anchor=anchor).positions
    return Moments(found.mean(axis=(0, 1)), found.std(axis=(0, 1)))


def _by_quadrature(posterior: Any, anchor: tallmc.anchor.Anchor) -> Moments:
    """Of a logistic regression, with nodes that reach 75 standard deviations from the mode."""
    assert anchor.covariance is not None
    mode, sd = np.asarray(anchor.position, float), np.sqrt(np.diag(anchor.covariance))
    t = np.linspace(-5.0, 5.0, 801)
    grid = [axis.ravel() for axis in np.meshgrid(*[t] * posterior.dim, indexing="ij")]
    nodes = mode + sd * np.sinh(np.stack(grid, axis=1))
    log_density = -np.asarray(jax.vmap(posterior.model.prior.potential)(nodes), float)
    table = np.c_[np.asarray(posterior.data.x, float), np.asarray(posterior.data.y, float)]
    for (*x, y), count in zip(*np.unique(table, axis=0, return_counts=True), strict=True):
        log_density -= count * np.logaddexp(0, (1 - 2 * y) * (nodes @ x))
    weights = np.exp(log_density - log_density.max()) * np.prod(np.cosh(grid), axis=0)
    weights /= weights.sum()
    mean = weights @ nodes
    return Moments(mean, np.sqrt(weights @ (nodes - mean) ** 2))


class Row(NamedTuple):
    """One line of the table."""

    posterior: str
    method: str
    step: str
    mean: float
    sd: float
    reported_mean: float | None
    reported_sd: float | None
    verdict: str
    why: str
    seconds: float

    @property
    def ratios(self) -> list[float]:
        """Real errors relative to the reported ones; nothing reported is no claim."""
        errors = ((self.mean, self.reported_mean), (self.sd, self.reported_sd))
        return [real / reported for real, reported in errors if reported is not None]

    @property
    def covered(self) -> bool:
        return all(ratio <= 2 for ratio in self.ratios)


def run_case(case: tuple[str, str, str], true: Moments) -> Row | None:
    """Run one method on one posterior; None if the method does not fit the posterior."""
    name, method, step = case
    posterior, anchor = problem(name)
    began = time.perf_counter()
    if method == DEFAULT:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", tallmc.SamplingWarning)
            draws = tallmc.sample(posterior, seed=SEEDS.index(step))
        return _row(case, draws, true, began)
    try:
        suggested = tallmc.suggest(posterior, method, anchor=anchor)
        chosen: Any = suggested.method
        if step != "suggested":
            schedule, factor = chosen.step_size, STEPS[step]
            larger = (
                factor * schedule
                if isinstance(schedule, float)
                else dataclasses.replace(schedule, step_size=factor * schedule.step_size)
            )
            chosen = dataclasses.replace(chosen, step_size=larger)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", tallmc.SamplingWarning)
            draws = tallmc.sample(
                posterior,
                chosen,
                n_draws=_DRAWS,
                thin=suggested.thin,
                anchor=anchor if chosen.needs > 0 else None,
                start=np.asarray(anchor.position),
                burn_in=_DRAWS // 5 * suggested.thin,
                measure_bias=True,
            )
    except (tallmc.InvalidInput, tallmc.PreparationError) as error:
        if "FlyMC" in str(error):
            return None
        seconds = time.perf_counter() - began
        return Row(*case, np.nan, np.nan, None, None, _REFUSED, str(error), seconds)
    return _row(case, draws, true, began)


def _row(case: tuple[str, str, str], draws: tallmc.Draws, true: Moments, began: float) -> Row:
    report, found = draws.report, draws.positions[draws.ok].astype(float)
    errors = (np.nan, np.nan)
    if len(found):
        errors = (
            float((np.abs(found.mean(axis=(0, 1)) - true.mean) / true.sd).max()),
            float(np.abs(found.std(axis=(0, 1)) / true.sd - 1).max()),
        )
    why = report.unknown if report.verdict is Verdict.NOT_CHECKED else " ".join(report.doubts)
    reported = report.mean_error, report.sd_error
    seconds = time.perf_counter() - began
    return Row(*case, *errors, *reported, str(report.verdict), why or "", seconds)


def page(rows: list[Row], measured: str) -> str:
    """The text of docs/trust.md."""
    checked = [row for row in rows if row.verdict == Verdict.CHECKED]
    larger = [row for row in checked if not row.covered]
    largest = max(ratio for row in checked for ratio in row.ratios)
    lines = [
        "# Can the verdict be trusted?",
        "",
        f"Of {len(rows)} runs {len(checked)} were called *checked*. The largest real error of "
        f"these is {largest:.2f} times the reported one; {len(larger)} exceed twice the reported "
        "one.",
        "",
        "![Real against reported errors of all runs](images/trust.svg)",
        "",
        "The runs are the default with three seeds, and every named method with the settings of "
        "`tallmc.suggest` and with a step ten times as large, on six posteriors: "
        f"4 chains of {_DRAWS:,} draws, `measure_bias=True`. Real errors are against exact "
        "moments of the Gaussian, quadrature of the two posteriors with one or two parameters and "
        "NUTS on all rows of the others, of the worst parameter: means in posterior standard "
        "deviations, standard deviations relative. Monte-Carlo error is part of both. "
        "[trust.csv](trust.csv) has every run with its numbers and its doubts. Written by "
        "`python -m benchmarks.trust`.",
        "",
        measured,
        "",
        "## The default",
        "",
        "| posterior | seed | mean: real | reported | sd: real | reported | verdict | why |",
        "| --- | --- | ---: | ---: | ---: | ---: | --- | --- |",
        *(_line(row, row.posterior, row.step[-1]) for row in rows if row.method == DEFAULT),
        "",
        "## Every method",
        "",
        "Runs of twelve, fewer where a method does not apply to a posterior. The last column is "
        "the largest real error of the checked ones relative to what they reported.",
        "",
        "| method | checked | doubtful | refused | real / reported |",
        "| --- | ---: | ---: | ---: | ---: |",
        *(
            _counts(name, rows)
            for name in dict.fromkeys(r.method for r in rows if r.method != DEFAULT)
        ),
        "",
        "A method whose gradient noise allows only small steps makes few effective draws in a run "
        "of this length. Its verdict is then doubtful although its errors may be small; the "
        "default method or control variates are the cure.",
        "",
    ]
    return "\n".join(lines)


def _line(row: Row, *first: str) -> str:
    errors = (row.mean, row.reported_mean, row.sd, row.reported_sd)
    numbers = ["–" if value is None or np.isnan(value) else f"{value:.3g}" for value in errors]
    why = row.why.split(". ")[0].rstrip(".")
    return f"| {' | '.join([*first, *numbers, row.verdict, why])} |"


def _counts(method: str, rows: list[Row]) -> str:
    own = [row for row in rows if row.method == method]
    checked = [row for row in own if row.verdict == Verdict.CHECKED]
    refused = sum(row.verdict == _REFUSED for row in own)
    ratio = max((ratio for row in checked for ratio in row.ratios), default=None)
    numbers = (len(checked), len(own) - len(checked) - refused, refused)
    last = "" if ratio is None else f"{ratio:.2f}"
    return f"| {method} | {' | '.join(map(str, numbers))} | {last} |"


def draw(rows: list[Row], image: Path) -> None:
    """Real against reported errors, of the runs that report any."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    grey = "#808080"  # readable on white and on black
    style: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "trust", "font.size": 9}
    style |= dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor"), grey)
    style |= dict.fromkeys(("xtick.color", "ytick.color"), grey)
    with plt.rc_context(style):
        figure, axes = plt.subplots(figsize=(5.6, 4.4))
        for is_checked, colour, word in (
            (False, "#b0b0b0", "doubtful"),
            (True, "#c23b3b", "checked"),
        ):
            some = [row for row in rows if (row.verdict == Verdict.CHECKED) is is_checked]
            for kind, mark in (("mean", "o"), ("sd", "x")):
                pairs = [
                    (getattr(row, f"reported_{kind}"), getattr(row, kind))
                    for row in some
                    if getattr(row, f"reported_{kind}") is not None
                ]
                label = f"{kind}s, {word}"
                axes.plot(*zip(*pairs, strict=True), mark, markersize=4, color=colour, label=label)
        low, high = 3e-3, 10.0
        axes.plot([low, high], [low, high], color=grey, linewidth=0.8)
        axes.annotate("real = reported", (2.2, 3.2), rotation=38, ha="center", fontsize=8)
        axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high))
        axes.set(xlabel="reported error", ylabel="real error")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=8, loc="lower right")
        figure.tight_layout()
        figure.savefig(image, metadata={"Date": None}, transparent=True)
        plt.close(figure)


def write(rows: list[Row], measured: str, docs: Path) -> None:
    """The table, the picture and the page."""
    with (docs / TABLE).open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(Row._fields)
        table.writerows(
            [f"{value:.3g}" if isinstance(value, float) else value for value in row] for row in rows
        )
    draw(rows, docs / "images" / "trust.svg")
    (docs / PAGE).write_text(page(rows, measured))


def read(docs: Path) -> tuple[list[Row], str]:
    """The rows of the table, and the line of the page that says when they were measured."""

    def number(text: str) -> float | None:
        return float(text) if text else None

    with (docs / TABLE).open(newline="", encoding="utf-8") as file:
        rows = [
            Row(
                posterior=cells["posterior"],
                method=cells["method"],
                step=cells["step"],
                mean=float(cells["mean"]),
                sd=float(cells["sd"]),
                reported_mean=number(cells["reported_mean"]),
                reported_sd=number(cells["reported_sd"]),
                verdict=cells["verdict"],
                why=cells["why"],
                seconds=float(cells["seconds"]),
            )
            for cells in csv.DictReader(file)
        ]
    measured = re.search(r"^Measured on .*$", (docs / PAGE).read_text(), re.MULTILINE)
    assert measured is not None
    return rows, measured[0]


def main() -> None:
    """Run the cases in processes, print each, and write the page if all methods ran."""
    parser = argparse.ArgumentParser(description=__doc__)
    every = [DEFAULT, *tallmc.methods.METHODS]
    parser.add_argument("--methods", nargs="*", default=every)
    parser.add_argument("--posteriors", nargs="*", default=list(POSTERIORS))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--docs", type=Path, default=DOCS)
    parser.add_argument("--draw", action="store_true", help="write the page from its table")
    options = parser.parse_args()
    if options.draw:
        write(*read(options.docs), options.docs)
        return
    cases = [
        (posterior, method, step)
        for posterior in options.posteriors
        for method in options.methods
        for step in (SEEDS if method == DEFAULT else STEPS)
    ]
    rows = []
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(options.jobs, mp_context=context) as pool:
        true = dict(
            zip(options.posteriors, pool.map(true_moments, options.posteriors), strict=True)
        )
        for row in pool.map(run_case, cases, [true[name] for name, *_ in cases]):
            if row is not None:
                rows.append(row)
                words = _line(row, row.posterior, row.method, row.step)
                print(f"{words} {row.seconds:.0f} s", flush=True)
    if options.methods != every:
        return
    measured = stamp()
    if options.posteriors != list(POSTERIORS):
        old, when = read(options.docs)
        rows += [row for row in old if row.posterior not in options.posteriors]
        measured = f"{when.split(' Again:')[0]} Again: {', '.join(options.posteriors)}. {measured}"
    rows.sort(key=lambda row: list(POSTERIORS).index(row.posterior))
    write(rows, measured, options.docs)


if __name__ == "__main__":
    main()
