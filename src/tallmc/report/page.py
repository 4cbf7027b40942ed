"""The page: sections in the order in which they are asked about, every name and number of the run escaped."""

from __future__ import annotations

import html
import importlib.resources
import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from .._kept import by_parameter, moments
from ..diagnose.convergence import ess, rhat
from . import plots
from .content import Content
from .svg import Chart, shown

_MOST_ROWS = 200
_LARGEST_RHAT, _SMALLEST_ESS = 1.01, 400
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"  # nothing is fetched from anywhere


def render(content: Content) -> str:
    charts, hover = plots.traces(content)
    body = "".join(
        [
            _head(content),
            _verdict(content),
            _tiles(content),
            _section("Posterior", _table(content), "Over the chains that completed."),
            _section("Traces", _grid(charts), "A line a chain. Point at one for its values."),
            _section("Marginals", _grid(plots.marginals(content)), "All chains together; the middle 90 % is shaded."),
            _section("Pairs", _grid(plots.pairs(content)), "Draws of some parameters against each other."),
            _section("Rows, noise and discrepancy", _grid(_rows(content)), ""),
            _section("Time", plots.time_split(content), ""),
            _section("What was run", _facts(what_was_run(content)), ""),
        ]
    )
    data = json.dumps(hover, allow_nan=False).replace("<", "\\u003c")
    title = _text(f"tallmc: {content.opened.path.name}")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f"<title>{title}</title><style>{_asset('page.css')}</style></head><body><main>{body}</main>"
        f'<script type="application/json" id="hover">{data}</script><script>{_asset("page.js")}</script></body></html>\n'
    )


def what_was_run(content: Content) -> dict[str, Any]:
    """Facts by name, as they are stored."""
    setup, draws = content.opened.setup.content, content.draws
    chains, n_draws, d = draws.positions.shape
    about = {key: value for key, value in setup["about"].items() if not isinstance(value, (dict, list))}
    return {
        "method": setup["method_shown"],
        "settings": draws.settings["method"],
        **{f"chosen, {number}": reason for number, reason in enumerate(draws.health.reasons, start=1)},
        "chains and draws": f"{chains} chains of {n_draws:,} draws, after {setup['burn_in']:,} steps of burn-in, "
        f"one for every {setup['thin']:,} steps",
        "data": f"{setup['n_rows']:,} rows, {d:,} parameters, {setup['dtype']}",
        **about,
        "fingerprint of the data": setup["posterior"]["sha256"][:16],
        "seed": setup["seed"],
        "started": setup["started"],
        **setup["environment"],
        "rows touched": f"{draws.n_row_evals:,} = {draws.n_row_evals / setup['n_rows']:.3g} passes, "
        f"of which preparation {draws.n_row_evals_preparation / setup['n_rows']:.3g}",
        "outcomes": ", ".join(outcome.name.lower().replace("_", " ") for outcome in draws.outcomes),
    }


def _head(content: Content) -> str:
    chains, n_draws, d = content.draws.positions.shape
    n_rows = content.opened.setup.content["n_rows"]
    state = "" if content.opened.manifest.finished else ", not finished"
    return (
        f"<header><h1>{_text(content.opened.path.name)}</h1>"
        f"<p>{d:,} parameters from {n_rows:,} rows: {chains} chains of {n_draws:,} draws{state}</p></header>"
    )


def _verdict(content: Content) -> str:
    if not content.warnings:
        return '<div class="verdict"><b>Nothing speaks against these draws.</b></div>'
    items = "".join(f"<li>{_text(message)}</li>" for message in content.warnings)
    return f'<div class="verdict doubtful"><b>Read this before you use the draws.</b><ul>{items}</ul></div>'


def _tiles(content: Content) -> str:
    health, draws = content.draws.health, content.draws
    n_rows = content.opened.setup.content["n_rows"]
    tiles = {
        "effective draws, worst parameter": shown(round(health.ess)),
        "largest R-hat": f"{health.rhat:.3f}" if np.isfinite(health.rhat) else "–",
        "rows touched": shown(draws.n_row_evals),
        "passes over the data": shown(round(draws.n_row_evals / n_rows, 2)),
        "seconds": shown(round(sum(vars(draws.timing).values()), 1)),
    }
    if health.mean_error is not None and health.sd_error is not None:
        tiles["error of a mean, in sd"] = f"{health.mean_error:.2g}"
        tiles["error of an sd"] = f"{health.sd_error:.1%}"
    cells = "".join(f'<div class="tile"><b>{_text(value)}</b><span>{_text(name)}</span></div>' for name, value in tiles.items())
    return f'<div class="tiles">{cells}</div>'


