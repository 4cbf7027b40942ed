"""The HTML page: sections from the verdict to the settings. All text from the run is escaped."""

from __future__ import annotations

import html
import importlib.resources
import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .._core.errors import InvalidInput, counted
from .._core.statistics import diagnostics, moments, quantiles, weight_efficiency
from .._fit.prior_predictive import PriorPredictive
from .._store.files import StoreError, blaming
from .._store.reader import open_store
from .._store.setup import fingerprint, same_posterior
from ..models.posterior import AbstractPosterior
from ..results.report import cell_text
from . import plots
from .content import Content, PredictiveCheck, make_content
from .plots import Chart, predictive_charts, shown

_MOST_ROWS = 200
_MARGINALS = "All chains combined; the central 90 % is shaded."
_SMOOTHS = "Posterior means with pointwise 90 % intervals, in the units of the predictor."
_CHECK = "Responses of the data against responses simulated from the draws."
_PRIOR_TAILS = 0.05
"""Weak priors have tails so long that nothing else would be seen in a picture of all of them."""
_LARGEST_RHAT = 1.01
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
"""Content security policy: the page fetches nothing."""


def write_report(
    store: str | os.PathLike[str] | Any,
    out: str | os.PathLike[str],
    *,
    posterior: AbstractPosterior | None = None,
    parameters: Sequence[str] | None = None,
) -> None:
    """Write an HTML report about a stored run.

    **Arguments:**

    - `store`: the store of the run.
    - `out`: the file to write.
    - `posterior`: the posterior of the run. If given, the report has the kernel Stein discrepancy,
      the gradient noise of methods that do not measure it, and a posterior predictive check.
    - `parameters`: names of the parameters whose traces, marginals and pairs are plotted. Defaults
      to the first six.
    """
    opened = open_store(store)
    if posterior is not None and not same_posterior(
        fingerprint(posterior), opened.setup.content["posterior"]
    ):
        rule = "be reported with the posterior it was started with"
        raise StoreError(opened.path, rule, "another")
    with blaming(opened.path, "describe the run"):
        page = render(make_content(opened, posterior, parameters))
    _write(page, out)


def write_prior_predictive(found: PriorPredictive, out: str | os.PathLike[str]) -> None:
    """Write a picture of responses simulated from priors beside those of the data.

    **Arguments:**

    - `found`: what `tallmc.diagnose.prior_predictive` returned.
    - `out`: the HTML file to write.
    """
    if not isinstance(found, PriorPredictive):
        cure = "Pass what tallmc.diagnose.prior_predictive returned."
        raise InvalidInput("found", "be a PriorPredictive", type(found).__name__, cure)
    n_draws, n_rows = found.simulated.shape
    heading = f"Prior predictive check of {found.response}"
    body = (
        f"<header><h1>{_text(heading)}</h1><p>{counted(n_draws, 'draw')} from the priors, "
        f"{counted(n_rows, 'row')}</p></header><section>"
        f"{_grid([prior_chart(found)])}{_facts({'prior': found.prior})}</section>"
    )
    _write(_page(heading, body), out)


def prior_chart(found: PriorPredictive) -> str:
    """The chart of responses."""
    observed = np.zeros(0) if found.observed is None else found.observed
    simulated = found.simulated.astype(np.float64)
    check = PredictiveCheck(observed, simulated, None, found.response, found.classes)
    return plots.response_chart(check, tails=_PRIOR_TAILS)


def _write(page: str, out: str | os.PathLike[str]) -> None:
    try:
        Path(out).write_text(page, encoding="utf-8")
    except OSError as error:
        found = f"{out}: {error.strerror}"
        raise InvalidInput("--out", "be a file that can be written", found) from None


def render(content: Content) -> str:
    charts, hover = plots.traces(content)
    sections = [
        ("Posterior", _table(content), "Computed from the chains that completed."),
        ("Traces", _grid(charts), "One line per chain. Point at a line to see its values."),
        ("Marginals", _grid(plots.marginals(content)), _MARGINALS),
        ("Smooth terms", _grid(plots.smooth_charts(content.smooths)), _SMOOTHS),
        ("Pairs", _grid(plots.pairs(content)), "Draws of pairs of parameters, one per point."),
        ("Posterior predictive check", _grid(predictive_charts(content.check)), _CHECK),
        ("Rows, noise and discrepancy", _grid(_row_cards(content)), ""),
        ("Time", plots.time_split(content), ""),
        ("What was run", _facts(what_was_run(content)), ""),
    ]
    body = _head(content) + _verdict(content) + _tiles(content)
    body += "".join(
        f"<section><h2>{heading}</h2>{f'<p>{note}</p>' if note else ''}{part}</section>"
        for heading, part, note in sections
        if part
    )
    data = json.dumps(hover, allow_nan=False).replace("<", "\\u003c")
    script = f'<script type="application/json" id="hover">{data}</script>'
    script += f"<script>{_asset('page.js')}</script>"
    return _page(content.opened.path.name, body, script)


