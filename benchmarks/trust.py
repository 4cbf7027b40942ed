"""Write docs/trust.md: real and reported errors of the default and of every named method.

`python -m benchmarks.trust` runs every method on six posteriors, with its suggested settings and
with a step ten times too large, and the default with three seeds. `--methods sgld mala` runs some
methods only and prints their rows; `--posteriors` replaces the rows of some posteriors. All rows
are in docs/trust.csv; `--draw` writes the page from them.

Every case has a process and a core of its own, and ends after `--limit` seconds with the draws so
far. The command begins with the time at which it will have ended. It keeps references and results
in a folder of `--folder` that is named after the sources and the limit. After an interruption, the
same command continues there.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import csv
import dataclasses
import datetime
import hashlib
import itertools
import json
import math
import os
import re
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # processes of one core cannot share a GPU

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import tallmc
from tallmc._core.supervision import Clock, TimeIsUp, supervised
from tallmc._engine.run import Progress
from tallmc.models.priors import StudentTPrior
from tallmc.results.report import Verdict

from . import problems
from .report import stamp

ROOT = Path(__file__).resolve().parents[1]
DOCS, PAGE, TABLE = ROOT / "docs", "trust.md", "trust.csv"
_REFUSED, _STOPPED = "refused", "stopped"
_LIMIT = 60.0
# Beyond its limit, for the start of the process, the data and the mode, and for a compilation or a
# pass that the limit does not interrupt. Then the process is killed.
_GRACE = 30.0
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
Case = tuple[str, str, str]
"""The names of the posterior and the method, and the step or the seed."""


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


def run_case(case: Case, true: Moments, limit: float) -> Row | None:
    """Run one method on one posterior; None if the method does not fit the posterior."""
    name, method, step = case
    posterior, anchor = problem(name)
    clock = Clock()  # of the search for settings and of the run
    try:
        with supervised(clock, limit, lambda stage, seconds: print(stage, flush=True)):
            chosen, settings = _chosen(posterior, anchor, method, step)
        with supervised(clock), warnings.catch_warnings():
            warnings.simplefilter("ignore", tallmc.SamplingWarning)
            draws = tallmc.sample(posterior, chosen, **settings, max_seconds=limit, callback=_say)
    except TimeIsUp as error:
        return _without_draws(case, _STOPPED, str(error), clock.seconds)
    except (tallmc.InvalidInput, tallmc.PreparationError) as error:
        if "FlyMC" in str(error):
            return None
        return _without_draws(case, _REFUSED, str(error), clock.seconds)
    return _row(case, draws, true, clock.seconds, limit)


def _say(now: Progress) -> None:
    """Print for the process that may have to kill this one."""
    steps = "" if now.is_preparing else f", step {now.step:,} of {now.n_steps:,}"
    print(f"{now.stage}{steps}", flush=True)


def _chosen(
    posterior: Any, anchor: tallmc.anchor.Anchor, method: str, step: str
) -> tuple[Any, dict[str, Any]]:
    """The method with its settings, None for the default, and the other arguments of `sample`."""
    if method == DEFAULT:
        return None, {"seed": SEEDS.index(step)}
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
    return chosen, {
        "n_draws": _DRAWS,
        "thin": suggested.thin,
        "anchor": anchor if chosen.needs > 0 else None,
        "start": np.asarray(anchor.position),
        "burn_in": _DRAWS // 5 * suggested.thin,
        "measure_bias": True,
    }


def _without_draws(case: Case, verdict: str, why: str, seconds: float) -> Row:
    return Row(*case, np.nan, np.nan, None, None, verdict, why, seconds)


def _row(case: Case, draws: tallmc.Draws, true: Moments, seconds: float, limit: float) -> Row:
    report, found = draws.report, draws.positions[draws.ok].astype(float)
    errors = (np.nan, np.nan)
    if found.size:
        errors = (
            float((np.abs(found.mean(axis=(0, 1)) - true.mean) / true.sd).max()),
            float(np.abs(found.std(axis=(0, 1)) / true.sd - 1).max()),
        )
    unchecked = report.verdict is Verdict.NOT_CHECKED
    why = (report.unknown if unchecked else " ".join(report.doubts)) or ""
    verdict = str(report.verdict)
    if draws.stopped_by is not None:
        verdict, why = _STOPPED, f"stopped after {found.shape[1]:,} draws per chain. {why}"
    elif unchecked and seconds >= limit:  # all draws, but no time to measure the bias
        verdict = _STOPPED
    return Row(*case, *errors, report.mean_error, report.sd_error, verdict, why, seconds)


def version() -> str:
    """A name for the sources that decide what a run finds."""
    sources = [Path(__file__), *sorted(Path(tallmc.__file__).parent.rglob("*.py"))]
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:12]


@dataclasses.dataclass
class Results:
    """A folder of references and rows, one JSON file each."""

    folder: Path
    limit: float
    """Seconds per case."""

    def path(self, *names: str) -> Path:
        """The file of a reference (one name) or of a row (a case)."""
        return self.folder / (re.sub(r"\W+", "-", " ".join(names)) + ".json")

    def _write(self, path: Path, content: Any) -> None:
        unfinished = path.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
        unfinished.replace(path)

    def make_reference(self, name: str) -> None:
        mean, sd = true_moments(name)
        self._write(self.path(name), {"mean": mean.tolist(), "sd": sd.tolist()})

    def make_row(self, case: Case) -> None:
        reference = json.loads(self.path(case[0]).read_text())
        true = Moments(np.array(reference["mean"]), np.array(reference["sd"]))
        self._keep(case, run_case(case, true, self.limit))

    def _keep(self, case: Case, row: Row | None) -> None:
        self._write(self.path(*case), None if row is None else row._asdict())

    def row(self, case: Case) -> Row | None:
        """The row of a case; None if the method does not fit the posterior."""
        kept = json.loads(self.path(*case).read_text())
        return None if kept is None else Row(**kept)

    def make_reference_in_process(self, name: str) -> None:
        self._run((name,), None)

    def make_row_in_process(self, case: Case) -> None:
        """Make a row; a process that does not end by its limit is killed, and the row says so."""
        most = self.limit + _GRACE
        try:
            self._run(case, most)
        except subprocess.TimeoutExpired as error:
            said = (error.stdout or b"").decode().splitlines() or ["starting"]
            why = f"killed after {most:g} seconds; last stage: {said[-1]}"
            if not self.path(*case).exists():  # killed after its last act
                self._keep(case, _without_draws(case, _STOPPED, why, most))

    def _run(self, names: tuple[str, ...], most: float | None) -> None:
        options = ["--folder", str(self.folder), "--limit", str(self.limit)]
        command = [sys.executable, "-m", "benchmarks.trust", *options, "--make", *names]
        subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, timeout=most, check=True)


def make_all(results: Results, cases: list[Case], jobs: int) -> None:
    """Make the references and rows that are missing, in processes of one core each."""
    posteriors = [name for name in POSTERIORS if name in {case[0] for case in cases}]
    references = [name for name in posteriors if not results.path(name).exists()]
    missing = [case for case in cases if not results.path(*case).exists()]
    most = math.ceil(len(missing) / jobs) * (results.limit + _GRACE)
    cores = itertools.cycle(sorted(os.sched_getaffinity(0)))
    # A process inherits the cores of the thread that starts it, and XLA, BLAS and tallmc start as
    # many threads as the process has cores.
    pool = concurrent.futures.ThreadPoolExecutor(
        jobs, initializer=lambda: os.sched_setaffinity(0, {next(cores)})
    )
    try:
        print(f"{len(references)} of {len(posteriors)} references to make", flush=True)
        list(pool.map(results.make_reference_in_process, references))
        end = datetime.datetime.now() + datetime.timedelta(seconds=most)
        print(
            f"{len(missing)} of {len(cases)} cases to run, {jobs} at a time, at most "
            f"{results.limit:g} s each and {_GRACE:g} s around it: ends by {end:%d %B, %H:%M}",
            flush=True,
        )
        running = {pool.submit(results.make_row_in_process, case): case for case in missing}
        for number, done in enumerate(concurrent.futures.as_completed(running), 1):
            case = running[done]
            words = " | ".join(case)
            if done.exception() is not None:
                words += " | failed"
            elif (row := results.row(case)) is None:
                words += " | does not apply"
            else:
                words = f"{_line(row, *case)} {row.seconds:.0f} s"
            print(f"{number}/{len(missing)} {words}", flush=True)
        for done in running:  # the first failure, once all others are kept
            done.result()
    finally:
        pool.shutdown(cancel_futures=True)


def page(rows: list[Row], measured: str) -> str:
    """The text of docs/trust.md."""
    checked = [row for row in rows if row.verdict == Verdict.CHECKED]
    larger = [row for row in checked if not row.covered]
    largest = max(ratio for row in checked for ratio in row.ratios)
    default = [row for row in rows if row.method == DEFAULT]
    explained = any(row.why for row in default)
    lines = [
        "# Can the verdict be trusted?",
        "",
        f"Of {len(rows)} runs {len(checked)} were called *checked*. The largest real error of "
        f"these is {largest:.2f} times the reported one"
        + f"; {len(larger)} exceed twice the reported one" * bool(larger)
        + ".",
        "",
        "![Real against reported errors of all runs](images/trust.svg)",
        "",
        "The runs are the default with three seeds, and every named method with the settings of "
        "`tallmc.suggest` and with a step ten times as large, on six posteriors: "
        f"4 chains of {_DRAWS:,} draws, `measure_bias=True`. Real errors are against exact "
        "moments of the Gaussian, quadrature of the two posteriors with one or two parameters and "
        "NUTS on all rows of the others, of the worst parameter: means in posterior standard "
        "deviations, standard deviations relative. Monte-Carlo error is part of both. A run that "
        "its time limit ended is called *stopped*, whatever its draws are worth. "
        "[trust.csv](trust.csv) has every run with its numbers and its doubts. Written by "
        "`python -m benchmarks.trust`.",
        "",
        measured,
        "",
        "## The default",
        "",
        "| posterior | seed | mean: real | reported | sd: real | reported | verdict |"
        + " why |" * explained,
        "| --- | --- | ---: | ---: | ---: | ---: | --- |" + " --- |" * explained,
        *(_line(row, row.posterior, row.step[-1]) for row in default),
        "",
        "## Every method",
        "",
        "Runs of twelve, fewer where a method does not apply to a posterior. The last column is "
        "the largest real error of the checked ones relative to what they reported.",
        "",
        "| method | checked | doubtful | stopped | refused | real / reported |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
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
    why = [row.why.split(". ")[0].rstrip(".")] if row.why else []
    return f"| {' | '.join([*first, *numbers, row.verdict, *why])} |"


def _counts(method: str, rows: list[Row]) -> str:
    own = [row for row in rows if row.method == method]
    checked = [row for row in own if row.verdict == Verdict.CHECKED]
    stopped, refused = (sum(row.verdict == of for row in own) for of in (_STOPPED, _REFUSED))
    ratio = max((ratio for row in checked for ratio in row.ratios), default=None)
    doubtful = len(own) - len(checked) - stopped - refused
    numbers = (len(checked), doubtful, stopped, refused)
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
            (False, "#b0b0b0", "others"),
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
    """Make what is missing, and write the page if all methods ran."""
    parser = argparse.ArgumentParser(description=__doc__)
    every = [DEFAULT, *tallmc.methods.METHODS]
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--methods", nargs="*", default=every)
    parser.add_argument("--posteriors", nargs="*", default=list(POSTERIORS))
    parser.add_argument("--jobs", type=int, default=cores, help="processes at a time")
    parser.add_argument("--limit", type=float, default=_LIMIT, help="seconds per case")
    parser.add_argument("--folder", type=Path, default=ROOT / ".bench" / "trust")
    parser.add_argument("--docs", type=Path, default=DOCS)
    parser.add_argument("--draw", action="store_true", help="write the page from its table")
    parser.add_argument("--make", nargs="*", help="one reference or row, in this process")
    options = parser.parse_args()
    if options.draw:
        write(*read(options.docs), options.docs)
        return
    if options.make:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C would make a row of the draws so far
        results = Results(options.folder, options.limit)
        name, *rest = options.make
        results.make_row((name, *rest)) if rest else results.make_reference(name)
        return
    cases = [
        (posterior, method, step)
        for posterior in options.posteriors
        for method in options.methods
        for step in (SEEDS if method == DEFAULT else STEPS)
    ]
    folder = options.folder.resolve() / f"{version()}-{options.limit:g}s"
    folder.mkdir(parents=True, exist_ok=True)
    results = Results(folder, options.limit)
    make_all(results, cases, options.jobs)
    if options.methods != every:
        return
    rows = [row for case in cases if (row := results.row(case)) is not None]
    measured = f"{stamp()} Every run had one core and at most {options.limit:g} seconds."
    if options.posteriors != list(POSTERIORS):
        old, when = read(options.docs)
        rows += [row for row in old if row.posterior not in options.posteriors]
        measured = f"{when.split(' Again:')[0]} Again: {', '.join(options.posteriors)}. {measured}"
    rows.sort(key=lambda row: list(POSTERIORS).index(row.posterior))
    write(rows, measured, options.docs)


if __name__ == "__main__":
    main()
