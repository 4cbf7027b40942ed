"""Prepare a method, run its chains, return the draws."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from .._anchor import Anchor, prior_directions
from .._core.arrays import AbstractQuantities, StoredQuantities, on_device, shown
from .._core.errors import InvalidInput, SamplingWarning, check_int, warn
from .._core.statistics import Agreement
from .._core.supervision import Clock, TimeIsUp, current_clock, stage, supervised
from .._engine.chains import chains_on, chains_split_over, workers_for_chains
from .._engine.run import (
    DrawBlock,
    DrawSink,
    Goal,
    Progress,
    Run,
    Snapshot,
    memory_of_machine,
    run_until,
)
from .._rows.access import RowAccess
from .._rows.sharded import ShardedRows
from .._store.files import Folder, as_folder
from .._store.writer import StorageFailed, recording, reserving
from ..methods.abstract import AbstractMethod, Account, PreparedMethod, RunPlan
from ..methods.automatic import FEW_ROWS, Automatic
from ..methods.automatic.update import FittedSeries
from ..methods.pairs import with_measured_bias
from ..methods.surrogate import SeriesSurrogate
from ..methods.trajectories import SurrogateKernel
from ..models.posterior import AbstractPosterior, check_posterior
from ..results.draws import Draws, Timing
from ..results.report import rounding_doubts

Posterior = TypeVar("Posterior", bound=AbstractPosterior)
_MOST_OF_MEMORY = 0.5
_MOST_STEPS = 2**31 - 1


def read_by_executor(posterior: Posterior, executor: Executor | None) -> Posterior:
    """The posterior with rows that the executor reads; few rows are read into memory."""
    rows = posterior.rows
    if executor is not None:
        if not isinstance(rows, ShardedRows):
            rule = "be None, because the rows are in memory and no worker has to read them"
            cure = "Rows of a row store (tallmc.rows.open) are read by executors."
            raise InvalidInput("executor", rule, type(executor).__name__, cure)
        workers = dataclasses.replace(rows.workers, executor=executor)
        posterior = eqx.tree_at(lambda posterior: posterior.rows, posterior, rows.read_by(workers))
    beyond_memory = rows.access < RowAccess.TAKE
    return posterior.in_memory() if beyond_memory and posterior.n_rows <= FEW_ROWS else posterior


class Listeners(contextlib.AbstractContextManager["Listeners"]):
    """Those who hear of the progress of a run: the display and the user's callback.

    The display is open until `close_display` or the end of the block.
    """

    def __init__(
        self,
        progress: bool | None,
        callback: Callable[[Progress], None] | None,
        goal: Goal,
        n_rows: int,
    ):
        self._goal, self._n_rows = goal, n_rows
        self._display = contextlib.ExitStack()
        self._last: Progress | None = None
        self._announced = False
        show = None
        if progress is not False:
            from ..results.display import showing  # loads rich

            show = self._display.enter_context(showing(progress))
        self.all = [listener for listener in (show, callback) if listener is not None]
        if self.all:
            self.all.append(self._remember)

    def __exit__(self, *error: object) -> None:
        self.close_display()

    def announce(self, stage: str, seconds: float) -> None:
        """Report a stage before or after the steps of the run."""
        self._announced = True
        now = Progress.preparing(stage, seconds, self._n_rows, self._goal.draws, self._goal.ess)
        for listener in self.all:
            if listener != self._remember:
                listener(now)

    def repeat_last(self) -> None:
        """Report the last state of the run again, after a stage that followed it."""
        if self._last is not None and self._announced:
            for listener in self.all:
                listener(self._last)

    def _remember(self, progress: Progress) -> None:
        self._last, self._announced = progress, False

    def close_display(self) -> None:
        self._display.close()


def execute(
    plan: RunPlan,
    sink: DrawSink,
    listeners: Listeners,
    clock: Clock,
    snapshot: Snapshot | None = None,
) -> Draws:
    """Run a plan from its first step, or from a `snapshot`, and return the draws."""
    with supervised(clock, plan.goal.max_seconds, listeners.announce):
        stage("starting the chains")
        began = time.perf_counter()
        run = plan.run(sink)
        if snapshot is not None:
            run.restore(snapshot)
        preparation = plan.seconds + time.perf_counter() - began - clock.compiling
        stage("compiling the step")
        run.compile()
    storage_error: StorageFailed | None = None
    judge = _Judge()
    try:
        posterior = plan.posterior
        see, dear = functools.partial(shown, posterior.quantities), posterior.draws_are_dear
        stopped_by = run_until(run, plan.goal, listeners.all, judge, clock, see, dear=dear)
        sink.settle(run.snapshot, last=True)
    except StorageFailed as error:
        storage_error, stopped_by = error, f"the store ({error.strerror})"
    began = time.perf_counter()
    account, rows_of_check = plan.account.after_run(run, stopped_by, plan.seed)
    if plan.measures_bias and stopped_by is None:
        account, rows_of_pairs = _checked(plan, run, account, listeners, clock)
        rows_of_check += rows_of_pairs
    checking = time.perf_counter() - began
    listeners.close_display()
    whole = sink.whole()
    draws = Draws(
        positions=whole.positions,
        sample_stats=whole.stats,
        outcomes=run.outcomes(),
        n_row_evals_sampling=run.rows_touched(),
        n_row_evals_preparation=plan.n_row_evals,
        n_row_evals_check=rows_of_check,
        timing=Timing(max(preparation, 0.0), clock.compiling, run.seconds, checking),
        layout=plan.posterior.layout,
        quantities=_quantities(plan.posterior.quantities, whole),
        predictive=plan.posterior.predictive,
        settings=plan.settings(),
        account=account,
        stopped_by=stopped_by,
        group_moments=run.group_moments(),
        series=_series(plan),
    )
    covariance = None if plan.anchor is None else plan.anchor.covariance
    doubts = []
    if plan.method.has_accept_step:
        doubts = rounding_doubts(plan.posterior, run.last_positions()[0])
    draws = draws.judged(run.failed_at(), covariance, doubts, judge.agreement_of(draws))
    messages = [*draws.report.doubts, *draws.report.notes]
    if storage_error is None:
        facts = _facts_to_store(draws)
        messages += sink.conclude(draws.ok.tolist(), finished=stopped_by is None, facts=facts)
    else:
        cure = "The draws so far are returned; resume the run once there is room."
        messages.append(f"{storage_error.strerror}: the run stopped. {cure}")
    for message in messages:
        warn(message, SamplingWarning)
    return draws


def _series(plan: RunPlan) -> FittedSeries | None:
    """What `Draws.update` needs to know about the rows; None if the method has no series."""
    if not isinstance(plan.kernel, SurrogateKernel):
        return None
    surrogate, rows = plan.kernel.surrogate, plan.posterior.rows
    if not isinstance(surrogate, SeriesSurrogate):  # several modes
        return None
    stored: tuple[Any, ...] = ()
    if isinstance(rows, ShardedRows):
        stored = rows.shards.manifest.digest_of_shards, rows.view
    return FittedSeries.of(surrogate, rows.n_rows, *stored)


def _quantities(quantities: AbstractQuantities, whole: DrawBlock) -> AbstractQuantities:
    """The quantities of a posterior; those that a store has computed are not computed again."""
    if whole.values is None:
        return quantities
    values = dict(zip(quantities.shapes, whole.values.values(), strict=True))
    dims, coords = quantities.dims, quantities.coords
    return StoredQuantities(values, dims, coords, quantities.structure, quantities)


class _Judge:
    """Ends a run when R-hat raises no doubt, and keeps the agreement for the report."""

    judged: tuple[tuple[int, ...], Agreement] | None = None

    def __call__(self, positions: np.ndarray, agreed: Agreement) -> bool:
        self.judged = positions.shape, agreed
        return agreed.reached

    def agreement_of(self, draws: Draws) -> Agreement | None:
        """The agreement of the completed chains, unless it was judged with fewer draws."""
        shape = int(draws.ok.sum()), *draws.positions.shape[1:]
        return self.judged[1] if self.judged is not None and self.judged[0] == shape else None


def _checked(
    plan: RunPlan, run: Run, account: Account, listeners: Listeners, clock: Clock
) -> tuple[Account, int]:
    """Measure the bias. Ctrl-C and the time limit end the measurement, but not the run."""
    try:
        with supervised(clock, plan.goal.max_seconds, listeners.announce):
            return with_measured_bias(account, plan.method, plan.bound, run, plan.seed)
    except KeyboardInterrupt:
        return dataclasses.replace(account, unmeasured="the check was interrupted."), 0
    except TimeIsUp:
        reason = "the time limit ended the check. Raise max_seconds."
        return dataclasses.replace(account, unmeasured=reason), 0
    finally:
        listeners.repeat_last()


def _facts_to_store(draws: Draws) -> dict[str, Any]:
    account = draws.account
    assert account is not None, "every run has an account"
    bias = None if account.bias is None else account.bias._asdict()
    return {
        "seconds": vars(draws.timing),
        "stopped_by": draws.stopped_by,
        "n_row_evals_check": draws.n_row_evals_check,
        "doubts": list(account.doubts),
        "inflation": _as_list(account.inflation),
        "noise_tail": account.noise_tail,
        "reasons": list(account.reasons),
        "bias": bias and {name: _as_list(values) for name, values in bias.items()},
        "unmeasured": account.unmeasured,
    }


def _as_list(values: np.ndarray | None) -> list[float] | None:
    """The values for JSON, which has no NaN."""
    return values.tolist() if values is not None and np.isfinite(values).all() else None


def check_draws_fit(posterior: AbstractPosterior, chains: int, n_draws: int) -> None:
    """Raise if the draws would take more than half of the memory of the machine."""
    wanted = chains * n_draws * posterior.dim * np.dtype(posterior.dtype).itemsize
    memory = memory_of_machine()
    if wanted > _MOST_OF_MEMORY * memory:
        sizes = f"{chains:,} chains × {n_draws:,} draws × {posterior.dim:,} parameters"
        rule = f"fit in memory: {sizes} take {wanted / 2**30:,.0f} GiB, "
        rule += f"and the machine has {memory / 2**30:,.0f} GiB"
        cure = "Ask for fewer draws with a larger thin, or pass store=. For a LocalPosterior keep "
        cure += "fewer groups: posterior.keeping({...})."
        raise InvalidInput("draws", rule, n_draws, cure)


def sample(
    posterior: AbstractPosterior,
    method: AbstractMethod | None = None,
    *,
    exact: bool = False,
    chains: int | None = None,
    n_draws: int | None = None,
    ess: float | None = None,
    max_seconds: float | None = None,
    max_rows: int | None = None,
    burn_in: int | None = None,
    thin: int | None = None,
    seed: int = 0,
    start: PyTree | None = None,
    anchor: Anchor | None = None,
    store: str | os.PathLike[str] | Folder | None = None,
    measure_bias: bool = False,
    progress: bool | None = None,
    callback: Callable[[Progress], None] | None = None,
    executor: Executor | None = None,
    split_chains: bool = False,
    devices: int | Sequence[jax.Device] | None = None,
) -> Draws:
    """Draw from a posterior.

    Without a method everything is chosen for you (`tallmc.Automatic`): 32 chains, or on a GPU as
    many as it runs well at once, run until every parameter has 3,000 effective draws. Where draws
    cost more, 8 chains run to 1,000. `draws.report` has the choice, the reasons and the errors.

    Ctrl-C returns the draws so far, none in the burn-in. In the preparation it raises
    `KeyboardInterrupt` as soon as XLA has ended the program or compilation that it is busy with;
    a second Ctrl-C raises at once.

    **Arguments:**

    - `posterior`: the posterior to draw from.
    - `method`: the sampling method.
    - `exact`: whether only exact methods may be chosen: the draws then have no bias, at any cost.
    - `chains`: number of chains; 4 by default if a method is given.
    - `n_draws`: draws per chain; 1,000 by default if a method is given.
    - `ess`: goal in effective draws per parameter, over all chains, instead of `n_draws`. The run
        ends before the goal at 1,000 draws per effective draw, or at a quarter of the memory.
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
    - `anchor`: the result of `find_anchor(posterior)`, to reuse it.
    - `store`: a new folder. Draws and state are written to it during the run, so memory does not
        grow with the number of draws, and `tallmc.resume` can continue or extend the run bit for
        bit.
    - `measure_bias`: whether to measure the bias of a method of your own after the run, with pairs
        of chains at its step size and at half of it. This takes at most a fifth of the run's steps.
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

    **Raises:** `PreparationError` if preparation fails, if `max_seconds` pass before it ends, or if
    the executor loses workers for good.

    >>> import numpy as np, tallmc
    >>> x = np.random.default_rng(0).normal(size=(1000, 2))
    >>> y = x @ [1.0, -1.0]
    >>> posterior = tallmc.models.linear_regression(x, y, prior_variance=10.0, noise_variance=1.0)
    >>> draws = tallmc.sample(posterior, seed=0)
    >>> draws.report.trusted
    True
    >>> draws.summary()["mean"].round(1).tolist()
    [1.0, -1.0]
    """
    check_posterior(posterior)
    posterior = read_by_executor(posterior, executor)
    workers = workers_for_chains(posterior, split_chains)
    if method is None:
        method = Automatic(exact=exact)
    elif exact and isinstance(method, AbstractMethod) and not method.exact:
        rule = "be an exact method with exact=True, or left out"
        raise InvalidInput("method", rule, type(method).__name__)
    if not isinstance(method, AbstractMethod):
        cure = "See tallmc.Method."
        if callable(method):
            example = "tallmc.methods.sgld(step_size=1e-4, batch_size=32)"
            cure = f"Call it with its settings, for example {example}."
        raise InvalidInput("method", "be a Method", method, cure)
    defaults = method.defaults(posterior.dim)
    by_default = n_draws is None and ess is None
    if by_default:
        n_draws, ess = defaults.draws, defaults.ess
    goal = Goal.of(n_draws, ess, max_seconds, max_rows)
    chains = None if chains is None else check_int("chains", chains, 1)
    if store is None and goal.first_draws <= _MOST_STEPS:  # more draws are refused below
        check_draws_fit(posterior, chains or defaults.chains, goal.first_draws)
    thin = None if thin is None else check_int("thin", thin, 1)
    seed = check_int("seed", seed, 0, 2**32 - 1)
    burn_in = None if burn_in is None else check_int("burn_in", burn_in, 0)
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
            began = time.perf_counter()
            prepared = method.prepare(posterior, anchor, seed=seed)
            # What the user has left open is decided by the prepared method, or by its defaults.
            if prepared.ess is not None and by_default:
                goal = goal._replace(ess=prepared.ess)
            chains = chains or prepared.chains or defaults.chains
            thin = prepared.thin if thin is None else thin
            positions, anchored = _start_positions(posterior, prepared, start, chains)
            prepared.kernel.check_start(np.asarray(positions))
            steps = goal.first_draws * thin
            if burn_in is None and start is None:
                burn_in = prepared.burn_in
            if burn_in is None:
                burn_in = steps // 10 if anchored else steps
            check_int("burn_in + draws · thin", burn_in + steps, 1, _MOST_STEPS)
            plan = RunPlan(
                posterior=posterior,
                method=method if prepared.account is None else prepared.account.method,
                kernel=prepared.kernel.kernel,
                anchor=prepared.anchor,
                account=_account(posterior, method, prepared),
                start=positions,
                burn_in=burn_in,
                thin=thin,
                seed=seed,
                goal=goal,
                measures_bias=measure_bias or prepared.account is not None,
                n_row_evals=prepared.n_row_evals,
                seconds=time.perf_counter() - began,
            )
        with chains_split_over(workers):
            if folder is None:
                return execute(plan, DrawSink(), listeners, clock)
            with recording(folder, plan) as sink:
                return execute(plan, sink, listeners, clock)


def _account(
    posterior: AbstractPosterior, method: AbstractMethod, prepared: PreparedMethod
) -> Account:
    """The account before the run, with notes on directions that the prior alone decides."""
    account, anchor = prepared.account or Account(method, exact=method.exact), prepared.anchor
    notes: list[str] = []
    # Group effects are left to their prior in part, by intention.
    if anchor is not None and anchor.hessian is not None and posterior.model.bounded:
        notes = prior_directions(posterior, anchor)
    return dataclasses.replace(account, notes=tuple(notes))


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