def _page(title: str, body: str, script: str = "") -> str:
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f"<title>{_text(f'tallmc: {title}')}</title><style>{_asset('page.css')}</style></head>"
        f"<body><main>{body}</main>{script}</body></html>\n"
    )


def what_was_run(content: Content) -> dict[str, Any]:
    """Settings and costs of the run, by name."""
    setup, draws = content.opened.setup.content, content.draws
    chains, n_draws, d = draws.positions.shape
    about = {
        key: value for key, value in setup["about"].items() if not isinstance(value, (dict, list))
    }
    environment = setup["environment"]
    # JAX calls both the platform and the kind of device of a CPU "cpu".
    environment = {**environment, "device": " ".join(dict.fromkeys(environment["device"].split()))}
    return {
        "method": setup["method_shown"],
        "settings": draws.settings["method"],
        **{
            f"choice {number}": reason
            for number, reason in enumerate(draws.report.reasons, start=1)
        },
        "chains and draws": f"{counted(chains, 'chain')} of {counted(n_draws, 'draw')} each",
        "burn-in and thinning": f"{counted(setup['burn_in'], 'step')} of burn-in; "
        f"steps per draw: {setup['thin']:,}",
        "data": f"{counted(setup['n_rows'], 'row')}, {counted(d, 'parameter')}, {setup['dtype']}",
        **setup["description"],
        **about,
        "data fingerprint": setup["posterior"]["sha256"][:16],
        "seed": setup["seed"],
        "started": setup["started"],
        **environment,
        "rows touched": f"{draws.n_row_evals:,}, or {draws.n_row_evals / setup['n_rows']:.3g} "
        "passes over the data, including "
        f"{draws.n_row_evals_preparation / setup['n_rows']:.3g} for preparation",
        "outcomes": ", ".join(
            f"{count} {outcome.name.lower().replace('_', ' ')}"
            for outcome, count in Counter(draws.outcomes).items()
        ),
    }


def _head(content: Content) -> str:
    chains, n_draws, d = content.draws.positions.shape
    n_rows = content.opened.setup.content["n_rows"]
    state = "" if content.opened.manifest.finished else " (run not finished)"
    return (
        f"<header><h1>{_text(content.opened.path.name)}</h1><p>{counted(d, 'parameter')}, "
        f"{counted(n_rows, 'row')}, {counted(chains, 'chain')} of {counted(n_draws, 'draw')} each"
        f"{state}</p></header>"
    )


def _verdict(content: Content) -> str:
    report = content.draws.report
    if not content.warnings:
        unknown = "" if report.unknown is None else f"<p>{_text(report.unknown)}</p>"
        kind = "verdict" if report.trusted else "verdict doubtful"
        said = f"{str(report.verdict).capitalize()}: {report.meaning}."
        return f'<div class="{kind}"><b>{said}</b>{unknown}</div>'
    items = "".join(f"<li>{_text(message)}</li>" for message in content.warnings)
    return (
        '<div class="verdict doubtful"><b>Read this before you use the draws.</b>'
        f"<ul>{items}</ul></div>"
    )


def _tiles(content: Content) -> str:
    report, draws = content.draws.report, content.draws
    n_rows = content.opened.setup.content["n_rows"]
    tiles = {
        "effective draws of the worst parameter": shown(round(report.ess)),
        "largest R-hat": f"{report.rhat:.3f}" if np.isfinite(report.rhat) else "–",
        "rows touched": shown(draws.n_row_evals),
        "passes over the data": f"{draws.n_row_evals / n_rows:,.1f}",
        "seconds": f"{sum(vars(draws.timing).values()):,.1f}",
    }
    if report.mean_error is not None:
        tiles["largest error of a mean, in sd"] = f"{report.mean_error:.2g}"
    if report.sd_error is not None:
        tiles["largest error of an sd"] = f"{report.sd_error:.1%}"
    cells = "".join(
        f'<div class="tile"><b>{_text(value)}</b><span>{_text(name)}</span></div>'
        for name, value in tiles.items()
    )
    return f'<div class="tiles">{cells}</div>'


