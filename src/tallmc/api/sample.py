"""Prepare a method, run its chains, return the draws."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ..anchor import Anchor, prior_directions
from ..core.arrays import on_device
from ..core.errors import InvalidInput, check_int
from ..core.supervision import current_clock, stage, supervised
from ..engine.devices import chains_on
from ..engine.goal import Goal
from ..engine.progress import Progress
from ..engine.remote import chains_split_over, workers_for_chains
from ..engine.sinks import MemorySink
from ..methods.account import Account
from ..methods.automatic import Automatic
from ..methods.base import AbstractMethod, PreparedMethod
from ..methods.run_plan import RunPlan
from ..models.posterior import AbstractPosterior, check_posterior
from ..results.draws import Draws
from ..store.folder import Folder, as_folder
from ..store.writer import recording, reserving
from .execute import execute
from .executors import read_by_executor
from .few_rows import with_few_rows_in_memory
from .listeners import Listeners
from .memory import check_draws_fit

_MOST_STEPS = 2**31 - 1


def sample(
    posterior: AbstractPosterior,
    method: AbstractMethod | None = None,
    *,
    exact: bool = False,
    chains: int | None = None,
    draws: int | None = None,
    ess: float | None = None,
    max_seconds: float | None = None,
    max_rows: int | None = None,
    burn_in: int | None = None,
    thin: int | None = None,
    seed: int = 0,
    start: PyTree | None = None,
    anchor: Anchor | None = None,
    store: str | os.PathLike[str] | Folder | None = None,
    check: bool = False,
    progress: bool | None = None,
    callback: Callable[[Progress], None] | None = None,
    executor: Executor | None = None,
    split_chains: bool = False,
    devices: int | Sequence[jax.Device] | None = None,
) -> Draws:
    """Draw from a posterior.

    Without a method everything is chosen for you (`tallmc.Automatic`): 8 chains, or on a GPU as
    many as it runs well at once, run until every parameter has 1,000 effective draws, and
    `draws.health` reports the choice, the reasons and the estimated errors.

    Ctrl-C returns the draws so far, none in the burn-in. In the preparation it raises
    `KeyboardInterrupt` as soon as XLA has ended the program or compilation that it is busy with;
    a second Ctrl-C raises at once.

    **Arguments:**

    - `posterior`: the posterior to draw from.
    - `method`: the sampling method.
    - `exact`: whether only exact methods may be chosen: the draws then have no bias, at any cost.
    - `chains`: number of chains; 4 by default if a method is given.
    - `draws`: draws per chain; 1,000 by default if a method is given.
    - `ess`: goal in effective draws per parameter, over all chains, instead of `draws`.
    - `max_seconds`: limit on the seconds of the whole run: preparation, compilation and sampling.
        It ends the run early, after the compilation or the pass over the rows that it falls into.
        From half of the limit on, the default method refines its settings no further.
    - `max_rows`: limit on the rows touched by sampling; it ends the run early.
    - `burn_in`: steps discarded at the start of each chain. A method may set the default.
        Otherwise it is a tenth of the planned steps if chains start at an anchor, and as many as
        the planned steps if they do not.
    - `thin`: steps per draw.
    - `seed`: seed of all randomness. Chain k has the same draws for any number of chains. With a
        given `burn_in`, a longer run begins with the draws of a shorter one.
    - `start`: starting point: parameters, a vector (d,), or one vector per chain (chains, d). The
        default is the anchor if the method has one, else the posterior's `init`.
    - `anchor`: the result of `laplace(posterior)`, to reuse it.
    - `store`: a new folder. Draws and state are written to it during the run, so memory does not
        grow with the number of draws, and `tallmc.resume` can continue or extend the run bit for
        bit.
    - `check`: whether to measure the bias of a method of your own after the run, with pairs of
        chains at its step size and at half of it. This takes at most a fifth of the run's steps.
        The default method always knows its bias.
    - `progress`: None shows progress in a live table on terminals and in a line that is redrawn in
        notebooks. True also prints occasional lines elsewhere. False shows nothing. The stages of
        the preparation are shown as well.
    - `callback`: a function that is called with a `Progress` when a stage of the preparation
        begins, about every half second, and at the end.
    - `executor`: any `concurrent.futures.Executor` whose workers read the rows of a row store
        (`tallmc.rows.open`), such as a pool of processes or `client.get_executor()` of a Dask
        client. Workers need the same path to the row store. None reads with the threads of this
        process. The draws do not depend on it.
    - `split_chains`: whether groups of chains advance in the workers of the executor, too. Each
        worker then reads the rows of its own chains. This pays for runs that sample longer than
        they prepare. The draws do not depend on it.
    - `devices`: the devices on which the chains run, or the number of local devices to use. Groups
        of chains are distributed over them. Rows in memory are copied to each device; those of a
        row store are streamed from the host. None runs all chains on JAX's default device. On CPUs
        the draws do not depend on it; elsewhere their last bits may.

    **Returns:** the draws, as `Draws`.

    **Raises:** `InvalidInput` if an argument is invalid; `PreparationError` if preparation fails,
    or if `max_seconds` pass before it ends, or if the executor loses workers for good.

    >>> import numpy as np, tallmc
    >>> x = np.random.default_rng(0).normal(size=(1000, 2))
    >>> y = x @ [1.0, -1.0]
    >>> posterior = tallmc.models.linear_regression(x, y, prior_variance=10.0, noise_variance=1.0)
    >>> method = tallmc.sgld_cv(step_size=1e-4, size=10)
    >>> tallmc.sample(posterior, method, chains=2, draws=500).positions.shape
    (2, 500, 2)
    """
    check_posterior(posterior)
    posterior = with_few_rows_in_memory(read_by_executor(posterior, executor))
    workers = workers_for_chains(posterior, split_chains)
    if method is None:
        method = Automatic(exact=exact)
    elif exact and isinstance(method, AbstractMethod) and not method.exact:
        rule = "be an exact method with exact=True, or left out"
        raise InvalidInput("method", rule, type(method).__name__)
    if not isinstance(method, AbstractMethod):
        example = "Call it with its settings, for example tallmc.sgld(step_size=1e-4, size=32)."
        raise InvalidInput(
            "method", "be a Method", method, example if callable(method) else "See tallmc.Method."
        )
    defaults = method.defaults(posterior.dim)
    if draws is None and ess is None:
        draws, ess = defaults.draws, defaults.ess
    goal = Goal.of(draws, ess, max_seconds, max_rows)
    chains = check_int("chains", defaults.chains if chains is None else chains, 1)
    if store is None and goal.first_draws <= _MOST_STEPS:  # more draws are refused below
        check_draws_fit(posterior, chains, goal.first_draws)
    if thin is not None:
        thin = check_int("thin", thin, 1)
    seed = check_int("seed", seed, 0, 2**32 - 1)
    if burn_in is not None:
        burn_in = check_int("burn_in", burn_in, 0)
    if callback is not None and not callable(callback):
        raise InvalidInput("callback", "be callable with a Progress", callback)

    folder = None if store is None else as_folder(store)
    clock = current_clock()
    with (
        chains_on(devices),
        contextlib.nullcontext() if folder is None else reserving(folder),
        Listeners(progress, callback, goal, posterior.n_rows) as listeners,
    ):
        with supervised(clock, goal.max_seconds, listeners.announce):
            stage("preparing the method")
            plan = _plan(posterior, method, goal, chains, burn_in, thin, seed, start, anchor, check)
        with chains_split_over(workers):
            if folder is None:
                return execute(plan, MemorySink(), listeners, clock)
            with recording(folder, plan) as sink:
                return execute(plan, sink, listeners, clock)


def _plan(
    posterior: AbstractPosterior,
    method: AbstractMethod,
    goal: Goal,
    chains: int,
    burn_in: int | None,
    thin: int | None,
    seed: int,
    start: PyTree | None,
    anchor: Anchor | None,
    check: bool,
) -> RunPlan:
    """Prepare the method, and make all decisions that the user has left open."""
    began = time.perf_counter()
    prepared = method.prepare(posterior, anchor, seed=seed)
    thin = prepared.thin if thin is None else thin
    positions, anchored = _start_positions(posterior, prepared, start, chains)
    prepared.kernel.check_start(np.asarray(positions))
    steps = goal.first_draws * thin
    if burn_in is None and start is None:
        burn_in = prepared.burn_in
    if burn_in is None:
        burn_in = steps // 10 if anchored else steps
    check_int("burn_in + draws · thin", burn_in + steps, 1, _MOST_STEPS)
    account = prepared.account or Account(method, exact=method.exact)
    notes: list[str] = []
    has_hessian = prepared.anchor is not None and prepared.anchor.hessian is not None
    # Group effects are left to their prior in part, by intention.
    if prepared.anchor is not None and has_hessian and posterior.model.bounded:
        notes = prior_directions(posterior, prepared.anchor)
    return RunPlan(
        posterior=posterior,
        method=method if prepared.account is None else prepared.account.method,
        kernel=prepared.kernel.kernel,
        anchor=prepared.anchor,
        account=dataclasses.replace(account, notes=tuple(notes)),
        start=positions,
        burn_in=burn_in,
        thin=thin,
        seed=seed,
        goal=goal,
        check=check or prepared.account is not None,
        n_row_evals=prepared.n_row_evals,
        seconds=time.perf_counter() - began,
    )


def _start_positions(
    posterior: AbstractPosterior, prepared: PreparedMethod, start: PyTree | None, chains: int
) -> tuple[Float[Array, "chains d"], bool]:
    """One starting position per chain, and whether it comes from the anchor."""
    shape = (chains, posterior.dim)
    if start is None and prepared.start is not None:
        return on_device(np.resize(prepared.start, shape), posterior.dtype), True
    if start is None:
        anchor = prepared.anchor
        position = posterior.init if anchor is None else anchor.position
        return jnp.broadcast_to(position, shape), anchor is not None
    try:
        given = np.asarray(start, float)
    except (TypeError, ValueError):
        given = np.asarray(posterior.layout.ravel(start, "start"))
    if given.shape not in (shape, shape[1:]):
        given = np.asarray(posterior.layout.ravel(start, "start"))
    positions = jnp.broadcast_to(jnp.asarray(given, posterior.dtype), shape)
    if not bool(jnp.all(jnp.isfinite(positions))):
        raise InvalidInput("start", "be finite", "NaN or infinity")
    return positions, False
