"""`tallmc diagnose`, `report`, `compare` and `effects`: check, compare and read stored runs."""

from __future__ import annotations

import json
import math
from pathlib import Path

from .. import report as pages
from .._core.errors import InvalidInput
from .._fit.formulas import FormulaNeeded
from .._fit.loading import load_fit_and_form
from .._fit.marginal import marginal_effects
from .._store.files import StoreError
from .._store.reader import OpenStore, draws_of, open_store
from ..diagnose.comparison import compare
from ..diagnose.robust import robust
from ..report.content import stored_doubts
from .fit import FitProblem


def print_findings(store: Path, *, as_json: bool) -> int:
    """Print the warnings about the draws. Returns 1 if there are any, otherwise 0."""
    opened = _open_with_draws(store)
    draws = draws_of(opened)
    found = stored_doubts(opened, draws)
    if as_json:
        chains, n_draws, d = draws.positions.shape
        report = draws.report
        content = {
            "run": str(store),
            "finished": opened.manifest.finished,
            "chains": chains,
            "draws": n_draws,
            "parameters": d,
            "ess": report.ess,
            "rhat": report.rhat if math.isfinite(report.rhat) else None,
            "verdict": str(report.verdict),
            "unknown": report.unknown,
            "warnings": found,
        }
        print(json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False))
    else:
        for message in found:
            print(f"warning: {message}")
        if not found:
            print(f"{draws.report.verdict}: {draws.report.meaning}")
        if draws.report.unknown is not None:
            print(f"unknown: {draws.report.unknown}")
    return 1 if found else 0


def print_comparison(
    fits: list[Path],
    table: Path | None,
    formula: str | None,
    n_rows: int,
    folds: int | None,
    seed: int,
    *,
    as_json: bool,
) -> None:
    """Print `tallmc.compare` of fits to one table."""
    if len(set(fits)) < len(fits):
        raise InvalidInput("FIT", "be different folders", " ".join(map(str, fits)))
    loaded, rows = {}, []
    for path in fits:
        loaded[str(path)], form, about = load_fit_and_form(path, formula)
        problem = FitProblem.of_run(about, table, formula)
        # The rows of a posterior whose effects are integrated out are groups.
        rows.append(problem.path if form.integrates_effects else problem.posterior)
    found = compare(loaded, rows, n=n_rows, folds=folds, seed=seed)
    if as_json:
        print(found.to_json(orient="index", indent=2))
        return
    print(found.drop(columns="rank").to_string(float_format="{:.2f}".format))
    if found["warning"].any():
        cure = "pass --folds 10 for new fits without them"
        print(f"warning: rows with Pareto k > 0.7 have unreliable densities; {cure}")


def print_effects(
    fit: Path,
    column: str | None,
    by: list[str],
    at: list[str],
    *,
    ratio: bool,
    robust_errors: bool,
    cluster: str | None,
    table: Path | None,
    formula: str | None,
    as_json: bool,
) -> None:
    """Print average responses, or the effects of a column on them."""
    draws, _, about = load_fit_and_form(fit, formula)
    problem = FitProblem.of_run(about, table, formula)
    draws = draws.with_posterior(problem.posterior)
    if robust_errors or cluster is not None:
        draws = robust(draws, problem.path, cluster=cluster)
    comparison = "ratio" if ratio else "difference"
    found = marginal_effects(
        draws, problem.path, column, by=by, at=_values(at), comparison=comparison
    )
    frame = found.to_frame().reset_index(names=column or "response")
    if as_json:
        print(frame.to_json(orient="records", indent=2))
        return
    print(frame.to_string(index=False, float_format="{:.4g}".format))
    if draws.settings.get("errors"):
        print(f"errors: {draws.settings['errors']}")


def _values(texts: list[str]) -> dict[str, list[float | str]]:
    """Values of columns, from texts such as age=30,40."""
    found: dict[str, list[float | str]] = {}
    for text in texts:
        name, sign, values = text.partition("=")
        if not sign or not values:
            raise InvalidInput("--at", "name a column and its values, as in age=30,40", text)
        found[name] = [_number(value) for value in values.split(",")]
    return found


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _open_with_draws(store: Path) -> OpenStore:
    opened = open_store(store)
    if not opened.manifest.n_draws:
        cure = "Continue it with `tallmc resume`."
        raise StoreError(opened.path, "have at least one draw", "none yet", cure)
    return opened


def write_report(
    store: Path,
    out: Path,
    parameters: list[str] | None,
    table: Path | None,
    formula: str | None = None,
) -> None:
    """Write the page.

    If the table no longer exists, or the formula is needed and not passed, the page omits the parts
    that need it and says so.
    """
    posterior = None
    about = _open_with_draws(store).setup.content["about"]
    if table is not None or Path(str(about.get("table", ""))).is_file():
        try:
            posterior = FitProblem.of_run(about, table, formula).posterior
        except FormulaNeeded:
            if table is not None:
                raise
    pages.write_report(store, out, posterior=posterior, parameters=parameters)
    print(f"written: {out}")
