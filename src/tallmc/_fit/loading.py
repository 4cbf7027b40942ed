"""`tallmc.load`: the draws of a stored run, of a folder of results, or of a file."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .._core.errors import InvalidInput
from .._store.files import Folder, as_folder
from .._store.reader import draws_of, open_store
from ..results.draws import Draws
from ..results.saved import FILE, FIT_FILE
from .fit import regression_problem
from .formulas import FormulaNeeded
from .regression import RegressionForm, saved_form

_MOST_BYTES = 2**26


def load(
    store: str | os.PathLike[str] | Folder, *, formula: str | None = None, data: Any = None
) -> Draws:
    """Load draws: of a stored run, of the results of `tallmc fit`, or that `Draws.save` wrote.

    The posterior is not needed. Large arrays of a stored run are mapped from disk, not read into
    memory. Draws of `tallmc fit` and of `tallmc.fit` predict new rows.

    **Arguments:**

    - `store`: the folder of a run (finished or not), the folder of results, or a file.
    - `formula`: the formula of the fit, if it has code of its own. Only plain formulas (columns,
      arithmetic, known functions) are taken from files; without it such draws do not predict.
    - `data`: the table of the fit, if it has more than 100 groups. Their effects are not stored:
      they are drawn again from its rows, and are the same, as in `predict` and `group_effects`.

    **Returns:** the draws, as `Draws`. `params` is a dict by name.

    >>> import tempfile, numpy as np, tallmc
    >>> X, y = np.ones((9, 1)), np.ones(9)
    >>> posterior = tallmc.models.linear_regression(X, y, prior_variance=1.0, noise_variance=1.0)
    >>> run = tempfile.mkdtemp() + "/run"
    >>> draws = tallmc.sample(posterior, tallmc.methods.mala(0.1), n_draws=50, store=run)
    >>> bool((tallmc.load(run).positions == draws.positions).all())
    True
    """
    draws = _loaded(Path(as_folder(store).path))
    try:
        form = saved_form(draws.about, formula)
    except FormulaNeeded:
        return draws  # which say so when they are asked to predict
    if form is None:
        return draws
    if data is None or not form.integrates_effects:
        return draws.with_posterior(form.without_rows())
    problem = regression_problem(data, form.model)
    if problem.form.encoding.to_json() != form.encoding.to_json():
        found = "one with other columns, levels or scales"
        raise InvalidInput("data", "be the table of the fit", found, "Pass all of its rows.")
    return draws.with_posterior(problem.posterior)


def load_fit(path: Path, formula: str | None) -> Draws:
    """Draws of a fit that predict; a formula that is not plain must be passed."""
    draws, form, about = load_fit_and_form(path, formula)
    table = Path(about.get("table", "-"))
    if form.integrates_effects and table.exists():
        return load(path, formula=formula, data=table)
    return draws


def load_fit_and_form(
    path: Path, formula: str | None
) -> tuple[Draws, RegressionForm, Mapping[str, Any]]:
    """The same draws, their regression, and what the folder says about the fit."""
    draws = _loaded(path)
    about = draws.about
    form = saved_form(about, formula)
    if form is None:
        rule = "be the results or the run of `tallmc fit` or `tallmc.fit`"
        raise InvalidInput("FIT", rule, f"{path}, which has no model")
    return draws.with_posterior(form.without_rows()), form, about


def _loaded(path: Path) -> Draws:
    """The draws in a file, in a folder of results or in that of a run."""
    if path.is_file():
        return Draws.read(path)
    if (path / FILE).is_file():
        return dataclasses.replace(Draws.read(path / FILE), about=_fit_content(path / FIT_FILE))
    return draws_of(open_store(path, only_draws=True))


def _fit_content(path: Path) -> Mapping[str, Any]:
    if not path.is_file():
        return {}
    if path.stat().st_size > _MOST_BYTES:
        raise InvalidInput("fit", "have a description of reasonable size", path.name)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InvalidInput("fit", "have a readable description", f"{path}: {error}") from None
    return content if isinstance(content, Mapping) else {}