def _table(content: Content) -> str:
    complete = content.complete
    if not len(complete) or complete.shape[1] < 4:
        return _note("No chain has four draws or more, so there is no summary.")
    found = moments(complete)
    quantiles = np.stack(
        [by_parameter(lambda part, q=q: np.quantile(part, q, axis=(0, 1)), complete) for q in (0.05, 0.5, 0.95)]  # type: ignore[misc]
    )
    effective = by_parameter(ess, complete)
    agreement = by_parameter(rhat, complete) if len(complete) > 1 else np.full(len(effective), np.nan)
    rows = []
    for j, name in enumerate(content.names[:_MOST_ROWS]):
        numbers = [found.mean[j], found.sd[j], *quantiles[:, j]]
        cells = "".join(f"<td>{shown(float(value))}</td>" for value in numbers)
        cells += _judged(f"{effective[j]:,.0f}", effective[j] < _SMALLEST_ESS)
        cells += _judged(f"{agreement[j]:.3f}" if np.isfinite(agreement[j]) else "–", agreement[j] > _LARGEST_RHAT)
        rows.append(f'<tr><td title="{_text(name)}">{_text(name)}</td>{cells}</tr>')
    heads = "".join(f"<th>{head}</th>" for head in ("parameter", "mean", "sd", "5 %", "median", "95 %", "ESS", "R-hat"))
    left_out = len(content.names) - len(rows)
    more = _note(f"{left_out:,} more parameters are in the store.") if left_out else ""
    return f'<div class="scroll"><table><thead><tr>{heads}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>{more}'


def _judged(value: str, bad: bool) -> str:
    return f'<td class="bad">{value}</td>' if bad else f"<td>{value}</td>"


def _rows(content: Content) -> list[str]:
    """How many rows, how noisy that was, what it came to, and which rows."""
    sizes = content.draws.sample_stats["batch_size"]
    if sizes.size and sizes.min() == sizes.max():
        size = _card("Subsample size", f"Fixed: {int(sizes.flat[0]):,} rows in every step.")
    else:
        chart = plots.along_the_chain(content, "batch_size", "Subsample size", "rows a step")
        size = _card(chart, "Rows that a step looked at along the chain: the mean over chains, and the range.")
    return [size, _noise(content), _discrepancy(content), _weights(content)]


def _noise(content: Content) -> str:
    chart = plots.along_the_chain(content, "grad_noise", "Gradient noise", "trace of its covariance")
    inflation, computed = content.draws.health.inflation, content.noise
    words = []
    if inflation is not None:
        words.append(f"As measured along the run, gradient noise inflates no variance by more than {inflation:.2%}.")
    if computed is not None:
        words.append(f"Computed at a few draws: the trace of the covariance of the gradient estimate is {computed.trace:.3g}.")
        if computed.inflation is not None:
            too_large = f"{computed.inflation:.2%} too large on average"
            words.append(f"For Langevin dynamics at this step that predicts variances {too_large}.")
    if not words and chart is None:
        without = "Not measured by this method, and not computed without the data."
        words = ["None: every step looks at all rows."] if content.opened.setup.content["has_accept_step"] else [without]
    return _card(chart or "Gradient noise", " ".join(words))


def _discrepancy(content: Content) -> str:
    chart = plots.discrepancies(content)
    if chart is None:
        missing = "Not computed: it needs the data, from `tallmc fit --store` or write_report(..., posterior=posterior)."
        return _card("Kernel Stein discrepancy", missing)
    return _card(chart, "How far the draws up to there are from the posterior: it falls while they improve.")


def _weights(content: Content) -> str:
    found, n_rows = content.opened.setup.content["weights"], content.opened.setup.content["n_rows"]
    title = "How preferential"
    if not found:
        return _card(title, "No fixed law: every step looks at all rows, or learns on the run which ones to look at.")
    certain = f" {found['certain']:,} rows are in every step." if found["certain"] else ""
    if found["uniform"]:
        return _card(title, "Not at all: every row is as likely as any other." + certain)
    words = f"As uneven as if only {found['effective_rows']:,.0f} of {n_rows:,} rows mattered.{certain}"
    return _card(plots.weights(content) or title, words)


def _card(chart: Chart | str | None, words: str) -> str:
    """A chart, or the title of one that is not there, with words below."""
    if isinstance(chart, Chart):
        return chart.rendered(words)
    return f'<figure class="card"><figcaption>{chart}</figcaption>{_note(words)}</figure>'


def _section(title: str, body: str, note: str) -> str:
    if not body:
        return ""
    about = f"<p>{note}</p>" if note else ""
    return f"<section><h2>{title}</h2>{about}{body}</section>"


def _grid(charts: Iterable[str]) -> str:
    found = "".join(charts)
    return f'<div class="grid">{found}</div>' if found else ""


def _facts(facts: Mapping[str, Any]) -> str:
    return "<dl>" + "".join(f"<dt>{_text(name)}</dt><dd>{_text(value)}</dd>" for name, value in facts.items()) + "</dl>"


def _note(words: str) -> str:
    return f'<p class="note">{_text(words)}</p>' if words else ""


def _text(value: Any) -> str:
    """Anything of the run as text that a browser takes for text."""
    words = str(value)
    return html.escape(words if len(words) <= 2000 else words[:1999] + "…")


def _asset(name: str) -> str:
    return importlib.resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
