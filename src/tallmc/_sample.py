"""The one verb: prepare a method, run its chains, return the draws."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ._anchor import Anchor
from ._carry_out import carry_out
from ._draws import Draws
from ._errors import InvalidInput, check_int
from ._goal import Goal
from ._kept import InMemory
from ._method import AbstractMethod, Prepared
from ._posterior import AbstractPosterior
from ._started import Started
from .automatic import Automatic
from .progress import Progress
from .store.folder import Folder, as_folder
from .store.writer import check_new, recording

_MOST_STEPS = 2**31 - 1
_DEFAULT_CHAINS, _DEFAULT_DRAWS = 4, 1000
_AUTOMATIC_CHAINS, _DEFAULT_ESS = 8, 1000.0


def sample(
    posterior: AbstractPosterior,
    method: AbstractMethod | None = None,
    *,
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
    progress: bool | None = None,
    callback: Callable[[Progress], None] | None = None,
) -> Draws:
    """Draw from `posterior`: by itself, or by a `method` of your choice.

    Without a method everything is chosen for you (`tallmc.Automatic`): 8 chains run until every parameter has 1,000 effective
    draws, and `draws.health` says what was chosen, why, and how wrong the draws may be.

    A chain takes `burn_in` steps that are thrown away and then keeps every `thin`-th, until it has `draws` of them or, where
    `ess` is given in their place, until every parameter has so many effective draws over all chains. `max_seconds` of sampling or
    `max_rows` touched by it end a run early. With a method the defaults are 4 chains of 1,000 draws.

    A chain starts at the anchor where the method has one, else at the posterior's `init`; `start` overrides both (parameters, a
    vector (d,), or one a chain, (chains, d)). From an anchor the burn-in is a tenth of the steps that follow unless given, from
    anywhere else it is as long. `anchor` reuses `laplace(posterior)`; `callback` hears a `Progress` every half second or so.

    `progress` shows these facts: in a live table on terminals, in a line that is redrawn in notebooks and, if True, in a line now
    and then elsewhere; False shows nothing.

    `store` names a new folder that draws and state are written to as the run goes on: memory does not grow with the draws, and
    `tallmc.resume` continues the run, or a longer one, bit for bit should this process end.

    The same seed gives the same draws, chain by chain, whatever the number of chains or draws. Ctrl-C returns the draws so far.

    >>> import numpy as np, tallmc
    >>> x = np.random.default_rng(0).normal(size=(1000, 2))
    >>> posterior = tallmc.models.linear_regression(x, x @ [1.0, -1.0], prior_variance=10.0)
    >>> draws = tallmc.sample(posterior, tallmc.sgld_cv(step_size=1e-4, size=10), chains=2, draws=500)
    >>> draws.positions.shape
    (2, 500, 2)
    """
    if not isinstance(posterior, AbstractPosterior):
        raise InvalidInput("posterior", "be a tallmc posterior", type(posterior).__name__, "See tallmc.Posterior, tallmc.models.")
    automatic = method is None
    method = Automatic() if method is None else method
    if not isinstance(method, AbstractMethod):
        cure = (
            "Call it with its settings, as in tallmc.sgld(step_size=1e-4, size=32)." if callable(method) else "See tallmc.Method."
        )
        raise InvalidInput("method", "be a Method", method, cure)
    automatic = automatic or isinstance(method, Automatic)
    if draws is None and ess is None:
        draws, ess = (None, _DEFAULT_ESS) if automatic else (_DEFAULT_DRAWS, None)
    goal = Goal.of(draws, ess, max_seconds, max_rows)
    chains = check_int("chains", (_AUTOMATIC_CHAINS if automatic else _DEFAULT_CHAINS) if chains is None else chains, 1)
    if thin is not None:
        thin = check_int("thin", thin, 1)
    seed = check_int("seed", seed, 0, 2**32 - 1)
    if burn_in is not None:
        burn_in = check_int("burn_in", burn_in, 0)
    if callback is not None and not callable(callback):
        raise InvalidInput("callback", "be callable with a Progress", callback)

    folder = None if store is None else as_folder(store)
    if folder is not None:
        check_new(folder)

    began = time.perf_counter()
    prepared = method.prepare(posterior, anchor, seed=seed)
    thin = prepared.thin if thin is None else thin
    positions, anchored = _starts(posterior, prepared, start, chains)
    steps = goal.first_draws * thin
    if burn_in is None and start is None:
        burn_in = prepared.burn_in
    if burn_in is None:
        burn_in = steps // 10 if anchored else steps
    check_int("burn_in + draws · thin", burn_in + steps, 1, _MOST_STEPS)
    started = Started(
        method=method if prepared.account is None else prepared.account.method,
        kernel=prepared.kernel,
        anchor=prepared.anchor,
        account=prepared.account,
        start=positions,
        burn_in=burn_in,
        thin=thin,
        seed=seed,
        goal=goal,
        n_row_evals=prepared.n_row_evals,
        seconds=time.perf_counter() - began,
    )
    if folder is None:
        return carry_out(posterior, started, InMemory(), progress, callback)
    with recording(folder, posterior, started) as kept:
        return carry_out(posterior, started, kept, progress, callback)


def _starts(
    posterior: AbstractPosterior, prepared: Prepared, start: PyTree | None, chains: int
) -> tuple[Float[Array, "chains d"], bool]:
    """A starting position for each chain, and whether it is the anchor."""
    shape = (chains, posterior.dim)
    if start is None and prepared.start is not None:
        return jnp.resize(prepared.start, shape), True
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