def _table(content: Content) -> str:
    complete = content.complete
    if not len(complete) or complete.shape[1] < 4:
        return _note("No completed chain has at least four draws, so there is no summary.")
    weights, report = content.complete_weights, content.draws.report
    seen = complete[:, :, :_MOST_ROWS]
    found, levels = moments(seen, weights), quantiles(seen, (0.05, 0.5, 0.95), weights)
    diagnosed = diagnostics(seen)
    effective, agreement = weight_efficiency(weights) * diagnosed.ess_bulk, diagnosed.rhat
    rows = []
    for j, name in enumerate(content.names[:_MOST_ROWS]):
        numbers = [found.mean[j], found.sd[j], *levels[:, j]]
        texts = [cell_text("mean", float(value), float(found.sd[j])) for value in numbers]
        cells = "".join(f"<td>{text}</td>" for text in texts)
        agrees = f"{agreement[j]:.3f}" if np.isfinite(agreement[j]) else "–"
        for text, bad in (
            (f"{effective[j]:,.0f}", effective[j] < report.fewest),
            (agrees, agreement[j] > _LARGEST_RHAT and not report.chains_agree),
        ):
            cells += f'<td class="bad">{text}</td>' if bad else f"<td>{text}</td>"
        rows.append(f'<tr><td title="{_text(name)}">{_text(name)}</td>{cells}</tr>')
    heads = "".join(
        f"<th>{head}</th>"
        for head in ("parameter", "mean", "sd", "5 %", "median", "95 %", "ESS", "R-hat")
    )
    left_out = len(content.names) - len(rows)
    more = _note(f"The store holds {left_out:,} more parameters.") if left_out else ""
    return (
        '<p class="hint">Swipe or scroll the table sideways to see all of its columns.</p>'
        '<div class="scroll" tabindex="0" role="region" aria-label="Posterior">'
        f"<table><thead><tr>{heads}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table></div>{more}"
    )


def _row_cards(content: Content) -> list[str]:
    """Cards for the subsample size, the gradient noise, the discrepancy and the weights."""
    sizes = content.draws.sample_stats["batch_size"]
    if sizes.size and sizes.min() == sizes.max():
        rows = int(sizes.flat[0])
        words = f"Fixed: {rows:,} rows per step." if rows else "None: steps read no rows."
        size = _card("Subsample size", words)
    else:
        chart = plots.along_the_chain(content, "batch_size", "Subsample size", "rows per step")
        size = _card(chart, "Rows used per step: the mean over chains, and the range.")
    return [size, _noise(content), _discrepancy(content), _weights(content)]


def _noise(content: Content) -> str:
    chart = plots.along_the_chain(
        content, "grad_noise", "Gradient noise", "trace of its covariance"
    )
    inflation, computed = content.draws.report.inflation, content.noise
    sentences = []
    if inflation is not None:
        sentences.append(
            f"Measured along the run, gradient noise inflates variances by at most {inflation:.2%}."
        )
    if computed is not None:
        sentences.append(
            "Averaged over a few draws, the trace of the covariance of the gradient estimate is "
            f"{computed.trace:.3g}."
        )
        if computed.inflation is not None:
            sentences.append(
                "For Langevin dynamics with this step size, this noise predicts variances "
                f"{computed.inflation:.2%} too large on average."
            )
    if not sentences and chart is None:
        sentences = ["This method does not measure gradient noise. Computing it needs the data."]
        if content.opened.setup.content["has_accept_step"]:
            sentences = ["None: every step uses all rows."]
        elif content.opened.setup.content["kernel"]["part"] == "SurrogateKernel":
            sentences = ["None: every step uses the same hard rows and the series."]
    return _card(chart or "Gradient noise", " ".join(sentences))


def _discrepancy(content: Content) -> str:
    chart = plots.discrepancies(content)
    if chart is None:
        missing = (
            "Not computed: it needs the data. Pass them: `tallmc report RUN --table TABLE`, or "
            "tallmc.report.write_report(run, page, posterior=posterior)."
        )
        return _card("Kernel Stein discrepancy", missing)
    words = "Distance between the draws so far and the posterior. It falls as the draws improve."
    return _card(chart, words)


def _weights(content: Content) -> str:
    found, n_rows = content.opened.setup.content["weights"], content.opened.setup.content["n_rows"]
    title = "Subsampling weights"
    if not found:
        words = "No fixed weights: steps use all rows or none, or the method adapts the weights."
        return _card(title, words)
    certain = f" {found['certain']:,} rows are used in every step." if found["certain"] else ""
    if found["uniform"]:
        return _card(title, "Uniform: every row is equally likely." + certain)
    words = (
        f"The weights are as uneven as uniform weights on {found['effective_rows']:,.0f} "
        f"of {n_rows:,} rows.{certain}"
    )
    return _card(plots.weights(content) or title, words)


def _card(chart: Chart | str | None, words: str) -> str:
    """A chart with words below it; a string is the title of a card without a chart."""
    if isinstance(chart, Chart):
        return chart.rendered(words)
    return f'<figure class="card"><figcaption>{chart}</figcaption>{_note(words)}</figure>'


def _grid(charts: Iterable[str]) -> str:
    found = "".join(charts)
    return f'<div class="grid">{found}</div>' if found else ""


def _facts(facts: Mapping[str, Any]) -> str:
    items = (f"<dt>{_text(name)}</dt><dd>{_text(value)}</dd>" for name, value in facts.items())
    return f"<dl>{''.join(items)}</dl>"


def _note(words: str) -> str:
    return f'<p class="note">{_text(words)}</p>' if words else ""


def _text(value: Any) -> str:
    """Escape a value from the run, so that a browser shows it as text."""
    text = str(value)
    return html.escape(text if len(text) <= 2000 else text[:1999] + "…")


def _asset(name: str) -> str:
    return importlib.resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
