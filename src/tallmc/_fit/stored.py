"""Load stored draws; continue or extend a stored run.

The draws are those of a run that was never interrupted.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import jax

from .._api.sample import Listeners, execute, read_by_executor
from .._core.errors import InvalidInput, SamplingWarning, warn
from .._core.supervision import Clock
from .._engine.chains import chains_on, chains_split_over, workers_for_chains
from .._engine.run import Goal, Progress
from .._store.files import Folder, StoreError, as_folder, blaming
from .._store.reader import OpenStore, draws_of, open_store
from .._store.setup import environment, fingerprint, restored, same_posterior
from .._store.writer import continuing
from ..methods.abstract import AbstractMethod
from ..models.posterior import AbstractPosterior, check_posterior
from ..results.draws import Draws
from ..results.saved import FILE, FIT_FILE, shapes_by_name
from .fit import regression_problem
from .formulas import FormulaNeeded
from .regression import RegressionForm, saved_form

# The draws of a stored run, of a folder of results, or of a file.

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


def resume(
    store: str | os.PathLike[str],
    posterior: Any,
    *,
    formula: str | None = None,
    method: AbstractMethod | None = None,
    n_draws: int | None = None,
    ess: float | None = None,
    max_seconds: float | None = None,
    max_rows: int | None = None,
    progress: bool | None = None,
    callback: Callable[[Progress], None] | None = None,
    executor: Executor | None = None,
    split_chains: bool = False,
    devices: int | Sequence[jax.Device] | None = None,
) -> Draws:
    """Continue the run in the folder `store` to its goal.

    On the same machine with the same versions, the draws are bit for bit those of an uninterrupted
    run. Elsewhere a warning lists the differences. A checksum detects a damaged block, and the run
    continues from the block before it.

    **Arguments:**

    - `store`: the folder of the run.
    - `posterior`: the posterior that the run was started with; for a run of `tallmc.fit` its table.
    - `formula`: the formula of `tallmc.fit`, if it calls functions of its own (see `tallmc.load`).
    - `method`: the method that the run was started with. Needed only if the store could not hold
        it, as for a method that contains functions of your own.
    - `n_draws`, `ess`: a new goal, for example to extend a finished run; by default the stored one.
    - `max_seconds`, `max_rows`: limits as in `sample`. The seconds are those of this call, the rows
        those of the whole run.
    - `progress`, `callback`, `executor`, `split_chains`, `devices`: as in `sample`. They need not
        be those of the stored part.

    **Returns:** all draws of the run, stored and new.

    >>> import tempfile, numpy as np, tallmc
    >>> X, y = np.ones((9, 1)), np.ones(9)
    >>> posterior = tallmc.models.linear_regression(X, y, prior_variance=1.0, noise_variance=1.0)
    >>> run = tempfile.mkdtemp() + "/run"
    >>> half = tallmc.sample(posterior, tallmc.methods.mala(0.1), n_draws=50, store=run)
    >>> resume(run, posterior, n_draws=100).positions.shape
    (4, 100, 1)
    """
    opened = open_store(store)
    stored = opened.setup.content
    if not isinstance(posterior, AbstractPosterior):
        form = saved_form(stored["about"], formula)
        if form is not None:
            posterior = regression_problem(posterior, form.model).posterior
    check_posterior(posterior)
    posterior = read_by_executor(posterior, executor)
    workers = workers_for_chains(posterior, split_chains)
    if not same_posterior(fingerprint(posterior), stored["posterior"]):
        cure = "Use the same rows in the same order and precision, and the same prior."
        rule = "be resumed with the posterior it was started with"
        raise StoreError(opened.path, rule, "another", cure)
    if stored["parameters"] != shapes_by_name(posterior.layout):
        rule = f"have the parameters {', '.join(posterior.layout.names)}"
        raise StoreError(opened.path, rule, stored["parameters"])
    shapes = {name: list(shape) for name, shape in posterior.quantities.shapes.items()}
    if stored["quantities"]["shapes"] != shapes:
        rule = f"have the quantities {', '.join(shapes)}"
        raise StoreError(opened.path, rule, list(stored["quantities"]["shapes"]))
    _warn_of_differences(opened)
    goal = _combined_goal(opened, Goal.of(n_draws, ess, max_seconds, max_rows))
    snapshot = opened.snapshot()
    with blaming(opened.path, "say what was run"):
        plan = restored(opened.setup, posterior, method)
        earlier = opened.manifest.progress.get("seconds", {})  # none if the process was killed
        compiled = float(earlier.get("compilation", 0.0))
        seconds = float(earlier.get("preparation", plan.seconds)) + compiled
        plan = dataclasses.replace(plan, goal=goal, seconds=seconds)
    with (
        chains_on(devices),
        chains_split_over(workers),
        Listeners(progress, callback, goal, posterior.n_rows) as listeners,
        continuing(opened, posterior.quantities) as sink,
    ):
        return execute(plan, sink, listeners, Clock(compiled), snapshot)


def _combined_goal(opened: OpenStore, new_goal: Goal) -> Goal:
    """The stored goal with the new values in place.

    The stored limits are dropped if there is a new limit, or if anything ended the run early.
    """
    stored_goal = opened.setup.goal
    if new_goal.draws is None and new_goal.ess is None:
        new_goal = new_goal._replace(draws=stored_goal.draws, ess=stored_goal.ess)
    elif new_goal.draws is not None and new_goal.draws < opened.manifest.n_draws:
        rule = f"be at least the number stored ({opened.manifest.n_draws})"
        raise InvalidInput("draws", rule, new_goal.draws)
    is_limited = new_goal.max_seconds is not None or new_goal.max_rows is not None
    if is_limited or opened.manifest.progress.get("stopped_by"):
        return new_goal
    return new_goal._replace(max_seconds=stored_goal.max_seconds, max_rows=stored_goal.max_rows)


def _warn_of_differences(opened: OpenStore) -> None:
    if opened.damaged:
        more = f" and {len(opened.damaged) - 1} more" if len(opened.damaged) > 1 else ""
        n_blocks = opened.lost + len(opened.manifest.blocks)
        lost = f"{opened.lost} of {n_blocks} blocks are lost"
        message = (
            f"{opened.damaged[0]}{more} damaged: {lost}; "
            f"the run continues after draw {opened.manifest.n_draws}."
        )
        warn(message, SamplingWarning)
    here, there = environment(), opened.setup.content["environment"]
    differences = [
        f"{name} {there.get(name)} then, {here[name]} now"
        for name in here
        if here[name] != there.get(name)
    ]
    if differences:
        message = (
            f"machine or versions differ from the stored part ({'; '.join(differences)}): "
            "draws may differ in their last bits."
        )
        warn(message, SamplingWarning)
