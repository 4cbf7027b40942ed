"""Going on with a stored run, or with a longer one: the draws are those of a run that was never cut."""

from __future__ import annotations

import dataclasses
import os
import warnings
from collections.abc import Callable

from ._carry_out import carry_out
from ._draws import Draws
from ._errors import InvalidInput, SamplingWarning
from ._goal import Goal
from ._method import AbstractMethod
from ._posterior import AbstractPosterior
from .progress import Progress
from .store.files import StoreError, blaming
from .store.fingerprint import environment, fingerprint, same_posterior
from .store.reader import Opened, open_store
from .store.setup import restored
from .store.writer import continuing


def resume(
    store: str | os.PathLike[str],
    posterior: AbstractPosterior,
    *,
    method: AbstractMethod | None = None,
    draws: int | None = None,
    ess: float | None = None,
    max_seconds: float | None = None,
    max_rows: int | None = None,
    progress: bool | None = None,
    callback: Callable[[Progress], None] | None = None,
) -> Draws:
    """Continue the run in the folder `store` to its end, and return all of its draws.

    On the same machine with the same versions they are bit for bit those of a run that was never interrupted; elsewhere a warning
    says what differs. Another posterior is refused. A damaged block is found out by its sum, and the run goes on from the one
    before it. `draws` or `ess` extend a run, finished or not; `max_seconds` and `max_rows` count what is done already. `method`
    is needed only where the store could not hold it: a method made of functions of your own.
    `progress` and `callback` are those of `sample`.

    >>> import tempfile, numpy as np, tallmc
    >>> posterior = tallmc.models.linear_regression(np.ones((100, 1)), np.arange(100.0), prior_variance=1e6)
    >>> run = tempfile.mkdtemp() + "/run"
    >>> half = tallmc.sample(posterior, tallmc.mala(0.01), draws=50, burn_in=10, store=run)
    >>> whole = resume(run, posterior, draws=100)
    >>> bool((whole.positions == tallmc.sample(posterior, tallmc.mala(0.01), draws=100, burn_in=10).positions).all())
    True
    """
    if not isinstance(posterior, AbstractPosterior):
        raise InvalidInput("posterior", "be a tallmc posterior", type(posterior).__name__, "See tallmc.Posterior, tallmc.models.")
    opened = open_store(store)
    stored = opened.setup.content
    if not same_posterior(fingerprint(posterior), stored["posterior"]):
        cure = "Make the posterior as it was made for the run: the same rows in the same order and precision, the same prior."
        raise StoreError(opened.path, "be resumed with the posterior it was started with", "another", cure)
    layout = posterior.layout
    if stored["parameters"] != {name: list(shape) for name, shape in zip(layout.names, layout.shapes, strict=True)}:
        raise StoreError(opened.path, f"have the parameters {', '.join(layout.names)}", stored["parameters"])
    _warn_of_differences(opened)
    goal = _goal(opened, Goal.of(draws, ess, max_seconds, max_rows))
    snapshot = opened.snapshot()
    with blaming(opened.path, "say what was run"):
        started = dataclasses.replace(restored(opened.setup, posterior, method), goal=goal)
    with continuing(opened) as kept:
        return carry_out(posterior, started, kept, progress, callback, snapshot)


def _goal(opened: Opened, given: Goal) -> Goal:
    """What was asked for at first, but for what is given now. A limit that has ended the run is not asked for again."""
    before = opened.setup.goal
    if given.draws is None and given.ess is None:
        given = given._replace(draws=before.draws, ess=before.ess)
    elif given.draws is not None and given.draws < opened.manifest.n_draws:
        raise InvalidInput("draws", f"be at least those that are stored ({opened.manifest.n_draws})", given.draws)
    if given.max_seconds is None and given.max_rows is None and not opened.manifest.progress.get("stopped_by"):
        given = given._replace(max_seconds=before.max_seconds, max_rows=before.max_rows)
    return given


def _warn_of_differences(opened: Opened) -> None:
    if opened.damaged:
        more = f" and {len(opened.damaged) - 1} more" if len(opened.damaged) > 1 else ""
        lost = f"{opened.lost} of {opened.lost + len(opened.blocks)} blocks are lost"
        message = f"{opened.damaged[0]}{more} damaged: {lost}; the run goes on after draw {opened.manifest.n_draws}."
        warnings.warn(message, SamplingWarning, stacklevel=3)
    here, there = environment(), opened.setup.content["environment"]
    differences = [f"{name} {there.get(name)} then, {here[name]} now" for name in here if here[name] != there.get(name)]
    if differences:
        message = (
            f"not the machine or versions of the first part ({'; '.join(differences)}): draws may differ in their last bits."
        )
        warnings.warn(message, SamplingWarning, stacklevel=3)
